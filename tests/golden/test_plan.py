"""A plan that was written down once: its id and shards must not drift, or no old run could be resumed.

Where they change on purpose, raise `shardmill.plan.FORMAT` and write the file anew:
`python -m tests.golden.test_plan`.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from shardmill.core.devices import Device
from shardmill.plan import Plan
from shardmill.plan.spec import make_spec
from shardmill.run.planner import make_plan

GOLDEN = Path(__file__).with_name("plan.json")
MTIME_NS = 1_700_000_000_123_456_789


def make_golden(folder: Path) -> dict[str, Any]:
    """The plan of a fixed file, with the place it lies at, which is no part of its identity, taken out."""
    source = folder / "items.jsonl"
    rows = [{"id": f"k{i}", "text": f"Grüße {i} " + "x" * (i * 7 % 40), "n": i, "price": i / 4} for i in range(40)]
    source.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    os.utime(source, ns=(MTIME_NS, MTIME_NS))
    work = {
        "source": str(source),
        "text": "{id}: {text}",
        "id": "id",
        "keep": "price,n",
        "task": "shardmill.testing:FakeTask",
        "params": {"dims": 4},
    }
    plan = make_plan(make_spec(work, {"shard_bytes": 600}), [Device("cpu", "cpu")]).to_json()
    plan["work"]["source"] = [source.name]
    # Whether it is settled depends on how long planning took.
    named = [{**file, "place": source.name} for file in plan["source"]["files"]]
    plan["source"]["files"] = [{k: value for k, value in file.items() if k != "settled"} for file in named]
    return json.loads(json.dumps(plan))  # type: ignore[no-any-return]


def test_a_plan_does_not_drift(tmp_path: Path) -> None:
    assert make_golden(tmp_path) == json.loads(GOLDEN.read_text())


def test_a_plan_of_old_is_read_with_its_columns_in_order() -> None:
    plan = Plan.from_json(GOLDEN.read_text())
    assert list(plan.stat.columns) == ["id", "price", "n"]
    assert json.loads(plan.encode()) == json.loads(GOLDEN.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        GOLDEN.write_text(json.dumps(make_golden(Path(made)), indent=2, ensure_ascii=False) + "\n")
