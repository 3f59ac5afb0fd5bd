"""Which rows are computed again: drawn at random from all rows of all shards, and what such a sample misses."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from shardmill.core.errors import UsageError

# How many rows are computed again if nobody says.
SAMPLE = 64
ALL = "all"
# The share of wrong rows for which the power of a sample is told.
_FAULTY = 0.05


def sample_size(asked: int | str, total: int) -> int:
    """How many rows a number, a share or `all` asks for.

    >>> sample_size("1%", 8_243), sample_size("all", 8_243), sample_size(64, 10)
    (83, 8243, 10)
    """
    text = str(asked).strip()
    try:
        if text == ALL:
            return total
        if text.endswith("%"):
            share = float(text[:-1]) / 100
            if 0 <= share <= 1:
                return math.ceil(share * total)
        elif int(text) >= 0:
            return min(int(text), total)
    except ValueError:
        pass
    raise UsageError(f"--sample {text}: must be a number of rows, a share or all.", hint="For example: --sample 1%")


def draw(counts: Sequence[int], rows: int, seed: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Draw from shards with these numbers of rows: each shard with its rows in order. All rows are equally likely."""
    if rows >= sum(counts):
        yield from ((shard, range(count)) for shard, count in enumerate(counts) if count)
        return
    ends = list(accumulate(counts))
    drawn = sorted(random.Random(seed).sample(range(ends[-1]), rows))
    for shard, own in groupby(drawn, lambda row: bisect_right(ends, row)):
        yield shard, [row - ends[shard] + counts[shard] for row in own]


def power(rows: int, total: int) -> str:
    """What a sample of this many rows misses, in words.

    >>> power(64, 8_243)
    'a fault in 5 % of the rows would be missed once in 27 times'
    """
    faulty = math.ceil(_FAULTY * total)
    if rows > total - faulty:
        return "a fault in 5 % of the rows would not be missed"
    missed = math.exp(_log_choices(total - faulty, rows) - _log_choices(total, rows))
    if missed > 0.5:
        often = f"{100 * missed:.0f} times in 100"
    else:
        often = f"once in {round(1 / missed):,} times" if missed > 1e-6 else "less than once in a million times"
    return f"a fault in 5 % of the rows would be missed {often}"


def _log_choices(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
