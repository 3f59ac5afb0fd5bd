"""The bottleneck of a run: the stage that was busy for the largest share of the time."""

from __future__ import annotations

from dataclasses import dataclass

# Display names of the timings in a commit.
STAGES = {"read_s": "reading", "prepare_s": "tokenizing", "device_s": "the device", "write_s": "writing"}
_EDGES = "starting and ending"
_HINTS = {
    "reading": "Put the source on a faster disk, or convert it to Parquet, of which only the needed columns are read.",
    "tokenizing": "More --workers tokenize in parallel.",
    "the device": "Use a smaller model, a faster device or more devices; on a GPU also try a larger --batch-tokens.",
    "writing": "Put the run's folder on a faster disk.",
    _EDGES: "The run is too short to tell: use more --texts.",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The bottleneck of a run, the share of the time it was busy, and what to do about it."""

    what: str
    share: float
    hint: str

    def __str__(self) -> str:
        return f"{self.what}: {100 * self.share:.0f} % of the time"


def find_bound(stages: dict[str, float], work_s: float, edges_s: float = 0.0) -> Bound:
    """Find the bottleneck from the seconds per stage; in `edges_s` a worker waited for its first texts or last commit.

    >>> str(find_bound({"prepare_s": 9.2, "device_s": 5.0}, 10.0))
    'tokenizing: 92 % of the time'
    """
    busy = {STAGES.get(name, name): seconds for name, seconds in stages.items()}
    what = max(busy, key=lambda name: busy[name])
    if edges_s > busy[what]:
        what, busy = _EDGES, {_EDGES: edges_s}
    return Bound(what, min(1.0, busy[what] / max(work_s, 1e-9)), _HINTS.get(what, ""))
