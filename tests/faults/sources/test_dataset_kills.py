"""Runs over datasets of other libraries whose processes are killed: the rest is read, on a disk and in S3."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.ledger import Ledger
from shardmill.run import Run, resume
from shardmill.store import open_store
from shardmill.store.clients import find_endpoint
from tests.support.libraries import needed
from tests.support.mds import write_mds
from tests.support.waiting import wait_for

lance = needed("lance")
ROWS = [{"id": i, "text": f"text {i} " + "x" * (i * 7 % 40)} for i in range(900)]

PARENT = """
import json, sys
from shardmill.run import start
from shardmill.plan.spec import make_spec
work, execution = json.loads(sys.argv[1])
start(make_spec(work, execution), sys.argv[2])
"""


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.services)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue('s3_server')}/{uuid.uuid4().hex}"


def _write_samples(folder: Path, place: str) -> dict[str, str]:
    for number in range(6):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for row in ROWS[number * 150 : number * 150 + 150]:
                members = {"txt": str(row["text"]).encode(), "json": json.dumps({"id": row["id"]}).encode()}
                for suffix, data in members.items():
                    about = tarfile.TarInfo(f"{row['id']:06}.{suffix}")
                    about.size = len(data)
                    archive.addfile(about, io.BytesIO(data))
    _put(folder, place)
    return {"source": f"{place}/data", "format": "webdataset", "text": "txt"}


def _write_mds(folder: Path, place: str) -> dict[str, str]:
    shards = [ROWS[start : start + 150] for start in range(0, 900, 150)]
    _put(write_mds(folder, {"id": "int", "text": "str"}, shards), place)
    return {"source": f"{place}/data", "text": "text"}


def _write_lance(folder: Path, place: str) -> dict[str, str]:
    address = f"{place}/data.lance"
    endpoint = find_endpoint(address) if place.startswith("s3") else ""
    options = {"aws_endpoint": endpoint, "allow_http": "true"} if endpoint else None
    lance.write_dataset(pa.Table.from_pylist(ROWS), address, max_rows_per_file=200, storage_options=options)
    return {"source": address, "text": "text"}


def _put(folder: Path, place: str) -> None:
    store = open_store(f"{place}/data")
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())


@pytest.mark.parametrize("write", [_write_samples, _write_mds, _write_lance], ids=["webdataset", "mds", "lance"])
def test_a_killed_run_resumes(place: str, write: Any, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    work = {**write(tmp_path / "made", place), "id": "id", "task": "shardmill.testing:FakeTask"}
    work["params"] = {"delay_s": 0.01}
    execution = {"shard_bytes": 8_000, "lease_s": 2.0, "workers": 2, "batch_tokens": 300}
    run = f"{place}/run"
    given = json.dumps([work, execution])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, given, run], stderr=subprocess.DEVNULL)
    wait_for(lambda: Ledger(run).find_plan() is not None and len(Ledger(run).commits.shards()) >= 2)
    parent.kill()
    parent.wait()
    resume(run)
    assert Run(run).table(["id"]).column("id").to_pylist() == [*range(900)]
    report = Run(run).verify()
    assert report.verified, report
