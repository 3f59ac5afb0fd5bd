"""Runs over Avro files and over Delta and Iceberg tables, killed and run again, on a disk and in S3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from shardmill.ledger import Ledger
from shardmill.run import Run
from shardmill.store import open_store
from tests.support.corpora import fake_rows
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S

fastavro, deltalake, sql = needed("fastavro"), needed("deltalake"), needed("pyiceberg.catalog.sql")
ROWS = fake_rows(3000)
RUN = """
import json, sys
from shardmill.run.carrying import carry_out
from shardmill.testing import InProcessEngine, crash_at

work, out, kill = sys.argv[1:]
hook = {"on_step": crash_at("committed", after=3)} if kill else {}
carry_out(json.loads(work), {"shard_bytes": 2_000}, out, engine=InProcessEngine(**hook))
"""


def write_avro(folder: Path) -> None:
    names = list(ROWS[0])
    schema = {"type": "record", "name": "item", "fields": [{"name": name, "type": "string"} for name in names]}
    with (folder / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, ROWS, "deflate")


def write_delta(folder: Path) -> None:
    deltalake.write_deltalake(folder, pa.Table.from_pylist(ROWS[:10]))
    deltalake.DeltaTable(folder).delete()
    for at in range(0, len(ROWS), 300):
        deltalake.write_deltalake(folder, pa.Table.from_pylist(ROWS[at : at + 300]), mode="append")


def write_iceberg(folder: Path) -> None:
    catalogue = sql.SqlCatalog("test", uri="sqlite:///:memory:", warehouse=f"file://{folder}")
    catalogue.create_namespace("shop")
    table = catalogue.create_table("shop.rows", pa.Table.from_pylist(ROWS).schema, location=f"file://{folder}")
    table.append(pa.Table.from_pylist(ROWS[:10]))
    table.delete("id != 'none'")
    for at in range(0, len(ROWS), 300):
        table.append(pa.Table.from_pylist(ROWS[at : at + 300]))
    with table.update_schema() as change:
        change.rename_column("text", "body")
    catalogue.destroy_tables()
    catalogue.engine.dispose()


WRITE = {"avro": write_avro, "delta": write_delta, "iceberg": write_iceberg}


@pytest.mark.parametrize("where", ["disk", pytest.param("s3", marks=pytest.mark.services)])
@pytest.mark.parametrize("kind", WRITE)
def test_a_killed_run_resumes(tmp_path: Path, request: pytest.FixtureRequest, kind: str, where: str) -> None:
    write: Callable[[Path], None] = WRITE[kind]
    (tmp_path / "source").mkdir()
    write(tmp_path / "source")
    root = f"{request.getfixturevalue('s3_server')}/{uuid.uuid4().hex}" if where == "s3" else str(tmp_path)
    if where == "s3":
        store = open_store(f"{root}/source")
        for file in (each for each in (tmp_path / "source").rglob("*") if each.is_file()):
            store.put(str(file.relative_to(tmp_path / "source")), file.read_bytes())
    text = "body" if kind == "iceberg" else "text"
    work = {"source": f"{root}/source", "text": text, "id": "id", "task": "shardmill.testing:FakeTask"}

    def run(kill: str) -> int:
        command = [sys.executable, "-c", RUN, json.dumps(work), f"{root}/run", kill]
        return subprocess.run(command, capture_output=True, timeout=PATIENCE_S).returncode

    assert run("kill") == -signal.SIGKILL
    ledger = Ledger(f"{root}/run")
    assert 3 <= len(ledger.commits.shards()) < len(ledger.plan().shards)
    assert run("") == 0
    done = Run(f"{root}/run")
    assert done.verify().verified
    found = done.table(["id"]).column("id").to_pylist()
    assert sorted(found) == sorted(row["id"] for row in ROWS)
