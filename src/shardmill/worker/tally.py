"""The counters of a worker: per open shard, and in total."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill._version import __version__
from shardmill.core.hashing import add_sums, sum_hashes
from shardmill.core.startup import now_doing
from shardmill.ledger import Claim, Commit, merge_reasons, name_process
from shardmill.plan import Plan
from shardmill.sinks.base import ErrorRecord, Finished, Sealed, Staged
from shardmill.sinks.whole import WholeShard
from shardmill.sources.formats import find_format
from shardmill.worker.block import Block, mixed_up

_RATE_WINDOW_S = 30.0
_RATE_STEP_S = 0.25
_STAGES = ("read_s", "prepare_s", "device_s", "write_s")
_COUNTS = ("rows", "bytes", "tokens", "tokens_out", "errors", "commits", "checkpoints")
# Reasons that differ in numbers alone are one reason; of many, the most frequent are kept.
_MOST_REASONS, _LONGEST_REASON = 50, 160
_LIBRARIES = ("numpy", "pyarrow", "torch", "transformers", "tokenizers", "openvino", "triton", "llguidance")


@dataclass(slots=True)
class OpenShard:
    """A shard that this worker works on, and its counts so far."""

    claim: Claim
    began: float
    staged: Staged
    rows: int = 0
    part_rows: int = 0
    inputs: int = 0
    lines: int = 0
    tokens: int = 0
    tokens_out: int = 0
    truncated: int = 0
    dropped: int = 0
    reused: int = 0
    unreadable: int = 0
    items_digest: str = sum_hashes(np.zeros(0, np.uint64))
    rows_digest: str = sum_hashes(np.zeros(0, np.uint64))
    lengths: Counter[int] = field(default_factory=Counter)
    rows_run: int = 0
    bytes_run: int = 0
    read_s: float = 0.0
    prepare_s: float = 0.0
    device_s: float = 0.0
    write_s: float = 0.0
    errors: int = 0
    error_lines: bytearray = field(default_factory=bytearray)
    last_reason: str = ""
    lost: bool = False
    next_row: int = 0
    said: dict[str, Any] = field(default_factory=dict)

    def add(self, block: Block, plan: Plan) -> Finished:
        """Count a block and record its failed rows. Each block begins where the one before it ended."""
        if block.first_row != self.next_row:
            raise mixed_up(self.claim.shard, f"item {block.first_row} was written after item {self.next_row - 1}")
        self.next_row += len(block)
        first = plan.shards[block.claim.shard].file

        def describe(item: int, reason: str) -> ErrorRecord:
            row = item - block.first_row
            return {
                "file": plan.stat.files[first + block.files[row] if block.files else first].name,
                "shard": block.claim.shard,
                "row_in_shard": item,
                "line_in_shard": block.lines[row],
                "id": {n: str(block.kept.column(n)[row].as_py()) for n in plan.work.id},
                "reason": reason,
            }

        done = Finished(
            block.first_row,
            len(block),
            {block.first_row + row: describe(block.first_row + row, why) for row, why in sorted(block.bad.items())},
            describe,
            inputs=len(block.prepared.costs) if block.prepared.owners is not None else 0,
            tokens=block.tokens,
            tokens_out=block.tokens_out,
            truncated=block.prepared.truncated,
            gone=[block.first_row + row for row in block.gone],
            item_hashes=block.item_hashes,
            rows_digest=block.rows_digest,
            reused=0 if block.reused is None else int(block.reused.is_reused.sum()),
            lineage=block.lineage,
        )
        self.items_digest = add_sums([self.items_digest, sum_hashes(done.item_hashes)])
        self.rows_digest = add_sums([self.rows_digest, done.rows_digest])
        self.add_errors(list(done.errors.values()))
        self.rows += done.rows
        self.inputs += done.inputs
        self.lines += block.line_count
        self.tokens += done.tokens
        self.tokens_out += done.tokens_out
        self.truncated += done.truncated
        self.dropped += done.dropped
        self.reused += done.reused
        # A document may be read at another try.
        self.unreadable += block.unreadable if find_format(plan.stat.format).unit != "file" else 0
        self._count_lengths(block.prepared.costs)
        return done

    def take_over(self, whole: WholeShard) -> None:
        """Count a shard that was not read as it was counted before."""
        commit = whole.commit
        self.rows, self.part_rows, self.dropped = commit.rows, commit.rows_in_part, commit.dropped
        self.items_digest, self.rows_digest = commit.items_digest, commit.rows_digest
        self.reused, self.unreadable = whole.reused, commit.unreadable
        self.add_errors(whole.errors)

    def _count_lengths(self, costs: NDArray[np.int64]) -> None:
        powers, counts = np.unique(np.frexp(costs[costs > 0])[1] - 1, return_counts=True)
        self.lengths.update(dict(zip(powers.tolist(), counts.tolist(), strict=True)))

    def add_errors(self, records: list[ErrorRecord]) -> None:
        for record in records:
            self.error_lines += json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            self.last_reason = record["reason"]
        self.errors += len(records)

    def count_as(self, sealed: Sealed) -> None:
        """Replace the counts by those of all attempts together."""
        self.rows, self.lines, self.part_rows = sealed.rows, sealed.lines, sealed.part_rows
        self.inputs, self.tokens, self.tokens_out = sealed.inputs, sealed.tokens, sealed.tokens_out
        self.truncated, self.dropped, self.reused = sealed.truncated, sealed.dropped, sealed.reused
        self.items_digest, self.rows_digest = sealed.items_digest, sealed.rows_digest
        self.errors, self.error_lines = 0, bytearray()
        self.add_errors(sealed.errors)

    def timings(self) -> dict[str, float]:
        """Seconds of each stage."""
        return {name: round(getattr(self, name), 4) for name in _STAGES}

    def record(self, plan: Plan, *, worker: str, device: str, errors_file: str, numerics: Mapping[str, str]) -> Commit:
        """The commit of this attempt; the sink adds the fields of the part."""
        now = time.time()
        return Commit(
            shard=self.claim.shard,
            plan=plan.id,
            generation=plan.generation,
            attempt=self.claim.attempt,
            part="",
            digest="",
            part_bytes=0,
            rows=self.rows,
            lines=self.lines,
            errors=self.errors,
            errors_file=errors_file,
            tokens=self.tokens,
            truncated=self.truncated,
            worker=worker,
            device=device,
            finished_at=now,
            seconds=round(now - self.began, 3),
            timings=self.timings(),
            part_rows=self.part_rows if self.part_rows != self.rows or self.dropped else 0,
            dropped=self.dropped,
            inputs=self.inputs,
            kernel=numerics.get("kernel", "") if plan.knows_new_keys else "",
            precision=numerics.get("precision", "") if plan.knows_new_keys else "",
            tokens_out=self.tokens_out if plan.knows_new_keys else 0,
            lengths=[self.lengths[i] for i in range(max(self.lengths, default=-1) + 1)] if plan.knows_new_keys else [],
            items_digest=self.items_digest if plan.knows_new_keys else "",
            rows_digest=self.rows_digest if plan.knows_new_keys else "",
            reused=self.reused,
            unreadable=self.unreadable if plan.knows_new_keys else 0,
        )


class Tally:
    """What a worker has done in total, and its recent rates."""

    def __init__(self) -> None:
        self.rows = self.bytes = self.tokens = self.tokens_out = self.errors = 0
        self.commits = self.checkpoints = 0
        self.began = time.time()
        self._recent: deque[tuple[float, int, int, int]] = deque()
        self._closed: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._examples: dict[str, ErrorRecord] = {}

    def add(self, block: Block) -> None:
        self.rows += len(block)
        self.tokens += block.tokens
        self.tokens_out += block.tokens_out
        self.errors += len(block.bad)

    def add_whole(self, whole: WholeShard) -> None:
        self.rows += whole.commit.rows
        self.errors += len(whole.errors)
        self.add_errors(whole.errors)

    def add_errors(self, records: Iterable[ErrorRecord]) -> None:
        """Count failed rows by reason, and keep the first of each as an example."""
        for record in records:
            reason = re.sub(r"\d+", "N", str(record["reason"])[:_LONGEST_REASON])
            if reason in self._examples or len(self._examples) < _MOST_REASONS:
                self._examples.setdefault(reason, record)
                self._reasons[reason] += 1

    def closed(self, shard: OpenShard) -> None:
        """Keep the times of a shard that is no longer open."""
        self._closed.update(shard.timings())

    def ran(self, rows: int, size_bytes: int, tokens: int) -> None:
        """Count rows that just ran on the device; those within one step are merged."""
        now = time.time()
        self.bytes += size_bytes
        if self._recent and now - self._recent[-1][0] < _RATE_STEP_S:
            began, *before = self._recent.pop()
            rows, size_bytes, tokens = (a + b for a, b in zip(before, (rows, size_bytes, tokens), strict=True))
            now = began
        self._recent.append((now, rows, size_bytes, tokens))

    def rates(self) -> dict[str, float]:
        now = time.time()
        recent = [r for r in list(self._recent) if r[0] >= now - _RATE_WINDOW_S]
        while self._recent and self._recent[0][0] < now - _RATE_WINDOW_S:
            self._recent.popleft()
        span = max(1.0, min(_RATE_WINDOW_S, now - self.began))
        names = ("rows_per_s", "bytes_per_s", "tokens_per_s")
        return {name: round(sum(r[i] for r in recent) / span, 2) for i, name in enumerate(names, 1)}

    def describe_rows(self) -> str:
        return f"{self.rows:,} rows by this worker · {self.rates()['rows_per_s']:,.0f}/s"

    def describe(self, held: Iterable[OpenShard]) -> dict[str, Any]:
        """What a heartbeat says of it; `held` are the shards that are open."""
        stages = Counter(self._closed)
        for shard in held:
            stages.update(shard.timings())
        counts = {name: getattr(self, name) for name in _COUNTS}
        reasons = [
            {
                "reason": reason,
                "count": count,
                **{name: self._examples[reason].get(name) for name in ("file", "shard", "line_in_shard", "id")},
                "example": str(self._examples[reason]["reason"])[:_LONGEST_REASON],
            }
            for reason, count in list(self._reasons.items())
        ]
        return {
            "began": self.began,
            **counts,
            **self.rates(),
            "timings": {name: round(stages[name], 2) for name in _STAGES},
            "reasons": merge_reasons([reasons]),
        }


def describe_process() -> dict[str, Any]:
    """What the record of a worker says about its process."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process": name_process(),
        "version": __version__,
        "libraries": _libraries(),
        "detached": bool(os.environ.get("SHARDMILL_DETACHED")),
        **describe_place(),
        "doing": now_doing(),
        "rss_bytes": rss_bytes(),
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _libraries() -> dict[str, str]:
    """The versions of the libraries in use that may change a result."""
    return {name: str(getattr(sys.modules[name], "__version__", "")) for name in _LIBRARIES if name in sys.modules}


def describe_place() -> dict[str, str]:
    """The Slurm task or pod that this process runs in, and its log in the run folder, where they are known."""
    known, task = os.environ, "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}"
    if "SLURM_ARRAY_JOB_ID" in known and "SLURM_ARRAY_TASK_ID" in known:
        name = task.format_map(known)
        return {"place": f"Slurm job {name}", "log": f"logs/slurm-{name}.log"}
    place = {}
    if "KUBERNETES_SERVICE_HOST" in known:
        # The host name of an indexed Job's pod lacks the end of the pod's name. Workers that a process in the pod
        # placed have a slot, and names of their own.
        own = None if "SHARDMILL_SLOT" in known else known.get("SHARDMILL_WORKER")
        place = {"place": f"pod {own or socket.gethostname()}"}
    return {**place, **({"log": f"logs/{known['SHARDMILL_LOG']}.log"} if known.get("SHARDMILL_LOG") else {})}


def rss_bytes() -> int:
    """Resident memory of this process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _most_rss_bytes()


def peak_rss_bytes() -> int:
    """Peak resident memory of this process, excluding what it was forked with where the system tells."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return _most_rss_bytes()


def _most_rss_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
