"""What does a refresh cost, beside a full run and beside reading the source once?

    python -m benchmarks.refresh [--rows 10000000] [--shares 0.01 0.1 1.0] [--workers 2] [--format jsonl]

Rows of about 170 bytes go through a task without a model that gives 384 float32 each. On each day a share of the rows,
scattered at random, has another text; half as many are gone, and as many new ones are appended. Workers compute the
full run and each refresh, which is compared with the edition before; as many processes read the source once, with the
same reader. The goal is 5 % of a full run and one reading. --folder names one with space for the source and results.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, print_table
from shardmill.core import permission
from shardmill.core.hashing import mix
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.refreshing import refresh
from shardmill.run.status.state import read_status
from shardmill.sources import Fields, open_source

DIMS = 384
WORDS = pa.array([f"word{n}" for n in range(20_000)])
WORDS_OF_A_TEXT = 14
WRITTEN_AT_ONCE = 200_000
GOAL = 0.05
TASK = "shardmill.testing:FakeTask"


class Days:
    """A source of which some rows change every day: each row has a number, and the day of its text."""

    def __init__(self, place: Path, rows: int) -> None:
        self._place, self._draws = place, np.random.default_rng(0)
        self._numbers = np.arange(rows)
        self._texts = np.zeros(rows, np.int64)
        self._made = rows
        self.write()

    def pass_one(self, share: float) -> int:
        """Change the source; how many rows are new or have another text."""
        count = int(share * len(self._numbers))
        edited = self._draws.choice(len(self._numbers), count, replace=False)
        self._texts[edited] += 1
        stays = np.ones(len(self._numbers), bool)
        stays[self._draws.choice(len(stays), count // 2, replace=False)] = False
        changed = int(stays[edited].sum()) + count // 2
        new = np.arange(self._made, self._made + count // 2)
        self._made += len(new)
        self._numbers = np.concatenate([self._numbers[stays], new])
        self._texts = np.concatenate([self._texts[stays], np.zeros(len(new), np.int64)])
        self.write()
        return changed

    def write(self) -> None:
        schema = pa.schema({"id": pa.string(), "n": pa.int64(), "text": pa.string()})
        is_parquet = self._place.suffix == ".parquet"
        out: Any = pq.ParquetWriter(self._place, schema) if is_parquet else self._place.open("wb")
        with out:
            for first in range(0, len(self._numbers), WRITTEN_AT_ONCE):
                at = slice(first, first + WRITTEN_AT_ONCE)
                numbers, texts = self._numbers[at], words_of(self._numbers[at], self._texts[at])
                ids = pc.binary_join_element_wise("id", pa.array(numbers).cast(pa.string()), "")
                if is_parquet:
                    out.write_table(pa.table([ids, pa.array(numbers), texts], schema=schema))
                    continue
                parts = ('{"id": "', ids, '", "n": ', pa.array(numbers).cast(pa.string()), ', "text": "', texts, '"}\n')
                lines = pc.binary_join_element_wise(*parts, "")
                out.write(lines.buffers()[2])


def words_of(numbers: NDArray[np.int64], days: NDArray[np.int64]) -> pa.Array:
    """The text of each row: drawn by its number and its day."""
    seeds: Any = numbers.astype(np.uint64)[:, None] << np.uint64(20) | days.astype(np.uint64)[:, None]
    drawn: Any = mix(mix(seeds) + np.arange(WORDS_OF_A_TEXT, dtype=np.uint64))
    words = pa.FixedSizeListArray.from_arrays(
        WORDS.take(pa.array(drawn.ravel() % np.uint64(len(WORDS)))), WORDS_OF_A_TEXT
    )
    return pc.binary_join(words.cast(pa.list_(pa.string())), " ")


def read_some(place: Path, worker: int, workers: int) -> int:
    """Read a worker's share of the shards of a run's source."""
    plan: Plan = Run(place).plan
    source = open_source(plan.stat, Fields.of(plan.work), plan.work.max_item_bytes)
    return sum(len(batch) for shard in plan.shards[worker::workers] for batch in source.read(shard))


def read_once(run: Path, workers: int) -> float:
    """Seconds of reading the source once, with processes that are there already."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(abs, range(workers)))
        began = time.perf_counter()
        list(pool.map(read_some, [run] * workers, range(workers), [workers] * workers))
        return time.perf_counter() - began


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def memory_of(ledger: Ledger) -> str:
    """The most memory that a worker of this edition had."""
    workers = read_status(ledger, ledger.plan()).workers
    return f"{max(w['peak_rss_bytes'] for w in workers) / 2**20:,.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--shares", type=float, nargs="*", default=(0.01, 0.1, 1.0))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--format", choices=("jsonl", "parquet"), default="jsonl")
    parser.add_argument("--folder", type=Path, help="Folder with space for the source and the results.")
    args = parser.parse_args()
    permission.allow([TASK])
    how, rows = {"workers": args.workers, "device": "cpu"}, []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        source, run = Path(folder) / f"rows.{args.format}", Path(folder) / "run"
        days = Days(source, args.rows)
        work = {"source": str(source), "text": "text", "id": "id", "keep": "n", "task": TASK, "params": {"dims": DIMS}}
        began = time.perf_counter()
        start(make_spec(work, how), run, quiet=True)
        full_s, written, memory = time.perf_counter() - began, bytes_in(run), memory_of(Ledger(run))
        reading_s = read_once(run, args.workers)
        rows.append(["the full run", f"{args.rows:,}", f"{full_s:,.1f} s", "", "", f"{written / 1e6:,.0f} MB", memory])
        for share in args.shares:
            changed = days.pass_one(share)
            began = time.perf_counter()
            done = refresh(run, how, quiet=True, allow_shrink=True)
            took_s = time.perf_counter() - began
            assert done.computed == changed, (done.computed, changed)
            edition = run / f"editions/{done.edition:06d}"
            goal_s = GOAL * full_s + reading_s
            what = f"{share:.0%} changed, {share / 2:.1%} gone, {share / 2:.1%} new"
            figures = [f"{took_s:,.1f} s", f"{goal_s:,.1f} s", f"{took_s / full_s:.1%}"]
            rows.append(
                [what, f"{done.computed:,}", *figures, f"{bytes_in(edition) / 1e6:,.0f} MB", memory_of(Ledger(edition))]
            )
            print(json.dumps(rows[-1]), flush=True)
        shutil.rmtree(run)
    describe_machine()
    print(f"Reading the source once: {reading_s:.1f} s.\n")
    head = ["", "rows computed", "wall time", "5 % of a full run and one reading", "of a full run", "written", "memory"]
    print_table(head, rows)


if __name__ == "__main__":
    main()
