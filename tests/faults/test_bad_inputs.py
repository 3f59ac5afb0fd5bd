"""Bad files, most of them found by `python -m campaigns.fuzz`: read or refused in one line, and nothing is lost.

The folder of a file in tests/data/bad names its parser. All run in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaigns.fuzzed import FIELDS, PARSERS, RECORDS, make_run, read_source, seeking_everywhere
from shardmill.core.errors import ShardmillError
from shardmill.run import Run
from shardmill.sources import discover, open_source
from tests.support.cli import Cli, Said

BAD = sorted((Path(__file__).parents[1] / "data" / "bad").glob("*/*"))
# Made here: they are too large to keep.
LARGE = {
    "jsonl-deep": ("jsonl", b'{"text": "a", "id": "b", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"),
    "jsonl-one-line": ("jsonl", b'{"text": "' + b"x" * 300_000),
    "json-deep": ("json", b"[" * 200_000),
    "json-number": ("json", b'[{"id": "a", "text": "b", "n": ' + b"9" * 10_000 + b"}]"),
    "csv-quote": ("csv", b'id,text,n\r\na,"' + b"x\n" * 10_000),
    "csv-columns": ("csv", b"id,text,n" + b",x" * 20_000 + b"\r\na,b,1\r\n"),
    "spec-deep": ("spec", b"[work]\nparams = " + b"[" * 50_000),
    "spec-number": ("spec", b"[execution]\nworkers = " + b"9" * 5_000),
    "cluster-number": ("cluster", b"[[hosts]]\nweight = " + b"9" * 5_000),
    "cluster-deep": ("cluster", b"[[hosts]]\ngpus = " + b"[" * 50_000),
    "plan-deep": ("plan", b'{"format": ' + b"[" * 100_000),
    "commit-deep": ("commit", b"[" * 100_000),
    "execution-deep": ("execution", b'{"settings": ' + b'{"a": ' * 100_000),
    **{f"{name}-deep": (name, b"[" * 100_000) for name in ("heartbeat", "state", "step", "segment", "rolled")},
}
CASES = {f"{path.parent.name}/{path.name}": (path.parent.name, path.read_bytes()) for path in BAD} | LARGE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bad")
    make_run(made)
    with seeking_everywhere():
        for name in ("gzip-index", "delta", "iceberg"):
            PARSERS[name].seeds(made)
    return made


@pytest.fixture(autouse=True)
def small_files_have_seek_points() -> Iterator[None]:
    with seeking_everywhere():
        yield


def test_there_are_two_hundred_of_every_kind() -> None:
    assert len(CASES) >= 200
    assert {name for name, _ in CASES.values()} == set(PARSERS)
    assert min(Counter(name for name, _ in CASES.values()).values()) >= 2


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_read_or_refused(case: str, folder: Path, shardmill: Cli) -> None:
    name, data = CASES[case]
    parser = PARSERS[name]
    path = folder / parser.file
    path.write_bytes(data)
    try:
        parser.use(path)
        refused = ""
    except ShardmillError as error:
        refused = str(error)
    if parser.use is read_source:
        said = shardmill("plan", path, "--text", "text", "--id", "id", "--keep", "n")
    elif name == "spec":
        said = shardmill("plan", "--spec", path)
    elif name == "cluster" and refused:
        said = shardmill("hosts", "check", path)
    else:
        return
    assert_helpful(said)


@pytest.mark.parametrize("case", [case for case, (name, _) in CASES.items() if name in RECORDS])
def test_a_run_with_a_bad_file_is_shown_or_refused(case: str, folder: Path, shardmill: Cli) -> None:
    name, data = CASES[case]
    (target,) = (folder / "run").glob(RECORDS[name])
    before = target.read_bytes()
    target.write_bytes(data)
    try:
        assert_helpful(shardmill("show", folder / "run", "--shard", 1))
    finally:
        target.write_bytes(before)


@pytest.mark.parametrize(
    ("file", "table", "key", "value", "says"),
    [
        ("plan.json", "", "shards", {}, "it has no shards"),
        ("execution.json", "settings", "batch_tokefs", 1, "batch_tokefs"),
        ("execution.json", "settings", "places", ["\0"], "no zero byte"),
    ],
)
def test_a_value_that_does_not_fit_the_rest_is_refused(
    file: str, table: str, key: str, value: Any, says: str, tmp_path: Path
) -> None:
    """Found by fuzzing; the names of the run in the rest of the file are right."""
    (target,) = make_run(tmp_path).glob(file)
    held = json.loads(target.read_bytes())
    (held[table] if table else held)[key] = value
    path = tmp_path / PARSERS[target.stem].file
    path.write_text(json.dumps(held))
    with pytest.raises(ShardmillError, match=says):
        PARSERS[target.stem].use(path)


def test_a_plan_that_keeps_what_it_does_not_read_is_told_by_verify(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    held = json.loads((run / "plan.json").read_bytes())
    held["work"]["id"] = []
    (run / "plan.json").write_text(json.dumps(held))
    report = Run(run).verify(sample=0)
    assert [check.seen for check in report.checks if "'id' is kept, and not read" in check.seen]
    assert not report.verified


def assert_helpful(said: Said) -> None:
    """A documented status; an error in one line, with what to do in at most three more, and no traceback."""
    assert said.status in (0, 1, 2), said
    assert "Traceback" not in said.err, said.err
    assert "bug in shardmill" not in said.err, said.err
    if said.status:
        assert said.out == ""
        assert said.err.startswith("error: "), said.err
        assert len(said.err.splitlines()) <= 4, said.err
        assert len(said.err) < 2_000, said.err


JSONL = [case for case, (name, _) in CASES.items() if name == "jsonl"]


@pytest.mark.parametrize("case", JSONL)
def test_good_lines_come_out_beside_bad_ones(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    good = {"id": "first", "text": "kept", "n": 1}
    path.write_bytes(json.dumps(good).encode() + b"\n" + CASES[case][1] + b"\n" + json.dumps(good).encode() + b"\n")
    try:
        stat = discover([str(path)], FIELDS)
    except ShardmillError:
        # A file whose columns have no common type, or that is no text, is refused as a whole.
        return
    source = open_source(stat, FIELDS)
    batches = [batch for shard in source.shards(max(100, stat.size_bytes // 50)) for batch in source.read(shard)]
    texts = [text for batch in batches for text in batch.texts.to_pylist()]
    assert texts[0] == texts[-1] == "kept"
    assert {text for text in texts if text is not None} >= set(_good_texts(path.read_bytes()))
    assert sum(batch.line_count for batch in batches) == path.read_bytes().count(b"\n")


def _good_texts(data: bytes) -> Iterator[str]:
    for line in data.split(b"\n"):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if (
            isinstance(row, dict)
            and isinstance(row.get("text"), str)
            and row["text"].strip()
            and "\ud800" not in str(row)
        ):
            yield row["text"]
