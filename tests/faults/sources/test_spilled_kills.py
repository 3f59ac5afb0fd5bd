"""Data in memory and pipes: killed while they are spilled, before the plan and in the middle of the run; run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.store import open_store
from tests.support.corpora import fake_rows
from tests.support.waiting import PATIENCE_S

ROWS = fake_rows(3000)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CELL = """
import os, signal, sys
import pandas as pd
from shardmill.run import running
from shardmill.run.carrying import carry_out
from shardmill.sources.held import find_held
from shardmill.testing import InProcessEngine, crash_at
from tests.support.corpora import fake_rows

kind, when, out = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def rows():
    for number, row in enumerate(fake_rows(3000)):
        if when == "spill" and number == 2990:
            die()
        yield row

if when == "spill":
    from shardmill.run import spilling
    plain = spilling.copy_pipe
    spilling.copy_pipe = lambda *given: (plain(*given), die())
if when == "plan":
    running.write_plan = lambda *_, **__: die()
source = {"frame": lambda: find_held(pd.DataFrame(fake_rows(3000))), "iterator": lambda: find_held(rows())}
work = {"source": "-" if kind == "pipe" else source[kind](), "text": "text", "id": "id"}
hook = {"on_step": crash_at("committed", after=3)} if when == "run" else {}
carry_out({**work, "task": "shardmill.testing:FakeTask"}, {"shard_bytes": 20_000}, out, engine=InProcessEngine(**hook))
"""


def cell(kind: str, when: str, out: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", CELL, kind, when, out], input=LINES, capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.mark.parametrize("where", ["disk", "s3"])
@pytest.mark.parametrize("kind", ["frame", "iterator", "pipe"])
def test_the_same_cell_resumes_after_kills(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, where: str
) -> None:
    folder = request.getfixturevalue("s3_server") if where == "s3" else str(tmp_path)
    out = f"{folder}/{uuid.uuid4().hex}"
    if kind != "frame":
        assert cell(kind, "spill", out) == -signal.SIGKILL
        assert list(open_store(out).list("")) == []
    assert cell(kind, "plan", out) == -signal.SIGKILL
    (spilled,) = open_store(out).list("")
    assert Ledger(out).find_plan() is None
    assert cell(kind, "run", out) == -signal.SIGKILL
    done = Ledger(out).commits.shards()
    assert 3 <= len(done) < len(Ledger(out).plan().shards)
    parts = {entry.key: entry.tag for entry in open_store(out).list("parts/")}
    assert cell(kind, "", out) == 0
    assert list(open_store(out).list("spilled/")) == [spilled]
    after = {entry.key: entry.tag for entry in open_store(out).list("parts/")}
    committed = {Ledger(out).commits.read()[shard].part for shard in done}
    assert {key: parts[key] for key in committed} == {key: after[key] for key in committed}
    run = Run(out)
    assert run.verify().verified
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in ROWS]
    assert list(tmp_path.glob("*/spilled/.*")) == []
