"""The table of formats: that every module keeps its contract, and that nothing else keeps a list of its own."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardmill.core.errors import SourceError
from shardmill.plugins import SourceKind, declared
from shardmill.plugins.builtin import BUILTIN
from shardmill.sources import formats
from shardmill.sources.base import PlaceReader, Reader
from shardmill.sources.documents.names import TARS
from shardmill.sources.formats import every_format, find_format, find_reader, format_names, suffixes
from tests.support.imports import MODULES, find_circle, imports_of

TABLE = "shardmill.sources.formats"
LOG = SourceKind(name="log", suffixes=(".log",), reader="shardmill.sources.lines", unit="line", column="text")
PARTS = [name for name, part in vars(Reader).items() if inspect.isfunction(part) and not name.startswith("_")]


@pytest.mark.parametrize("format", every_format(), ids=lambda format: format.name)
@pytest.mark.parametrize("part", PARTS)
def test_every_reader_keeps_the_contract(format: SourceKind, part: str) -> None:
    if (part == "iter_rows" and format.unit == "line") or (part == "extents" and format.unit == "row"):
        return
    wanted = list(inspect.signature(getattr(Reader, part)).parameters)[1:]
    assert list(inspect.signature(getattr(find_reader(format.name), part)).parameters) == wanted


@pytest.mark.parametrize("name", [kind.name for kind in declared("sources") if kind.schemes and not kind.finder])
@pytest.mark.parametrize("part", ["discover", "open_source", "list_columns", "count_rows"])
def test_every_reader_of_a_scheme_keeps_the_contract(name: str, part: str) -> None:
    wanted = list(inspect.signature(getattr(PlaceReader, part)).parameters)[1:]
    assert list(inspect.signature(getattr(find_reader(name), part)).parameters) == wanted


def test_a_source_has_one_of_three_parts() -> None:
    for kind in declared("sources"):
        assert sum(map(bool, (kind.reader, kind.finder, kind.database))) == 1, kind.name
        assert bool(kind.suffixes) != bool(kind.schemes), kind.name


def test_no_reader_leads_back_to_the_table() -> None:
    graph = {module: imports_of(path) - {module} for module, path in MODULES.items()}
    parts = [part for kind in declared("sources") for part in (kind.reader, kind.finder, kind.database) if part]
    readers = {part.partition(":")[0] for part in parts}
    assert readers <= set(graph)
    graph[TABLE] |= readers
    assert not find_circle(graph)


def test_no_other_room_asks_for_a_source_by_name_or_scheme() -> None:
    """It asks the declaration for a trait (plugins/base.py)."""
    schemes = "|".join(re.escape(scheme) for kind in declared("sources") for scheme in kind.schemes)
    asks = re.compile(rf"""stat\.format (?:[!=]=|in) |startswith\(\(?"(?:{schemes}|sqlite:|postgresql:|postgres)""")
    others = {module: path for module, path in MODULES.items() if not module.startswith("shardmill.sources")}
    found = {module for module, path in others.items() if asks.search(path.read_text())}
    # `SourceFile.name` knows no declaration: it leaves the options out of the URL of a database.
    assert found == {"shardmill.plan.pieces"}


def test_names_and_suffixes_are_unambiguous_but_for_json_and_tar() -> None:
    assert len(set(format_names())) == len(format_names())
    several = {suffix: kinds for suffix, kinds in suffixes().items() if len(kinds) > 1}
    assert several == {".json": ("jsonl", "json"), **dict.fromkeys(TARS, ("files", "webdataset"))}
    assert all(suffix == suffix.lower() and suffix.startswith(".") for suffix in suffixes())


def test_a_format_of_another_version_is_refused() -> None:
    with pytest.raises(SourceError, match="'tape' is not a supported format"):
        find_format("tape")


def test_the_table_loads_no_reader() -> None:
    code = f"import sys, {TABLE}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "pydantic", *(format.reader for format in every_format())} & set(loaded)


def test_a_format_is_an_entry_and_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A format that is only in the table and in one module is found, read and split."""
    from shardmill.sources import Fields, discover, open_source
    from shardmill.verbs.split import split_files

    monkeypatch.setitem(BUILTIN["sources"], "log", f"{__name__}:LOG")
    for cached in (formats.every_format, formats.suffixes):
        cached.cache_clear()
        request.addfinalizer(cached.cache_clear)
    (tmp_path / "a.log").write_text("one\ntwo\n")
    stat = discover([str(tmp_path / "a.log")], Fields(text="text"))
    source = open_source(stat, Fields(text="text"))
    assert [text for shard in source.shards(99) for b in source.read(shard) for text in b.texts.to_pylist()] == [
        "one",
        "two",
    ]
    assert source.notes == ()
    assert split_files([str(tmp_path)], str(tmp_path / "out"), quiet=True).metadata["total_items"] == 2
