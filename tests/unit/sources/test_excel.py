"""Spreadsheets, written by openpyxl."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import pytest

from shardmill import make_spec, start
from shardmill.core.errors import MissingExtra, SourceError
from shardmill.sources import Fields, discover, list_columns, open_source
from shardmill.store import open_store
from tests.support.libraries import needed

openpyxl = needed("openpyxl")
needed("python_calamine")

HEAD = ["id", "text", "stars", "day", "open"]


def row(i: int) -> list[Any]:
    return [i, f"réview {i}", i / 2, datetime.datetime(2026, 1, 1) + datetime.timedelta(days=i), i % 2 == 0]


def write(path: Path, sheets: dict[str, list[list[Any]]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for each in rows:
            sheet.append(each)
    book.save(path)
    return path


def read(place: object, fields: Fields, target_bytes: int = 1 << 30) -> list[dict[str, Any]]:
    source = open_source(discover([str(place)], fields), fields)
    found = []
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            pairs = zip(batch.kept.to_pylist(), batch.texts.to_pylist(), strict=True)
            found += [{**kept, "text": text} for kept, text in pairs]
    return found


@pytest.mark.parametrize("target_bytes", [500, 1 << 30])
def test_rows_have_the_types_of_their_cells(tmp_path: Path, target_bytes: int) -> None:
    path = write(tmp_path / "a.xlsx", {"Sheet": [HEAD, *map(row, range(100))]})
    fields = Fields("text", id=("id",), keep=("stars", "open", "day"))
    found = read(path, fields, target_bytes)
    assert [each["id"] for each in found] == [*range(100)]
    assert found[3] == {"id": 3, "text": "réview 3", "stars": 1.5, "open": False, "day": found[3]["day"]}
    assert str(found[3]["day"]).startswith("2026-01-04")
    assert list(list_columns([str(path)])) == HEAD


def test_sheets_with_the_same_columns_are_one_table(tmp_path: Path) -> None:
    sheets = {"May": [HEAD, row(1), row(2)], "June": [HEAD, row(3)], "Empty": []}
    path = write(tmp_path / "a.xlsx", sheets)
    assert [each["id"] for each in read(path, Fields("text", id=("id",)))] == [1, 2, 3]
    path = write(tmp_path / "b.xlsx", {**sheets, "Notes": [["what"], ["a note"]]})
    with pytest.raises(SourceError, match="sheets with different columns: 'May' and 'Notes'"):
        read(path, Fields("text"))


def test_empty_cells_and_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.xlsx", {"Sheet": [["id", "text"], ["a", "one"], [None, None], ["b", None], [None, "two"]]}
    )
    fields = Fields("text", id=("id",))
    source = open_source(discover([str(path)], fields), fields)
    (batch,) = [batch for shard in source.shards(1 << 30) for batch in source.read(shard)]
    assert batch.texts.to_pylist() == ["one", None, "two"]
    assert batch.kept.column("id").to_pylist() == ["a", "b", None]
    assert [*batch.bad] == [1]


def test_a_run_over_a_spreadsheet_is_verified(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", {"Sheet": [HEAD, *map(row, range(300))]})
    work = {"source": str(path), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {"shard_bytes": 3000}), tmp_path / "run")
    assert len(run.plan.shards) > 3
    assert run.verify(sample=8).verified


def test_in_a_store(tmp_path: Path) -> None:
    path = write(tmp_path / "a.xlsx", {"Sheet": [HEAD, row(5)]})
    open_store("memory://sheets").put("a.xlsx", path.read_bytes())
    assert [each["id"] for each in read("memory://sheets/a.xlsx", Fields("text", id=("id",)))] == [5]


def test_beside_documents_it_is_not_meant(tmp_path: Path) -> None:
    write(tmp_path / "figures.xlsx", {"Sheet": [HEAD, row(5)]})
    (tmp_path / "report.md").write_text("# A report\n\nText.")
    assert discover([str(tmp_path)], Fields("text")).format == "files"
    (tmp_path / "report.md").unlink()
    assert discover([str(tmp_path)], Fields("text")).format == "excel"


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.xlsx", {"Sheet": [["text", "text"], ["a", "b"]]})
    with pytest.raises(SourceError, match="two columns named 'text'"):
        read(path, Fields("text"))
    with pytest.raises(SourceError, match="no field 'body'"):
        read(write(tmp_path / "a.xlsx", {"Sheet": [HEAD, row(1)]}), Fields("body"))
    with pytest.raises(SourceError, match="no rows"):
        read(write(tmp_path / "a.xlsx", {"Sheet": [HEAD]}), Fields("text"))
    for data in (b"PK\x03\x04 and more", b"text,id\na,b\n"):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"a\.xlsx cannot be read as a spreadsheet"):
            read(path, Fields("text"))
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(MissingExtra, match="python-calamine is not installed"):
        read(path, Fields("text"))
