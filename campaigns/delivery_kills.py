"""SIGKILLs at random instants while finished runs are delivered: real processes, to every store that rows go into.

python -m campaigns.delivery_kills --kills 200 [--only lance] [--minutes 60] [--record delivery_kills.jsonl]

`--kills` are those of each store. A table gets two runs, one after the other, in lots of one shard. One process or two
at once deliver a run, by `resume --into` or by `load --from`, until one of them ends with all rows delivered; then
another delivers what is there already. Half of the processes are killed at random instants, if they are in the delivery
then. The others kill themselves at a step of the store's code that is drawn, each as often as any other: before or
after the call of a function, which a random instant seldom hits. Both come after a tenth of a delivery, on average.
Then all rows of the table are read and compared with those of both runs, and `verify --to` compares each run with the
table. With `--record`, finished tables are appended to a file, and a later call goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from campaigns.killing import (
    GAVE_UP,
    Forked,
    Steps,
    enter,
    keep_outcome,
    kill,
    make_parser,
    processes,
    read_outcomes,
    servers,
)
from shardmill import sinks
from shardmill.core.errors import StepFailed, WorkerFailed
from shardmill.results import delivery
from shardmill.run import Run, resume, start
from shardmill.sinks.address import open_delivery
from shardmill.sinks.base import Delivery
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.points import SERVERS, address_at, new_port

# Addresses of a table, and what a process that delivers there imports.
STORES = {
    "lance": ("lance:{folder}/{table}.lance", ["lance"]),
    "lance-s3": ("lance:{s3}/{table}.lance", ["lance", "obstore"]),
    "delta": ("delta:{folder}/{table}", ["deltalake"]),
    "delta-s3": ("delta:{s3}/{table}", ["deltalake", "obstore"]),
    "iceberg": ("iceberg:disk/shop.{table}", ["pyiceberg.catalog.sql", "pyiceberg.io.pyarrow"]),
    "iceberg-s3": ("iceberg:bucket/shop.{table}", ["pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "obstore"]),
    "duckdb": ("duckdb:{folder}/rows.duckdb#{table}", ["duckdb"]),
    "sqlite": ("sqlite:{folder}/rows.db#{table}", ["sqlite3"]),
    "postgres": ("{postgres}#{table}", ["psycopg", "shardmill.sinks.databases.postgres"]),
    "chroma": ("{chroma}{table}", ["chromadb"]),
    "redis": ("{redis}{table}", ["redis"]),
    "milvus": ("milvus:{folder}/{table}.db#rows", ["pymilvus", "milvus_lite.adapter.grpc.server"]),
    "milvus-server": ("{milvus_server}{table}", ["pymilvus"]),
    "qdrant": ("qdrant:{folder}/{table}#rows", ["qdrant_client"]),
}
# What each process imports again as its main module.
IMPORTED = ["benchmarks.machine", "campaigns.killing", "shardmill.run", "shardmill.testing", "tests.support.points"]
IMPORTED += ["tests.support.corpora", "pyarrow.pandas_compat", "shardmill.sinks.kinds", "shardmill.results.verify"]
# One process at a time may have the folder open, and others do not wait for long.
ALONE = ("milvus", "qdrant")
CODE = tuple(f"{Path(sinks.__file__).parent}/{name}/" for name in ("lakes", "databases", "points"))
ROWS, RUNS = 400, 2
LOTS_AT_ONCE = 4
KILLS_PER_RUN = 25
# So many processes die in a delivery, on average, before it is complete.
LIVES = 10
# One process in this many has another beside it.
PAIRS = 3
# A delivery that takes longer hangs.
PATIENCE_S = 300.0


def deliver(run: str, address: str, way: str, end: tuple[str, int], pids: Path) -> None:
    """What one process does, with small lots and small commits, so that there are many."""
    delivery._LOT_BYTES, Delivery.lots_at_once = 1, LOTS_AT_ONCE
    own, steps = enter(pids, "parent"), Steps(CODE, *end)
    try:
        sys.setprofile(steps)
        if way == "resume":
            resume(run, {"into": [address]}, quiet=True)
        else:
            Run(run).deliver(address)
    except (StepFailed, WorkerFailed) as error:
        print(f"{address}: {error}", flush=True)
        sys.exit(GAVE_UP)
    finally:
        sys.setprofile(None)
        own.unlink(missing_ok=True)
    (pids / "steps").write_text(json.dumps(steps.seen))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a delivery takes, and how often it comes to each step."""

    took_s: float
    steps: dict[str, int]

    def draw_end(self, choose: random.Random) -> tuple[str, int]:
        """A step, and how often a process comes to it."""
        step = choose.choice(sorted(self.steps))
        return step, 1 + int(choose.expovariate(LIVES / self.steps[step]))


