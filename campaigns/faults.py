"""Thousands of seeded runs in which everything goes wrong that may; each must end with every row exactly once.

python -m campaigns.faults --seeds 10000
python -m campaigns.faults --seed 1234      plays one seed again, with every request and fault

A seed always plays the same. `--mutate NAME` plants a known bug, which must be found.
"""

from __future__ import annotations

from campaigns import faulty_run
from campaigns.faulty_run import Outcome
from campaigns.planted_bugs import BUGS, planted
from campaigns.seeds import run_campaign


def play(seed: int, mutation: str = "", *, traced: bool = False) -> Outcome:
    with planted(mutation):
        return faulty_run.play(seed, traced=traced)


if __name__ == "__main__":
    run_campaign(play, __doc__ or "", "python -m campaigns.faults", BUGS)
