"""What bounds the speed of a run: its device, or what feeds it or takes its results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

# A device that waits for less than this share of the time is what bounds the speed.
_WAITS = 0.15
_LEAST_S = 5.0


def find_bound(workers: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the workers wait for: `by` is device, reading, preparing or sink, with the shares of their time.

    None if they have not worked long enough, or their records do not say.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for worker in workers:
        stages = worker.get("timings")
        if not isinstance(stages, dict) or not worker["rows"]:
            continue
        seconds["all"] += max(0.0, worker["at"] - worker["began"])
        seconds["idle"] += worker["idle_s"]
        seconds["sink"] += worker["sink_wait_s"]
        for name in ("read_s", "prepare_s"):
            seconds[name] += float(stages.get(name) or 0.0)
    if seconds["all"] < _LEAST_S:
        return None
    starved, sink = (min(1.0, seconds[name] / seconds["all"]) for name in ("idle", "sink"))
    feeder = "reading" if seconds["read_s"] > seconds["prepare_s"] else "preparing"
    by = "device" if max(starved, sink) < _WAITS else "sink" if sink > starved else feeder
    return {
        "by": by,
        "device_busy": round(max(0.0, 1 - starved - sink), 3),
        "waiting_for_input": round(starved, 3),
        "waiting_for_sink": round(sink, 3),
    }
