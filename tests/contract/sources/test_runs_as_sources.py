"""What one run made is read by the next; a run that changed or is not finished is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SourceError, StaleResume
from shardmill.ledger import Ledger
from shardmill.ledger.record import encode
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from shardmill.sources import Fields, discover, open_source
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.cli import Cli
from tests.support.corpora import SHOUTING
from tests.support.sources import NEAR_ROOTS

ROWS = [{"id": i, "text": f"text {i}{' !mute' if i % 20 == 3 else ''}", "year": 1900 + i} for i in range(60)]
Write = Callable[..., Path]


def _first(source: Path, mark: str = "!", **execution: Any) -> Spec:
    work = {"source": str(source), "text": "text", "id": "id", "keep": "year", "task": SHOUTING}
    return make_spec({**work, "params": {"mark": mark}}, {"shard_bytes": 500, "max_errors": "10%", **execution})


def _second(run: object, **execution: Any) -> Spec:
    work = {
        "source": f"run:{run}",
        "text": "shout",
        "id": "id",
        "keep": "letters",
        "task": "shardmill.testing:FakeTask",
    }
    return make_spec(work, {"shard_bytes": 1 << 20, "max_errors": "10%", **execution})


def _go(spec: Spec, out: object, **how: Any) -> Run:
    return start(spec, str(out), engine=InProcessEngine(), **how)


@pytest.fixture(params=NEAR_ROOTS, ids=lambda root: root.__name__)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param(tmp_path))


def test_the_rows_of_one_run_are_the_items_of_the_next(root: str, write_jsonl: Write) -> None:
    first = _go(_first(write_jsonl(ROWS)), f"{root}/first")
    assert len(first.plan.shards) > 3
    second = _go(_second(f"{root}/first"), f"{root}/second")
    # small parts share a shard
    assert len(second.plan.shards) == 1
    table = second.table()
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    vectors = table.column("embedding").to_pylist()
    for row, letters, vector in zip(ROWS, table.column("letters").to_pylist(), vectors, strict=True):
        if "!mute" in row["text"]:
            assert (letters, vector) == (None, None)
        else:
            assert letters == len(row["text"])
            assert vector == fake_vector(row["text"].upper() + "!").tolist()
    assert {error["id"]["id"] for error in second.errors()} == {"3", "23", "43"}
    assert "'shout' is null" in next(iter(second.errors()))["reason"]
    report = second.verify()
    assert report.verified, report


def test_the_same_rows_of_two_runs_follow_each_other(tmp_path: Path, write_jsonl: Write) -> None:
    for name in "ab":
        _go(_first(write_jsonl(ROWS, f"{name}.jsonl"), mark=name), tmp_path / name)
    fields = Fields(text="shout")
    stat = discover([f"run:{tmp_path}/a", f"run:{tmp_path}/b"], fields)
    source = open_source(stat, fields)
    texts = [text for shard in source.shards(300) for batch in source.read(shard) for text in batch.texts.to_pylist()]
    assert [text and text[-1] for text in texts].count("b") == 57
    assert len(texts) == 120


def test_a_run_that_changed_is_another_source(tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl(ROWS)
    _go(_first(source), tmp_path / "first")
    made = _go(_second(tmp_path / "first"), tmp_path / "second")
    run = _go(_first(source, mark="?"), tmp_path / "first", fresh=True)
    with pytest.raises(StaleResume, match=r"the run that it reads had the plan [0-9a-f]+ and has [0-9a-f]+"):
        _go(_second(tmp_path / "first"), tmp_path / "second")
    # the same bytes once more, elsewhere, are the same source
    run = _go(_first(source), tmp_path / "again")
    made.ledger.store.delete(made.ledger.commits.key(0))
    assert _go(_second(tmp_path / "again"), tmp_path / "second").verify().verified
    commit = run.ledger.commits.get(1)
    run.ledger.store.put(run.ledger.commits.key(1), encode(replace(commit, digest="0" * 64)))
    with pytest.raises(StaleResume, match=r"the run that it reads, of the plan [0-9a-f]+, was made again"):
        _go(_second(tmp_path / "again"), tmp_path / "second")


def _refusal(place: object, text: str = "shout", format: str | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        discover([str(place)], Fields(text=text), format)
    return f"{caught.value.message} {caught.value.hint}"


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, write_jsonl: Write) -> None:
    run = _go(_first(write_jsonl(ROWS)), tmp_path / "first")
    place = f"run:{tmp_path}/first"
    assert "no run found there" in _refusal(f"run:{tmp_path}/nowhere")
    assert "no field 'nonsense'" in _refusal(place, "nonsense")
    assert "--format csv has no meaning for a run" in _refusal(place, format="csv")
    with pytest.raises(SourceError, match="cannot be combined"):
        discover([place, str(tmp_path / "items.jsonl")], Fields(text="shout"))
    ledger = Ledger(tmp_path / "first")
    commit = run.ledger.commits.get(2)
    ledger.state.want("somebody")
    ledger.state.fail("somebody", "Too many rows failed.", "Mend them.")
    assert "has failed: Too many rows failed. Mend them." in _refusal(place)
    ledger.store.delete(run.ledger.commits.key(2))
    shards = len(run.plan.shards)
    assert f"first is not finished: 1 of {shards} shards are not done." in _refusal(place)
    assert f"shardmill resume {tmp_path}/first" in _refusal(place)
    ledger.state.want("somebody")
    ledger.commits.add(commit)
    ledger.store.put(commit.part, b"short")
    assert f"{commit.part} is damaged: it has 5 bytes" in _refusal(place)
    ledger.store.delete(commit.part)
    assert f"{commit.part} is gone" in _refusal(place)


def test_from_the_command_line(shardmill: Cli, tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl(ROWS)
    options = ("--text", "text", "--id", "id", "--device", "cpu", "--workers", 1, "--max-errors", 3)
    assert shardmill("run", source, "--task", SHOUTING, *options, "--out", tmp_path / "first").status == 0
    said = shardmill("plan", f"run:{tmp_path}/first", "--text", "shout", "--model", "all-MiniLM-L6-v2")
    assert said.status == 0, said
    assert "parquet files" in said.out
    said = shardmill("split", f"run:{tmp_path}/first", "--out", tmp_path / "chunks", "--items", 20)
    assert said.status == 0, said
