"""Half-open integer ranges: split, subtract, cover. No padding, no repeats, no floats."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from shardmill.core.errors import UsageError

Range = tuple[int, int]


def split_evenly(start: int, stop: int, parts: int) -> list[Range]:
    """Cut [start, stop) into `parts` ranges whose sizes differ by at most one.

    >>> split_evenly(0, 10, 3)
    [(0, 4), (4, 7), (7, 10)]
    """
    if parts < 1:
        raise ValueError(f"parts must be at least 1, not {parts}")
    if stop < start:
        raise ValueError(f"a range cannot end ({stop}) before it starts ({start})")
    size, extra = divmod(stop - start, parts)
    bounds = [start + i * size + min(i, extra) for i in range(parts + 1)]
    return list(pairwise(bounds))


def split_weighted(weights: Sequence[int], target: int) -> list[Range]:
    """Group consecutive weights into ranges of about `target` each; no group is empty.

    >>> split_weighted([5, 5, 5, 20, 1], 10)
    [(0, 2), (2, 3), (3, 4), (4, 5)]
    """
    groups: list[Range] = []
    start, weight = 0, 0
    for i, w in enumerate(weights):
        if i > start and weight + w > target:
            groups.append((start, i))
            start, weight = i, 0
        weight += w
    if start < len(weights):
        groups.append((start, len(weights)))
    return groups


def subtract(whole: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """The parts of `whole` that are not in `taken`.

    >>> subtract([(0, 10)], [(2, 4), (8, 12)])
    [(0, 2), (4, 8)]
    """
    holes = sorted((a, b) for a, b in taken if b > a)
    left: list[Range] = []
    for start, stop in sorted(whole):
        at = start
        for a, b in holes:
            if b <= at or a >= stop:
                continue
            if a > at:
                left.append((at, a))
            at = max(at, b)
        if at < stop:
            left.append((at, stop))
    return left


def join(parts: Iterable[Range]) -> list[Range]:
    """Merge ranges that touch or overlap.

    >>> join([(4, 6), (0, 2), (2, 5)])
    [(0, 6)]
    """
    joined: list[Range] = []
    for start, stop in sorted(parts):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


def cover(parts: Iterable[Range], start: int, stop: int) -> bool:
    """Whether the parts tile [start, stop) exactly: no gap, no overlap, nothing outside.

    >>> cover([(4, 10), (0, 4)], 0, 10), cover([(0, 4), (5, 10)], 0, 10)
    (True, False)
    """
    at = start
    for a, b in sorted(p for p in parts if p[0] != p[1]):
        if a != at or b < a:
            return False
        at = b
    return at == stop


class DistributedRangeSplitter:
    """Assigns samples to ranks: contiguous ranges, even or by weight, or every n-th sample.

    The range of a rank can be split again, so clusters, hosts and GPUs are nested splitters.

    >>> clusters = DistributedRangeSplitter(250_010, 2)
    >>> clusters.get_all_ranges()
    [(0, 125005), (125005, 250010)]
    >>> clusters.within(1, 8).get_rank_range(0)
    (125005, 140631)
    """

    def __init__(
        self, num_samples: int, world_size: int, *, weights: Sequence[float] | None = None, start: int = 0
    ) -> None:
        if world_size < 1:
            raise UsageError(f"The world size is {world_size}.", hint="It must be 1 or more.")
        if num_samples < 0 or start < 0:
            raise UsageError(f"{num_samples} samples from {start} is not a range.", hint="Both must be 0 or more.")
        self.num_samples, self.world_size, self.start = num_samples, world_size, start
        self._bounds = None if weights is None else self._weighted(weights)
        if self._bounds is not None:
            self._guide = [bisect_right(self._bounds, i * num_samples // world_size) - 1 for i in range(world_size)]

    def get_rank_range(self, rank: int) -> Range:
        """The half-open range of one rank."""
        self._check(rank)
        if self._bounds is not None:
            return self.start + self._bounds[rank], self.start + self._bounds[rank + 1]
        size, extra = divmod(self.num_samples, self.world_size)
        begin = self.start + rank * size + min(rank, extra)
        return begin, begin + size + (rank < extra)

    def get_all_ranges(self) -> list[Range]:
        return [self.get_rank_range(rank) for rank in range(self.world_size)]

    def get_rank_for_sample(self, sample_id: int) -> int:
        """The rank of a sample, without a search: by arithmetic, or with weights by a table of first guesses."""
        at = sample_id - self.start
        if not 0 <= at < self.num_samples:
            last = self.start + self.num_samples - 1
            raise UsageError(f"Sample {sample_id} does not exist.", hint=f"Samples are {self.start} to {last}.")
        if self._bounds is not None:
            rank = self._guide[at * self.world_size // self.num_samples]
            while self._bounds[rank + 1] <= at:
                rank += 1
            return rank
        size, extra = divmod(self.num_samples, self.world_size)
        wide = extra * (size + 1)
        return at // (size + 1) if at < wide else extra + (at - wide) // size

    def validate_ranges(self, ranges: Iterable[Range] | None = None) -> bool:
        """Whether these ranges, by default those of all ranks, contain every sample exactly once."""
        found = self.get_all_ranges() if ranges is None else ranges
        return cover(found, self.start, self.start + self.num_samples)

    def within(self, rank: int, world_size: int, *, weights: Sequence[float] | None = None) -> DistributedRangeSplitter:
        """Split the range of one rank again."""
        begin, end = self.get_rank_range(rank)
        return DistributedRangeSplitter(end - begin, world_size, weights=weights, start=begin)

    def interleaved(self, rank: int, done: int = 0) -> range:
        """Every `world_size`-th sample after the first `done`, for elastic training.

        After any number of common steps the finished samples are the first ones, so a different number of ranks can
        resume from one integer.

        >>> [list(DistributedRangeSplitter(7, 3).interleaved(rank)) for rank in range(3)]
        [[0, 3, 6], [1, 4], [2, 5]]
        """
        self._check(rank)
        if not 0 <= done <= self.num_samples:
            raise UsageError(f"{done} of {self.num_samples} samples cannot be done.", hint="Is it the same dataset?")
        return range(self.start + done + rank, self.start + self.num_samples, self.world_size)

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            hint = f"Ranks are 0 to {self.world_size - 1}."
            raise UsageError(f"Rank {rank} does not exist in a world of {self.world_size}.", hint=hint)

    def _weighted(self, weights: Sequence[float]) -> list[int]:
        if len(weights) != self.world_size:
            hint = "Give one weight per rank."
            raise UsageError(f"{len(weights)} weights for {self.world_size} ranks.", hint=hint)
        # As fractions, so that rounding loses no sample, however many there are.
        try:
            exact = [Fraction(w) for w in weights]
        except (ValueError, OverflowError, TypeError):
            exact = []
        if not exact or min(exact) < 0 or not sum(exact):
            raise UsageError(f"{list(weights)} are not weights.", hint="Give numbers of 0 or more, not all 0.")
        total = sum(exact)
        return [0, *(int(self.num_samples * part / total) for part in accumulate(exact))]
