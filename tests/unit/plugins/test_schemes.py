"""Addresses and suffixes that nothing reads, or several packages: one line that says what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardmill._version import __version__
from shardmill.plugins.builtin import BUILTIN
from shardmill.sources import Fields, discover
from tests.support.cli import Cli, Said, assert_told
from tests.support.packages import forget_installed, install_package

Lakes = Callable[..., None]


@pytest.fixture
def lakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lakes]:
    """Installs packages that bring one source each, `NAME` of the package NAME."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def install(name: str, **declared: object) -> None:
        given = ", ".join(f"{key}={value!r}" for key, value in declared.items())
        text = f"from shardmill.plugins.base import SourceKind\nKIND = SourceKind(name={name!r}, {given})\n"
        install_package(tmp_path, name, {"sources": {name: f"{name}_kind:KIND"}}, **{f"{name}_kind": text})
        made.append(f"{name}_kind")

    yield install
    for module in made:
        sys.modules.pop(module, None)
    forget_installed()


def run(shardmill: Cli, *source: object) -> Said:
    return shardmill("run", *source, "--task", "shardmill.testing:FakeTask", "--text", "t", "--out", "out")


@pytest.mark.parametrize(
    ("address", "scheme", "hint"),
    [
        ("rnage:0:10", "rnage:", "Did you mean 'range'?"),
        ("ftp://example.org/b", "ftp://", "hf, https, manifest, run, range, postgresql"),
        ("lake:here", "lake:", "shardmill plugins"),
    ],
)
def test_a_scheme_that_nobody_has(address: str, scheme: str, hint: str, shardmill: Cli) -> None:
    assert_told(run(shardmill, address), 2, f"No source reads addresses that begin with {scheme!r}.", hint)


def test_a_file_with_a_colon_in_its_name_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day:1.jsonl").write_text('{"t": "a"}\n')
    assert discover(["day:1.jsonl"], Fields("t")).files[0].name == "day:1.jsonl"


def test_a_database_that_nobody_has(shardmill: Cli) -> None:
    said = run(shardmill, "oracle://ann:secret@db/shop", "--query", "SELECT 1 AS t")
    assert_told(said, 2, "oracle:// is not a supported database.", "python:MODULE:FUNCTION")
    assert "secret" not in said.err
    assert_told(run(shardmill, "range:0:9", "--query", "SELECT 1"), 2, "range:0:9 is not a database.", "Omit --query")


def test_a_source_by_scheme_has_no_format_and_no_company(shardmill: Cli) -> None:
    said = run(shardmill, "range:0:9", "--format", "csv")
    assert_told(said, 2, "--format csv has no meaning for 'range'.", "Omit it.")
    said = run(shardmill, "range:0:9", "docs.jsonl")
    assert_told(said, 2, "range:0:9 cannot be combined with other sources.", "Name sources of one kind.")
    assert_told(shardmill("split", "range:0:9", "--out", "out"), 2, "range:0:9 has no files to read.", "Name a file")


def test_a_spec_of_a_package_that_is_not_installed(shardmill: Cli, tmp_path: Path) -> None:
    def told(work: str, execution: str = "") -> Said:
        spec = tmp_path / "spec.toml"
        spec.write_text(f'[work]\ntask = "shardmill.testing:FakeTask"\ntext = "t"\n{work}\n[execution]\n{execution}\n')
        return shardmill("run", "--spec", spec, "--out", tmp_path / "run")

    assert_told(told('source = "lake:here"'), 2, "addresses that begin with 'lake:'", "shardmill plugins")
    said = told('source = "a.mbox"\nformat = "mbox"')
    assert_told(said, 2, "'mbox' is not a supported format.", "shardmill plugins")
    said = told('source = "range:0:9"', 'into = "outbox:rows"')
    assert_told(said, 2, "No sink takes 'outbox:", "shardmill plugins")


def test_two_packages_with_one_scheme_have_neither(lakes: Lakes, shardmill: Cli) -> None:
    lakes("one", schemes=("lake:",), reader="one_reader")
    lakes("two", schemes=("lake:",), reader="two_reader")
    said = run(shardmill, "lake:here")
    assert_told(said, 2, "The scheme 'lake:' is that of several sources: one 1.0, two 1.0.", "pip uninstall one")
    assert shardmill("plugins").out.count("cannot be used: The scheme 'lake:' is that of several sources") == 2


def test_two_packages_with_one_suffix_are_told_apart_by_the_format(
    lakes: Lakes, shardmill: Cli, tmp_path: Path
) -> None:
    lakes("one", suffixes=(".log",), reader="shardmill.sources.lines", unit="line", column="text")
    lakes("two", suffixes=(".log",), reader="two_reader")
    (tmp_path / "a.log").write_text("a line\n")
    said = run(shardmill, tmp_path / "a.log")
    assert_told(said, 2, "a.log: several packages read .log files: one 1.0, two 1.0.", "--format one|two")
    assert discover([str(tmp_path / "a.log")], Fields("text"), "one").format == "one"


def test_schemes_and_suffixes_of_shardmill_stay_shardmills(lakes: Lakes, shardmill: Cli, tmp_path: Path) -> None:
    lakes("thief", schemes=("range:",), reader="thief_reader")
    lakes("robber", suffixes=(".jsonl", ".csv"), reader="robber_reader")
    (tmp_path / "a.csv").write_text("t\na\n")
    assert discover([str(tmp_path / "a.csv")], Fields("t")).format == "csv"
    assert "shardmill has a source or sink with its scheme 'range:'" in shardmill("plugins").out


def test_all_that_there_is_is_listed(lakes: Lakes, shardmill: Cli) -> None:
    lakes("lake", schemes=("lake:",), reader="lake_reader", reach="network")
    assert shardmill("plugins").out.split() == ["source", "lake", "lake", "1.0", "lake:"]
    found = json.loads(shardmill("plugins", "--all", "--json").out)
    named = {(each["group"], each["name"]): each for each in found}
    assert {key[1] for key in named if key[0] == "sources"} == {*BUILTIN["sources"], "lake"}
    assert named["sources", "jsonl"]["takes"] == [".jsonl", ".ndjson", ".json"]
    assert named["sources", "sqlite"]["takes"] == ["sqlite:///", "--query"]
    assert named["sources", "sqlite"]["reach"] == "machine"
    assert named["sinks", "postgresql"]["takes"] == ["--to", "postgresql://", "postgres://"]
    assert named["sinks", "parts"]["takes"] == ["--out"]
    shown = shardmill("plugins", "--all").out
    assert "sqlite:/// --query, one machine" in shown
    assert f"engine   slurm                shardmill {__version__}" in shown
