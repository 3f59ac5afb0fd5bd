"""SIGKILLs at every step of refreshes, prunes and rollbacks, on a local disk and in an S3 store, while others read.

python -m campaigns.refresh_kills --kills 400 [--only s3] [--minutes 60] [--record refresh_kills.jsonl]

Steps are the lines of the code of editions, recipes, ledger and stores that call, enter or leave a function. A process
kills itself at one of them, drawn from those that an undisturbed one comes to and that no process died at so far. The
same command is started again until it ends, sometimes two at once. One in some is without an end of its own, and
completes what the others left. Two processes read all rows all the while, and compare them with the source in the state
that their edition was made from. With `--record`, finished runs are appended to a file, and a later call goes on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, print_table
from campaigns.edited_source import Rows, compare_rows
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
from shardmill import ledger, store
from shardmill.core import permission
from shardmill.core.errors import EditionPruned, Preempted, RunExists, StaleResume, UsageError
from shardmill.ledger import Editions, editions
from shardmill.plan.spec import make_spec
from shardmill.run import Run, comparing, pruning, refreshing, rollback, start
from shardmill.sinks import earlier, items_index, lineage, parquet, whole
from shardmill.testing import InProcessEngine

KINDS = ("local", "s3")
TASK, DIMS, ROWS = "shardmill.testing:FakeTask", 8, 60
READERS, READ_EVERY_S = 2, 0.02
# A run gets so many refreshes; after each, the one before is gone back to, refreshed again, and the others are pruned.
ROUNDS = 4
# One process in this many has no end of its own, and one has another beside it.
CALM, PAIRS = 6, 4
PATIENCE_S = 300.0
_OWN = (refreshing, comparing, pruning, rollback, earlier, items_index, lineage, parquet, whole)
CODE = (*(str(module.__file__) for module in _OWN), *(f"{Path(str(m.__file__)).parent}/" for m in (ledger, store)))

# What each process imports again as its main module.
processes.set_forkserver_preload(
    ["campaigns.killing", "campaigns.edited_source", "benchmarks.machine", "shardmill.run.refreshing", "obstore"]
)


def act(what: str, run: str, end: tuple[str, int], pids: Path, environment: dict[str, str]) -> None:
    """What one process does: refresh, prune or go back. Rows are copied and compacted as in shards of many rows."""
    os.environ.update(environment)
    own, steps = enter(pids, what), Steps(CODE, *end)
    earlier._FEWEST_BYTES, earlier._MOST_PARTS, earlier._PARTS_LEFT, editions.GRACE_S = 64, 2, 1, 0.0
    permission.allow([TASK])
    calls: dict[str, Any] = {
        "refresh": lambda: refreshing.refresh(run, engine=InProcessEngine(), quiet=True),
        "prune": lambda: pruning.prune(run, 1),
        "rollback": lambda: rollback.roll_back(run),
    }
    try:
        sys.setprofile(steps)
        calls[what]()
    except (Preempted, EditionPruned, RunExists, StaleResume) as error:
        print(f"{what}: {error}", flush=True)
        sys.exit(GAVE_UP)
    except UsageError as error:
        print(f"{what}: {error}", flush=True)
        # There may be nothing to go back to, or another edition was chosen meanwhile.
        sys.exit(GAVE_UP if type(error) is UsageError else 1)
    finally:
        sys.setprofile(None)
        own.unlink(missing_ok=True)
    (pids / f"steps-{what}").write_text(json.dumps(steps.seen))


def read(run: str, states: Path, pids: Path, environment: dict[str, str]) -> None:
    """Read the whole result, again and again, until killed; each line of the file that is left is a read."""
    os.environ.update(environment)
    enter(pids, "read")
    with open(pids / f"reads-{os.getpid()}", "a") as file:
        while True:
            try:
                said = look(Run(run), states) or "whole"
            except (EditionPruned, Preempted):
                said = "pruned"
            except Exception as error:
                said = f"{type(error).__name__}: {error}".replace("\n", " ")
            print(said, file=file, flush=True)
            time.sleep(READ_EVERY_S)


def look(found: Run, states: Path) -> str:
    """How the edition that is read differs from the source in the state that it was made from; "" if it does not."""
    table = found.table()
    rows = json.loads((states / found.plan.stat.files[0].tag).read_text())
    wrong = compare_rows(table, rows, DIMS)
    return f"{found.ledger.url}: {wrong}" if wrong else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    kind: str
    killed: int
    steps: int
    refreshes: int
    reads: int
    pruned: int
    wrong: list[str]
    verified: bool
    seconds: float


@dataclass
class RefreshedRun:
    """A run that is refreshed under kills, its source, and its readers."""

    url: str
    folder: Path
    choose: random.Random
    died_at: set[str]
    killed: int = 0
    refreshes: int = 0
    rows: Rows = field(default_factory=list)
    edits: int = 0

    def __post_init__(self) -> None:
        self.source, self.states, self.pids = (self.folder / name for name in ("items.jsonl", "states", "pids"))
        self.states.mkdir(parents=True)
        self.pids.mkdir()
        self.rows = [{"id": f"k{n}", "text": f"text {n}", "n": n} for n in range(ROWS)]

    def make(self) -> None:
        self.write()
        work = {"source": str(self.source), "text": "text", "id": "id", "keep": "n", "task": TASK}
        settings = {"shard_bytes": 800, "lease_s": 2.0, "index": "none"}
        start(make_spec({**work, "params": {"dims": DIMS}}, settings), self.url, engine=InProcessEngine(), quiet=True)

    def write(self) -> None:
        """The source in its next state, of which readers know before it is there."""
        self.edits += 1
        time_ns = (1_700_000_000 + self.edits) * 10**9
        (self.states / f"mtime-{time_ns}").write_text(json.dumps(self.rows))
        new = self.source.with_suffix(".new")
        new.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        os.utime(new, ns=(time_ns, time_ns))
        new.rename(self.source)

    def edit(self) -> None:
        rows, choose = self.rows, self.choose
        for place in choose.sample(range(len(rows)), 4):
            rows[place] = {**rows[place], "text": f"edited {self.edits} {place}"}
        place = choose.randrange(len(rows))
        rows[place] = {**rows[place], "n": -self.edits}
        del rows[choose.randrange(len(rows))]
        rows.insert(choose.randrange(len(rows)), {"id": f"new{self.edits}", "text": f"new {self.edits}", "n": 0})
        self.write()

    def complete(self, what: str, kills: int) -> None:
        """Start a command until one of its processes ends well, while so many others are killed."""
        wanted, began = self.killed + kills, time.monotonic()
        while time.monotonic() - began < PATIENCE_S:
            ends = [self._draw_end(what) if self.killed < wanted and self.choose.randrange(CALM) else ("", 0)]
            ends += [("", 0)] if self.choose.randrange(PAIRS) == 0 else []
            begun = [Forked(act, what, self.url, end, self.pids, dict(os.environ)) for end in ends]
            for process in begun:
                process.wait(PATIENCE_S)
            statuses = [process.poll() for process in begun]
            self.killed += statuses.count(-signal.SIGKILL)
            if left := {*statuses} - {0, GAVE_UP, -signal.SIGKILL}:
                raise SystemExit(f"{what} of {self.url} ended with {left}:\n{(self.pids / 'log').read_text()[-4000:]}")
            if self.choose.random() < 0.1 and what == "refresh":
                self.edit()
            elif 0 in statuses or (what == "rollback" and GAVE_UP in statuses):
                return
            time.sleep(0.3 * (GAVE_UP in statuses))
        raise SystemExit(f"{what} of {self.url} hangs; its log is {self.pids / 'log'}")

    def _draw_end(self, what: str) -> tuple[str, int]:
        """A step that nobody died at, and one of the times that a process comes to it."""
        path = self.pids / f"steps-{what}"
        steps: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
        left = sorted(steps.keys() - {step for step in self.died_at if step in steps}) or sorted(steps)
        if not left:
            return "", 0
        step = self.choose.choice(left)
        self.died_at.add(step)
        return step, 1 + self.choose.randrange(steps[step])


def run_once(
    kind: str, url: str, kills: int, folder: Path, seed: int, died_at: set[str], rounds: int = ROUNDS
) -> Outcome:
    """One run with some refreshes under kills, and its proof."""
    began = time.monotonic()
    run = RefreshedRun(f"{url or folder}/run", folder, random.Random(f"refresh kills {seed}"), died_at)
    run.make()
    readers = [Forked(read, run.url, run.states, run.pids, dict(os.environ)) for _ in range(READERS)]
    try:
        for number in range(rounds):
            left = (kills - run.killed) // (rounds - number)
            run.edit()
            run.complete("refresh", left // 2)
            run.complete("rollback", left // 8)
            run.complete("refresh", left // 8)
            run.complete("prune", left // 4)
            run.refreshes += 1
        run.complete("refresh", 0)
        run.complete("prune", 0)
    finally:
        for path in run.pids.glob("read-*"):
            kill(path)
        for reader in readers:
            reader.wait(PATIENCE_S)
    said = Counter(line for path in run.pids.glob("reads-*") for line in path.read_text().splitlines())
    wrong = [line for line in said if line not in ("whole", "pruned")]
    found = Run(run.url)
    wrong += [each for each in [look(found, run.states)] if each]
    if (there := json.loads((run.states / found.plan.stat.files[0].tag).read_text())) != run.rows:
        wrong.append(f"the last refresh has {len(there)} rows of an earlier state")
    wrong += find_left(run.url)
    return Outcome(
        kind=kind,
        killed=run.killed,
        steps=len(died_at),
        refreshes=run.refreshes,
        reads=said["whole"],
        pruned=said["pruned"],
        wrong=wrong,
        verified=found.verify(sample=8, report=False).verified,
        seconds=round(time.monotonic() - began, 1),
    )


def find_left(url: str) -> list[str]:
    """Parts of editions that were pruned, which no other edition names."""
    of_run = Editions(url)
    every = of_run.all()
    needed = {
        part.place(url)
        for edition in every
        if not edition.pruned
        for ledger in [Run(of_run.place(edition.number)).ledger]
        for commit in ledger.commits.read().values()
        for part in parquet.read_borrowed(ledger.store, commit)
    }
    gone = [of_run.open(edition.number) for edition in every if edition.pruned]
    left = {f"{store.url}/{entry.key}" for store in gone for entry in store.list("parts/")}
    return [f"{place} is left, and nobody needs it" for place in sorted(left - needed)]


def main() -> None:
    asked = make_parser(__doc__, KINDS, 400).parse_args()
    kinds = asked.only or list(KINDS)
    done = read_outcomes(asked.record, Outcome)
    deadline = time.monotonic() + asked.minutes * 60
    died_at: dict[str, set[str]] = {kind: set() for kind in kinds}
    describe_machine()
    with tempfile.TemporaryDirectory(prefix="refresh-kills-") as name, servers(Path(name), kinds) as found:
        urls = {"local": "", **found}
        while (left := asked.kills - sum(o.killed for o in done)) > 0 and time.monotonic() < deadline:
            kind, number = kinds[len(done) % len(kinds)], len(done)
            folder = Path(name) / f"{number:04d}"
            folder.mkdir()
            url = f"{urls[kind]}/{number:04d}" if urls[kind] else ""
            done.append(run_once(kind, url, min(left, 40), folder, asked.seed * 100_000 + number, died_at[kind]))
            print(done[-1], file=sys.stderr, flush=True)
            keep_outcome(asked.record, done[-1])
    _report(done)
    sys.exit(any(o.wrong or not o.verified for o in done))


def _report(done: list[Outcome]) -> None:
    rows = []
    for kind in [*KINDS, ""]:
        if not (of := [o for o in done if kind in ("", o.kind)]):
            continue
        steps = [max(o.steps for o in of if o.kind == each) for each in {o.kind for o in of}]
        counts = [sum(getattr(o, name) for o in of) for name in ("killed", "refreshes", "reads", "pruned")]
        wrong, verified = sum(len(o.wrong) for o in of), f"{sum(o.verified for o in of)} of {len(of)}"
        cells = [len(of), counts[0], sum(steps), *counts[1:], wrong]
        rows.append([kind or "all", *(f"{cell:,}" for cell in cells), verified])
    head = ["place", "runs", "killed", "steps", "refreshes", "whole reads", "reads of a pruned edition", "wrong"]
    print_table([*head, "verified"], rows)


if __name__ == "__main__":
    main()
