"""Rows per second into PostgreSQL, with precomputed vectors: shardmill compared with typical scripts.

python -m benchmarks.postgres [ROWS]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from shardmill.ledger import Claim, Ledger
from shardmill.postgres import embedded
from shardmill.postgres.batches import create_ledger
from shardmill.postgres.tables import create
from shardmill.postgres.target import TableColumn, Target
from shardmill.sinks.base import Finished
from shardmill.sinks.destination import Destination
from shardmill.sinks.postgres import PostgresSink

DIMS, BATCH = 384, 512
WORDS = np.array(["battery", "screen", "the", "and", "died", "fits", "well", "broke", "after", "two", "days"])

WAITS = """
SELECT concat_ws(' ', l.locktype, l.relation::regclass), l.mode, left(regexp_replace(a.query, '\\s+', ' ', 'g'), 60)
FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted
"""


@dataclass(frozen=True)
class Server:
    """A private server: its URL, and the CPU time of its ended sessions."""

    folder: Path
    url: str

    def cpu_s(self) -> float:
        pid = (self.folder / "postmaster.pid").read_text().split()[0]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def target(name: str) -> Target:
    return Target("public", name, ("id",), (TableColumn("id", "bigint"), TableColumn("body", "text")), ("body",), DIMS)


def make_rows(count: int) -> pa.Table:
    choose = np.random.default_rng(7)
    vectors = choose.standard_normal((count, DIMS), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    bodies = [" ".join(choose.choice(WORDS, 60)) for _ in range(count)]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMS)
    digests = pa.array([i.to_bytes(16, "big") for i in range(count)], pa.binary())
    columns = {"id": pa.array(range(count), pa.int64()), "body": pa.array(bodies), "text_digest": digests}
    return pa.table({**columns, "embedding": column})


def ours(url: str, table: str, rows: pa.Table, shard: int = 0) -> None:
    sink = PostgresSink(
        Ledger(f"memory://bench-{table}-{shard}"),
        "bench",
        Destination(url, target(table), rows.schema, batch_rows=BATCH),
    )
    staged = sink.begin(Claim(shard, "a"))
    for at in range(0, len(rows), 2 * BATCH):
        piece = rows.slice(at, 2 * BATCH)
        staged.write(piece, np.arange(at, at + len(piece)))
        staged.finish(Finished(at, len(piece), {}, lambda item, reason: {}))
    staged.seal(len(rows))
    sink.close()


def by_executemany(url: str, table: str, rows: pa.Table) -> None:
    sql = f"INSERT INTO {table} (id, body, text_digest, embedding) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
    with psycopg.connect(url) as connection:
        for batch in rows.to_batches(BATCH):
            values = [(r["id"], r["body"], r["text_digest"], str(r["embedding"])) for r in batch.to_pylist()]
            connection.cursor().executemany(sql, values)
            connection.commit()


def by_text_copy(url: str, table: str, rows: pa.Table) -> None:
    with psycopg.connect(url) as connection:
        for batch in rows.to_batches(BATCH):
            with connection.cursor().copy(f"COPY {table} (id, body, text_digest, embedding) FROM STDIN") as copy:
                for r in batch.to_pylist():
                    copy.write_row((r["id"], r["body"], r["text_digest"], str(r["embedding"])))
            connection.commit()


def timed(name: str, server: Server, table: str, rows: pa.Table, load: Callable[[], Any]) -> float:
    with psycopg.connect(server.url, autocommit=True) as connection:
        create(connection, target(table))
        began, client_s, server_s = time.perf_counter(), time.process_time(), server.cpu_s()
        load()
        took_s, client_s = time.perf_counter() - began, time.process_time() - client_s
        # CPU time counts once the session ends, a moment after the client disconnects.
        time.sleep(0.5)
        server_s = server.cpu_s() - server_s
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found == (len(rows),), found
    speed = f"{took_s:.2f} s | {len(rows) / took_s:,.0f}"
    print(f"| {name} | {len(rows):,} | {speed} | {client_s:.2f} s | {server_s:.2f} s |", flush=True)
    return took_s


def two_at_once(url: str, rows: pa.Table) -> None:
    """Run two processes on one table, and record their lock waits."""
    code = "import sys; from benchmarks.postgres import *; ours(sys.argv[1], 'two', make_rows(int(sys.argv[2])).slice("
    code += "int(sys.argv[3]), int(sys.argv[4])), int(sys.argv[3]))"
    half = len(rows) // 2
    looks, waits = 0, Counter[str]()
    done = threading.Event()

    def watch() -> None:
        nonlocal looks
        with psycopg.connect(url, autocommit=True) as connection:
            while not done.wait(0.005):
                looks += 1
                waits.update(f"{on} {mode}: {query}" for on, mode, query in connection.execute(WAITS))

    with psycopg.connect(url, autocommit=True) as connection:
        create(connection, target("two"))
    watcher = threading.Thread(target=watch)
    watcher.start()
    arguments = [(0, half), (half, len(rows) - half)]
    pair = [subprocess.Popen([sys.executable, "-c", code, url, str(len(rows)), *map(str, each)]) for each in arguments]
    assert [p.wait() for p in pair] == [0, 0]
    done.set()
    watcher.join()
    with psycopg.connect(url, autocommit=True) as connection:
        span = connection.execute(
            "SELECT extract(epoch FROM max(at) - min(at)), sum(sent) FROM shardmill.batches WHERE table_name = 'two'"
        ).fetchone()
    assert span is not None
    print(f"two at once: {float(span[1]) / float(span[0]):,.0f} rows/s; {waits.total()} waits in {looks} samples")
    for what, count in waits.most_common():
        print(f"{count} x {what}")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    folder = Path(tempfile.mkdtemp(prefix="shardmill-bench-"))
    try:
        url = embedded.start(folder / "db")
        server = Server(folder / "db", url)
        rows = make_rows(count)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            create_ledger(connection)
        print(f"| method | rows | time | rows/s | client CPU | server CPU |\n|{' --- |' * 6}")
        took_s: dict[str, list[float]] = {}
        for i in range(5):
            ways: dict[str, tuple[pa.Table, Callable[[str, str, pa.Table], None]]] = {
                "shardmill": (rows, ours),
                "COPY, text": (rows, by_text_copy),
                "executemany": (rows, by_executemany),
            }
            for name, (some, load) in ways.items():
                table = f"t{i}_{name[:4].strip().lower()}"
                took = timed(name, server, table, some, lambda load=load, t=table, s=some: load(url, t, s))  # type: ignore[misc]
                took_s.setdefault(name, []).append(took)
        for name in ("COPY, text", "executemany"):
            print(f"shardmill vs {name}: {median(took_s[name]) / median(took_s['shardmill']):.1f}x (medians)")
        two_at_once(url, rows)
    finally:
        embedded.stop(folder / "db")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
