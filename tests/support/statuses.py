"""A status as the folder of a large run gives it, to be changed by tests."""

from __future__ import annotations

from typing import Any

from shardmill.run.status.state import Status

NOW = 1_700_000_000.0


def a_worker(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"a-host-with-a-long-name-{number}-0123456789ab",
        "device": "NVIDIA A100-SXM4-80GB",
        "state": "working",
        "live": True,
        "beat_age_s": 1.0,
        "rows": 100,
        "rows_per_s": 10.0 + number,
        "rss_bytes": 1 << 30,
        "device_bytes": 60 << 30,
        "use": 0.97,
        "open": {str(100_000 + number): {"rows": 1, "bytes": 1}},
        **changes,
    }


def a_status(**changes: Any) -> Status:
    usual: dict[str, Any] = {
        "run": "s3://bucket/runs/reviews",
        "plan": "p",
        "state": "running",
        "shards": 100_000,
        "shards_done": 40_000,
        "rows": 40_000_000,
        "windows": 0,
        "errors": 12,
        "tokens": 8_000_000_000,
        "tokens_out": 3_000_000,
        "truncated": 7,
        "share": 0.4,
        "rows_per_s": 12_000.0,
        "tokens_per_s": 2_400_000.0,
        "eta_s": 5000.0,
        "device_s": 1.0,
        "placement": "",
        "workers": [a_worker(i) for i in range(3)],
        "steps": [],
        "at": NOW,
        "eta_low_s": 4500.0,
        "eta_high_s": 5600.0,
        "shard_states": {"waiting": 58_999, "running": 1000, "done": 40_000, "failed": 1},
        "reasons": [{"reason": "'text' is null", "count": 12, "file": "a.jsonl", "shard": 3, "line_in_shard": 8}],
        "bound": {"by": "device", "device_busy": 0.93, "waiting_for_input": 0.05, "waiting_for_sink": 0.02},
        "usd": 12.5,
        "usd_at_end": 31.0,
    }
    return Status(**usual | changes)
