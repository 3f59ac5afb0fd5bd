"""The source of a simulated run: its rows, of which some cannot be computed, its spec and its plan."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

from shardmill.core.devices import Device
from shardmill.plan import Plan
from shardmill.plan.spec import Spec, make_spec
from shardmill.run.planner import make_plan

LEASE_S, STUCK_S = 8.0, 60.0
BAD = ("!nan", "!raise")


def is_bad(row: dict[str, str]) -> bool:
    return "!" in row["text"]


@cache
def planned(dims: int, poison: bool, workers: int = 1) -> tuple[Spec, Plan, list[dict[str, str]]]:
    """The spec, the plan and the rows of a source of some ten shards."""
    rows = [{"id": f"k{i}", "text": f"text {i} {BAD[i % 2] if i % 13 == 5 else ''}"} for i in range(48)]
    if poison:
        rows[20]["text"] = "text 20 !kill"
    source = _sources() / f"items-{poison}.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    execution = {"shard_bytes": 260, "batch_tokens": 40, "max_errors": "100%", "lease_s": LEASE_S, "stuck_s": STUCK_S}
    spec = make_spec({**work, "params": {"dims": dims, "delay_s": 0.5}}, {**execution, "workers": workers})
    return spec, make_plan(spec, [Device("cpu", "cpu", 1)]), rows


@cache
def _sources() -> Path:
    return Path(tempfile.mkdtemp(prefix="faults-source-", dir=memory_folder()))


def memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
