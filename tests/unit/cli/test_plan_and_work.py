"""`shardmill plan --out` writes a run folder, and `shardmill work` runs it: a run without a parent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from shardmill import prepare
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told, write_spec
from tests.support.corpora import fake_rows, fake_spec

Write = Callable[..., Path]


def test_a_written_plan_is_the_one_that_a_run_starts_from(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    source, place = write_jsonl(fake_rows(60)), tmp_path / "run"
    spec = write_spec(tmp_path, source)
    said = shardmill("plan", "--spec", spec, "--max-errors", 3, "--out", place)
    assert said.status == 0, said.err
    assert f"shardmill work {place}" in said.err
    run = Run(place)
    assert run.plan.id in said.out
    assert run.status().state == "planned"
    assert not run.status().workers
    assert run.ledger.execution()["max_errors"] == "3"
    written = {path: path.read_bytes() for path in place.iterdir()}
    assert shardmill("plan", "--spec", spec, "--out", place).status == 0
    assert {path: path.read_bytes() for path in place.iterdir()} == written
    assert_told(shardmill("plan", "--spec", spec, "--keep", "id", "--out", place), 2, "a different run", "--fresh")
    assert shardmill("run", "--spec", spec, "--resume", "--out", place).status == 0
    assert Run(place).plan.generation == run.plan.generation
    assert Run(place).table(["id"]).num_rows == 60
    assert shardmill("plan", "--spec", spec, "--fresh", "--out", place).status == 0
    assert Run(place).plan.generation != run.plan.generation
    assert Run(place).status().shards_done == 0


def test_the_same_from_python(write_jsonl: Write, tmp_path: Path) -> None:
    spec = fake_spec(write_jsonl(fake_rows(30)))
    planned = prepare(spec, tmp_path / "run")
    assert planned.status().state == "planned"
    done = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert done.plan == planned.plan
    assert json.loads((tmp_path / "run" / "execution.json").read_text())["settings"]["places"]