@dataclass
class Deliveries:
    """Processes that deliver a run to a table, and those of them that were killed."""

    run: Run
    address: str
    pids: Path
    choose: random.Random
    pairs: bool
    killed: int = 0
    gave_up: int = 0

    def __post_init__(self) -> None:
        self._living: list[Forked] = []
        self._aimed: set[int | None] = set()

    def complete(self, kills: int, pace: Pace) -> None:
        """Deliver until a process says that all rows are there, while so many others are killed."""
        wanted, began = self.killed + kills, time.monotonic()
        while not self._look():
            while len(self._living) < (2 if self.pairs and self.choose.randrange(PAIRS) == 0 else 1):
                is_aimed = self.killed < wanted and self.choose.random() < 0.5
                self._begin(is_aimed, pace.draw_end(self.choose) if is_aimed else ("", 0))
            self._wait(self.choose.expovariate(LIVES / pace.took_s))
            if self.killed < wanted:
                self._kill(self.choose.choice(self._living))
            if time.monotonic() - began > PATIENCE_S:
                raise SystemExit(f"the delivery to {self.address} hangs; its log is {self._log}")
        for process in self._living:
            process.wait(PATIENCE_S)
        self._look()

    def _begin(self, is_aimed: bool, end: tuple[str, int]) -> None:
        way = self.choose.choice(("resume", "load"))
        process = Forked(deliver, self.run.ledger.url, self.address, way, end, self.pids)
        self._living.append(process)
        if is_aimed:
            self._aimed.add(process.pid)

    def _wait(self, pause_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._living[0].wait(pause_s)

    def _look(self) -> bool:
        """Whether a process has ended with everything delivered."""
        ended = [(process, process.poll()) for process in self._living]
        self._living = [process for process, status in ended if status is None]
        for _, status in ended:
            if status not in (None, 0, GAVE_UP, -signal.SIGKILL):
                raise SystemExit(f"a delivery to {self.address} ended with {status}:\n{self._log.read_text()[-4000:]}")
        self.gave_up += sum(status == GAVE_UP for _, status in ended)
        self.killed += sum(status == -signal.SIGKILL for _, status in ended)
        return any(status == 0 for _, status in ended)

    def _kill(self, victim: Forked) -> None:
        """Kill a process in the delivery, not before it began, nor after its end; but not one that dies by itself."""
        found = self.pids / f"parent-{victim.pid}"
        if victim.pid not in self._aimed and found.exists() and kill(found):
            victim.wait(PATIENCE_S)

    @property
    def _log(self) -> Path:
        return self.pids / "log"


@dataclass(frozen=True, slots=True)
class Outcome:
    store: str
    deliveries: int
    killed: int
    gave_up: int
    expected: int
    found: int
    doubled: int
    lost: int
    verified: int
    seconds: float


def fill_table(store: str, address: str, runs: list[Run], pace: Pace, kills: int, seed: int, pids: Path) -> Outcome:
    """Deliver runs to a new table under kills, and read it back."""
    began, killed, gave_up = time.monotonic(), 0, 0
    pids.mkdir()
    for n, run in enumerate(runs):
        parents = Deliveries(run, address, pids, random.Random(f"{seed} {n}"), store not in ALONE)
        parents.complete(min(KILLS_PER_RUN, kills - killed), pace)
        parents.complete(0, pace)
        killed, gave_up = killed + parents.killed, gave_up + parents.gave_up
    expected = {row["id"]: row["embedding"] for run in runs for row in run.table().to_pylist()}
    found = Counter(id for run in runs[:1] for id in read_ids(run, address))
    verified = sum(is_verified(run, address) for run in runs)
    return Outcome(
        store=store,
        deliveries=len(runs),
        killed=killed,
        gave_up=gave_up,
        expected=len(expected),
        found=sum(found.values()),
        doubled=sum(times - 1 for times in found.values()),
        lost=sum(id not in found for id in expected),
        verified=verified,
        seconds=round(time.monotonic() - began, 1),
    )


def read_ids(run: Run, address: str) -> list[str]:
    """The ids of all rows of a table."""
    there = open_delivery(address, delivery.shipment_of(run.ledger, run.plan))
    try:
        return [id for batch in there.scan() for id in batch.column("id").to_pylist()]
    finally:
        there.close()


def is_verified(run: Run, address: str) -> bool:
    report = run.verify(sample=0, to=address)
    if wrong := [check for check in report.checks if not check.ok]:
        print(f"{run.ledger.url} in {address} is not verified: {wrong}", file=sys.stderr)
    return report.verified


def make_runs(folder: Path) -> list[Run]:
    made = []
    for n in range(RUNS):
        source = folder / f"items{n}.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(ROWS, n * ROWS)))
        spec = fake_spec(source, workers=1, shard_bytes=400)
        made.append(start(spec, folder / f"run{n}", engine=InProcessEngine(), quiet=True))
    return made


def measure(store: str, address: str, runs: list[Run], pids: Path) -> Pace:
    """An undisturbed delivery, of the second run: with the library loaded and the table there."""
    pids.mkdir()
    for run in runs:
        began = time.monotonic()
        Deliveries(run, address, pids, random.Random(0), False).complete(0, Pace(PATIENCE_S, {}))
    pace = Pace(time.monotonic() - began, json.loads((pids / "steps").read_text()))
    print(f"{store}: a delivery takes {pace.took_s:.1f} s and has {len(pace.steps)} steps", file=sys.stderr, flush=True)
    return pace


@contextlib.contextmanager
def places(folder: Path, stores: list[str]) -> Iterator[dict[str, str]]:
    """What the addresses of the stores are made of; the servers are our own."""
    kinds = {"s3" for store in stores if store.endswith("-s3")} | ({"postgres"} & {*stores})
    with contextlib.ExitStack() as stack:
        found = {"folder": str(folder), **stack.enter_context(servers(folder, kinds))}
        for name in (store.replace("-", "_") for store in stores):
            if name in SERVERS:
                port = new_port()
                # Otherwise Redis syncs its log once a second, and a lot waits for that.
                flags = ("--appendfsync", "always") if name == "redis" else ()
                stack.enter_context(SERVERS[name](folder / name, port, *flags))
                found[name] = address_at(name, port, "")
        for catalogue, place in (("DISK", f"file://{folder}/warehouse"), ("BUCKET", f"{found.get('s3')}/warehouse")):
            os.environ[f"PYICEBERG_CATALOG__{catalogue}__URI"] = f"sqlite:///{folder}/{catalogue.lower()}.db"
            os.environ[f"PYICEBERG_CATALOG__{catalogue}__WAREHOUSE"] = place
        yield found


def main() -> None:
    asked = make_parser(__doc__, list(STORES), 200).parse_args()
    stores = asked.only or list(STORES)
    done = read_outcomes(asked.record, Outcome)
    deadline = time.monotonic() + asked.minutes * 60
    describe_machine()
    libraries = {name for store in stores for name in STORES[store][1]}
    processes.set_forkserver_preload([*IMPORTED, *sorted(libraries)])
    with tempfile.TemporaryDirectory(prefix="delivery-kills-") as name, places(Path(name), stores) as found:
        runs = make_runs(Path(name))
        for store in stores:
            address = STORES[store][0].format(table="{table}", **found)
            pace = None
            while (left := asked.kills - sum(o.killed for o in done if o.store == store)) > 0:
                if time.monotonic() > deadline:
                    break
                number = len(done)
                pace = pace or measure(store, address.format(table="calm"), runs, Path(name) / f"{store}-calm")
                table, pids = f"t{number:04d}", Path(name) / f"{store}-{number:04d}"
                seed = asked.seed * 100_000 + number
                done.append(fill_table(store, address.format(table=table), runs, pace, left, seed, pids))
                print(done[-1], file=sys.stderr, flush=True)
                keep_outcome(asked.record, done[-1])
    _report(done)
    sys.exit(any(o.lost or o.doubled or o.found != o.expected or o.verified < o.deliveries for o in done))


def _report(done: list[Outcome]) -> None:
    rows = []
    for store in [*STORES, ""]:
        if not (of := [o for o in done if store in ("", o.store)]):
            continue
        names = ("deliveries", "killed", "expected", "found", "doubled", "lost")
        counts = [f"{sum(getattr(o, name) for o in of):,}" for name in names]
        rows.append([store or "all", *counts, f"{sum(o.verified for o in of)} of {counts[0]}"])
    head = ["sink", "deliveries", "killed", "rows expected", "found", "doubled", "lost", "verified"]
    print_table(head, rows)


if __name__ == "__main__":
    main()
