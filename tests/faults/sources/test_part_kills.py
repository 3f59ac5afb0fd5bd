"""Runs over a part of a source whose processes are killed: the rest is taken, and nothing else."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from tests.support.mariadb import MariaServer
from tests.support.services import PostgresServer
from tests.support.waiting import wait_for

ROWS = [{"id": i, "text": f"text {i} " + "x" * (i * 7 % 40), "stars": i % 5 + 1} for i in range(900)]
PART = {"where": "stars <= 3", "take": 0.8, "limit": 400}

PARENT = """
import json, sys
from shardmill.run import start
from shardmill.plan.spec import make_spec
spec = json.loads(sys.argv[1])
start(make_spec(spec["work"], spec["execution"]), sys.argv[2])
"""


def _write(path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=50)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(ROWS)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def _kill_and_resume(work: dict[str, Any], folder: Path) -> None:
    work = {"text": "text", "id": "id", "task": "shardmill.testing:FakeTask", **work, **PART}
    execution = {"shard_bytes": 1_500, "lease_s": 2.0, "workers": 2, "batch_tokens": 300}
    spec = {"work": {**work, "params": {"delay_s": 0.01}}, "execution": execution}
    run = folder / "run"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, json.dumps(spec), str(run)], stderr=subprocess.DEVNULL)
    wait_for(lambda: (run / "plan.json").exists() and len(Ledger(run).commits.shards()) >= 2)
    parent.kill()
    parent.wait()
    start(make_spec(spec["work"], execution), run)
    whole = start(make_spec({**work, "params": {}}, {"shard_bytes": 1 << 30}), folder / "whole")
    ids = Run(run).table(["id"]).column("id").to_pylist()
    assert ids == whole.table(["id"]).column("id").to_pylist()
    assert len(ids) == 400
    assert {int(each) % 5 for each in ids} == {0, 1, 2}
    report = Run(run).verify()
    assert report.verified, report


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_killed_run_over_a_part_of_a_file_resumes(tmp_path: Path, name: str) -> None:
    _kill_and_resume({"source": str(_write(tmp_path / name))}, tmp_path)


@pytest.mark.services
def test_a_killed_run_over_a_part_of_a_query_resumes(tmp_path: Path, postgres: PostgresServer) -> None:
    postgres.execute("CREATE TABLE part_docs (id integer PRIMARY KEY, text text, stars integer)")
    values = ", ".join(f"({row['id']}, '{row['text']}', {row['stars']})" for row in ROWS)
    postgres.execute(f"INSERT INTO part_docs VALUES {values}")
    _kill_and_resume({"source": postgres.url(), "query": "SELECT * FROM part_docs"}, tmp_path)


@pytest.mark.services
def test_a_killed_run_over_a_part_of_a_query_of_mysql_resumes(tmp_path: Path, mariadb: MariaServer) -> None:
    mariadb.execute("CREATE TABLE part_docs (id integer PRIMARY KEY, text text, stars integer)")
    values = ", ".join(f"({row['id']}, '{row['text']}', {row['stars']})" for row in ROWS)
    mariadb.execute(f"INSERT INTO part_docs VALUES {values}")
    _kill_and_resume({"source": mariadb.url(), "query": "SELECT * FROM part_docs"}, tmp_path)
