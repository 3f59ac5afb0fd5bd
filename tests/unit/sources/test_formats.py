"""The table of formats: that every module keeps its contract, and that nothing else keeps a list of its own."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from shardmill.errors import SourceError
from shardmill.sources.formats import FORMATS, NAMES, SUFFIXES, Format, Reader, find_format, is_in_lines
from shardmill.spec import Work
from tests.support.imports import MODULES, find_circle, imports_of

TABLE = "shardmill.sources.formats"
PARTS = [name for name, part in vars(Reader).items() if inspect.isfunction(part) and not name.startswith("_")]


def test_the_spec_takes_exactly_the_formats_of_the_table() -> None:
    formats, _ = get_args(Work.model_fields["format"].annotation)
    assert list(get_args(formats)) == NAMES


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
@pytest.mark.parametrize("part", PARTS)
def test_every_reader_keeps_the_contract(format: Format, part: str) -> None:
    if part == "iter_rows" and format.unit == "line":
        return
    wanted = list(inspect.signature(getattr(Reader, part)).parameters)[1:]
    assert list(inspect.signature(getattr(format.reader(), part)).parameters) == wanted


def test_no_reader_leads_back_to_the_table() -> None:
    graph = {module: imports_of(path) - {module} for module, path in MODULES.items()}
    readers = {f"shardmill.sources.{format.module}" for format in FORMATS}
    assert readers <= set(graph)
    graph[TABLE] |= readers
    assert not find_circle(graph)


def test_names_and_suffixes_are_unambiguous_but_for_json() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {suffix: kinds for suffix, kinds in SUFFIXES.items() if len(kinds) > 1} == {".json": ("jsonl", "json")}
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in SUFFIXES)


def test_only_formats_in_lines_are_in_lines() -> None:
    assert [name for name in (*NAMES, "range", "postgres") if is_in_lines(name)] == ["jsonl", "text", "csv", "tsv"]


def test_a_format_of_another_version_is_refused() -> None:
    with pytest.raises(SourceError, match="'orc' is not a supported format"):
        find_format("orc")


def test_the_table_loads_no_reader() -> None:
    code = f"import sys, {TABLE}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "pydantic", *(f"shardmill.sources.{format.module}" for format in FORMATS)} & set(loaded)


def test_a_format_is_an_entry_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A format that is only in the table and in one module is found, read and split."""
    from shardmill.sources import Fields, discover, open_source
    from shardmill.split import split_files

    formats = importlib.import_module(TABLE)
    added = Format("log", (".log",), "lines", unit="line")
    monkeypatch.setitem(formats._BY_NAME, "log", added)
    monkeypatch.setitem(formats.SUFFIXES, ".log", ("log",))
    (tmp_path / "a.log").write_text("one\ntwo\n")
    stat = discover([str(tmp_path / "a.log")], Fields(text="text"))
    source = open_source(stat, Fields(text="text"))
    assert [text for shard in source.shards(99) for b in source.read(shard) for text in b.texts.to_pylist()] == [
        "one",
        "two",
    ]
    assert source.notes == ()
    assert split_files([str(tmp_path)], str(tmp_path / "out"), quiet=True).metadata["total_items"] == 2
