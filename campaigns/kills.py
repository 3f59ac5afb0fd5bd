"""SIGKILLs at random instants: real workers and parents, on a local disk, in an S3 store and into PostgreSQL.

python -m campaigns.kills --kills 1000 [--minutes 30] [--record kills.jsonl]

Workers come from a fork server, so that starting one costs little; each is a process of its own. A killed parent leaves
its workers behind, and the next parent places more beside them. One that gives up is started again, too. After each
run the result is proved. With `--record`, finished runs are appended to a file, and a later call goes on from there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from campaigns.killing import GAVE_UP, Forked, enter, keep_outcome, kill, make_parser, processes, read_outcomes, servers
from shardmill.core.devices import Device
from shardmill.core.errors import WorkerFailed
from shardmill.engines.local import LocalEngine, LocalPlacement, _Seat
from shardmill.engines.process import name_worker, worker_environment
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from tests.support.corpora import fake_rows

KINDS = ("local", "s3", "postgres")
WORKERS, ROWS = 3, 1500
KILLS_PER_RUN = 40
KILL_EVERY_S = 0.2
# One kill in this many is the parent's.
PARENTS = 16
# A run that takes longer hangs.
PATIENCE_S = 600.0

processes.set_forkserver_preload(
    ["shardmill.worker.__main__", "shardmill.testing", "shardmill.run", "shardmill.sinks.postgres", "obstore"]
)


class ForkedEngine(LocalEngine):
    """The local engine, with workers from the fork server. `pids` is a folder with a file per process."""

    def __init__(self, pids: Path) -> None:
        super().__init__([Device("cpu", "cpu", 1)] * WORKERS, max_restarts=1_000_000)
        self.pids = pids

    def start(self, run: str) -> LocalPlacement:
        placement = ForkedPlacement(run, self.devices, self.max_restarts, self.stuck_s)
        placement.pids = self.pids
        placement.start()
        return placement


class ForkedPlacement(LocalPlacement):
    pids: Path

    def _place(self, seat: _Seat) -> None:
        seat.worker = name_worker(seat.number)
        environment = worker_environment(seat.worker, seat.device, seat.number / len(self._seats))
        seat.process = Forked(work, self._run, environment, self.pids)  # type: ignore[assignment]
        seat.placed_at = time.time()


def work(run: str, environment: dict[str, str], pids: Path) -> None:
    from shardmill.worker.__main__ import main

    enter(pids, "worker")
    os.environ.update(environment)
    sys.exit(main(["", run]))


def coordinate(spec: Spec, run: str, pids: Path) -> None:
    enter(pids, "parent")
    try:
        start(spec, run, engine=ForkedEngine(pids))
    except WorkerFailed:
        sys.exit(GAVE_UP)


def kill_one(pids: Path, choose: random.Random) -> str:
    """Kill a worker, seldom the parent; returns which it was, or "" if nobody was there."""
    role = "parent" if choose.randrange(PARENTS) == 0 else "worker"
    found = sorted(pids.glob(f"{role}-*"))
    choose.shuffle(found)
    return role if any(map(kill, found)) else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str
    workers: int
    parents: int
    rows: int
    lost: int
    doubled: int
    errors: int
    verified: bool
    seconds: float


def run_once(kind: str, url: str, wanted: int, folder: Path, seed: int) -> Outcome:
    """One run under kills until it is complete, and its proof."""
    choose, killed, began = random.Random(seed), Counter[str](), time.monotonic()
    rows = fake_rows(ROWS)
    source, pids = folder / "items.jsonl", folder / "pids"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pids.mkdir()
    out = f"{url}/{uuid.uuid4().hex}" if kind == "s3" else str(folder / "run")
    table = f"kills_{uuid.uuid4().hex[:12]}"
    spec = _spec(source, {"url": url, "table": table} if kind == "postgres" else None)
    parent = Forked(coordinate, spec, out, pids)
    while (status := parent.poll()) != 0:
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"{out} hangs; its log is {pids / 'log'}")
        if status is not None:
            if status not in (-signal.SIGKILL, GAVE_UP):
                raise SystemExit(f"the parent of {out} ended with {status}:\n{(pids / 'log').read_text()[-4000:]}")
            parent = Forked(coordinate, spec, out, pids)
        time.sleep(choose.expovariate(1 / KILL_EVERY_S))
        if sum(killed.values()) < wanted and (role := kill_one(pids, choose)):
            killed[role] += 1
    for path in pids.glob("worker-*"):
        kill(path)
    found = Run(out)
    report = found.verify(sample=16, rows=ROWS)
    ids = Counter(_ids(url, table) if kind == "postgres" else found.table(["id"]).column("id").to_pylist())
    if not report.verified:
        print(f"{out} is not verified: {[c for c in report.checks if not c.ok]}", file=sys.stderr)
    return Outcome(
        kind=kind,
        workers=killed["worker"],
        parents=killed["parent"],
        rows=ROWS,
        lost=sum(row["id"] not in ids for row in rows),
        doubled=sum(count - 1 for count in ids.values()),
        errors=report.errors,
        verified=report.verified,
        seconds=round(time.monotonic() - began, 1),
    )


def _spec(source: Path, to: dict[str, str] | None) -> Spec:
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    work |= {"params": {"delay_s": 0.08}, **({"to": to} if to else {})}
    return make_spec(
        work, {"shard_bytes": 2_000, "batch_tokens": 400, "lease_s": 5.0, "batch_rows": 16, "index": "none"}
    )


def _ids(url: str, table: str) -> list[str]:
    import psycopg

    with psycopg.connect(url) as connection:
        ids = [row[0] for row in connection.execute(f"SELECT id FROM {table}")]
        connection.execute(f"DROP TABLE {table}")
    return ids


def main() -> None:
    asked = make_parser(__doc__, KINDS, 1000).parse_args()
    kinds = asked.only or list(KINDS)
    done = read_outcomes(asked.record, Outcome)
    deadline = time.monotonic() + asked.minutes * 60
    describe_machine()
    with tempfile.TemporaryDirectory(prefix="kills-") as name, servers(Path(name), kinds) as found:
        urls = {"local": "", **found}
        while (left := asked.kills - sum(o.workers + o.parents for o in done)) > 0 and time.monotonic() < deadline:
            kind, number = kinds[len(done) % len(kinds)], len(done)
            folder = Path(name) / f"{number:04d}"
            folder.mkdir()
            done.append(run_once(kind, urls[kind], min(left, KILLS_PER_RUN), folder, asked.seed * 100_000 + number))
            print(done[-1], file=sys.stderr, flush=True)
            keep_outcome(asked.record, done[-1])
    _report(done)
    sys.exit(any(o.lost or o.doubled or o.errors or not o.verified for o in done))


def _report(done: list[Outcome]) -> None:
    rows = []
    for kind in [*KINDS, ""]:
        of = [o for o in done if kind in ("", o.kind)]
        counts = [sum(getattr(o, name) for o in of) for name in ("workers", "parents", "rows", "lost", "doubled")]
        verified = f"{sum(o.verified for o in of)} of {len(of)}"
        errors = sum(o.errors for o in of)
        rows.append([kind or "all", str(len(of)), *(f"{count:,}" for count in (*counts, errors)), verified])
    head = ["place", "runs", "workers killed", "parents killed", "rows", "lost", "doubled", "errors", "verified"]
    print_table(head, rows)


if __name__ == "__main__":
    main()
