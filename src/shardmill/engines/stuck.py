"""Finds workers that are alive but make no progress."""

from __future__ import annotations

import time
from collections.abc import Mapping

from shardmill.ledger import Ledger, idle_s


def find_stuck(ledger: Ledger, placed: Mapping[str, float], stuck_s: float) -> dict[str, float]:
    """Workers without heartbeat or progress for over `stuck_s` seconds, and for how long. `placed` has start times."""
    now = time.time()
    beats = {b["id"]: b for b in ledger.workers.read_recent()}
    found = {}
    for worker, at in placed.items():
        beat = beats.get(worker, {"at": at, "progress_at": at, "state": "starting"})
        if (idle := idle_s(beat, now)) > stuck_s:
            found[worker] = idle
    return found
