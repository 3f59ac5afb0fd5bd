"""Streams of parameters that keep one chunk in memory. The state of a stream is one integer."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from shardmill.augment.config import STANDARD, AugmentationConfig, Value
from shardmill.augment.params import Columns, augmentation_table, check_rank
from shardmill.core.errors import CorruptState, UsageError

CHUNK_SIZE = 10_000
LAST = 1 << 64
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
Progress = Callable[[int, int | None], None]


class AugmentationStream(Iterator[dict[str, Value]]):
    """The parameters of the items from start to stop - 1; a rank gets every `world_size`-th item.

    All items before `state` are done on this rank, and on all ranks once each has taken the same number of steps. A
    stream resumed from a state, by any number of ranks, repeats no item and skips none.
    """

    def __init__(
        self,
        config: AugmentationConfig,
        start: int,
        stop: int | None,
        *,
        rank: int = 0,
        world_size: int = 1,
        chunk_size: int = CHUNK_SIZE,
        epoch: int = 0,
        on_progress: Progress | None = None,
    ) -> None:
        check_rank(rank, world_size)
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
            raise UsageError(f"The chunk_size {chunk_size!r} is not a positive integer.", hint="Give 1 or more.")
        if not 0 <= start <= (LAST if stop is None else stop) <= LAST:
            raise UsageError(f"Items {start} to {stop} are not from 0 to 2**64 - 1.", hint="Number the items from 0.")
        self.config, self.start, self.stop, self.epoch = config, start, stop, epoch
        self.rank, self.world_size, self.chunk_size = rank, world_size, chunk_size
        self._on_progress = on_progress
        self._rows: Iterator[dict[str, Value]] = iter(())
        self._at = start
        self._all = self._chain()

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return self._all

    def __next__(self) -> dict[str, Value]:
        return next(self._all)

    @property
    def state(self) -> int:
        """The id to resume from. Only items already taken from the stream count, not those waiting in the chunk."""
        at = self._at - self.world_size * operator.length_hint(self._rows)
        return at if self.stop is None else min(at, self.stop)

    def state_dict(self) -> dict[str, int]:
        return {"next_id": self.state, "epoch": self.epoch, "seed": self.config.seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume from a state, whatever number of ranks saved it."""
        at, epoch, seed = check_state(state, self.start, self.stop)
        if seed != self.config.seed:
            raise CorruptState(
                f"The state has seed {seed}, the stream has seed {self.config.seed}.", hint="Use the same config."
            )
        self.epoch = epoch
        self._resume_from(at)

    def tables(self) -> Iterator[tuple[np.ndarray[Any, np.dtype[np.uint64]], Columns]]:
        """The rest of the stream as chunks of ids and columns, which is faster than dicts."""
        self._resume_from(self.state)
        return self._tables()

    def _resume_from(self, at: int) -> None:
        """Discard the items waiting in the chunk; they are made again."""
        self._at, self._rows, self._all = at, iter(()), self._chain()

    def _tables(self) -> Iterator[tuple[np.ndarray[Any, np.dtype[np.uint64]], Columns]]:
        while (chunk := self._next_ids()) is not None:
            yield chunk, augmentation_table(chunk, self.config, epoch=self.epoch)
            self._report_progress()

    def _next_ids(self) -> np.ndarray[Any, np.dtype[np.uint64]] | None:
        begin, step = self._at + self.rank, self.world_size
        end = min(LAST if self.stop is None else self.stop, begin + self.chunk_size * step)
        if end <= begin:
            # In the last step some ranks have no item; they have reached the end too.
            self._at = max(self._at, LAST if self.stop is None else self.stop)
            return None
        count = -(-(end - begin) // step)
        self._at += count * step
        return np.arange(count, dtype=np.uint64) * np.uint64(step) + np.uint64(begin)

    def _chain(self) -> Iterator[dict[str, Value]]:
        for _, columns in self._tables():
            self._rows = iter(_dicts(columns))
            yield from self._rows

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.state - self.start, None if self.stop is None else self.stop - self.start)


def _dicts(columns: Columns) -> list[dict[str, Value]]:
    names = tuple(columns)
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    if names != STANDARD:
        return [dict(zip(names, row, strict=True)) for row in values]
    # A literal dict takes half the time.
    return [
        {"rotation": rotation, "brightness": brightness, "noise": noise, "scale": scale, "contrast": contrast}
        for rotation, brightness, noise, scale, contrast in values
    ]


def parse_count(text: str) -> int:
    """Parse a number of samples, with an optional suffix k, M, B or G.

    >>> parse_count("100M"), parse_count("2.5k"), parse_count("1_000")
    (100000000, 2500, 1000)
    """
    match = re.fullmatch(r"([\d_,]*\.?\d+)\s*([kKmMbBgG]?)", text.strip())
    exact = Fraction(re.sub("[_,]", "", match[1])) * _UNITS[match[2].lower()] if match else Fraction(0)
    if exact.denominator != 1 or not 0 < exact <= LAST:
        raise UsageError(f"{text!r} is not a number of samples.", hint="Write 250000, 250k, 100M or 1B.")
    return int(exact)


def check_state(state: Any, start: int, stop: int | None) -> tuple[int, int, int]:
    """The next id, epoch and seed of a saved state; anything else is rejected."""
    values = [state.get(n) for n in ("next_id", "epoch", "seed")] if isinstance(state, dict) else []
    whole = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0]
    if len(whole) != 3:
        raise CorruptState(f"{state!r} is not the state of a stream.", hint="Start the epoch again.")
    if not start <= whole[0] <= (LAST if stop is None else stop):
        raise CorruptState(f"The state is at item {whole[0]}, outside the stream.", hint="Use this dataset's state.")
    return whole[0], whole[1], whole[2]


def stream_augmentation_chain(
    num_samples: float,
    config: AugmentationConfig,
    start_id: int = 0,
    chunk_size: int = CHUNK_SIZE,
    *,
    epoch: int = 0,
    on_progress: Progress | None = None,
) -> AugmentationStream:
    """One dict of parameters for each of `num_samples` items (or `float("inf")`), starting at `start_id`."""
    return stream_distributed_augmentation_chain(
        num_samples, 0, 1, config, start_id, chunk_size, epoch=epoch, on_progress=on_progress
    )


def stream_distributed_augmentation_chain(
    num_samples: float,
    rank: int,
    world_size: int,
    config: AugmentationConfig,
    start_id: int = 0,
    chunk_size: int = CHUNK_SIZE,
    *,
    epoch: int = 0,
    on_progress: Progress | None = None,
) -> AugmentationStream:
    """The stream of one rank: items start_id + rank, start_id + rank + world_size, … of `num_samples` in total.

    An item's parameters are those of `gen_augmentation_params`, whichever rank gets it.
    """
    if isinstance(num_samples, bool) or not isinstance(num_samples, int | float | np.integer):
        raise UsageError(f"{num_samples!r} is not a number of samples.", hint='Give a count, or float("inf").')
    if math.isnan(num_samples) or num_samples < 0 or (math.isfinite(num_samples) and num_samples != int(num_samples)):
        raise UsageError(f"{num_samples} is not a number of samples.", hint='Give a count, or float("inf").')
    if isinstance(start_id, bool) or not isinstance(start_id, int | np.integer):
        raise UsageError(f"The item id {start_id!r} is not an integer.", hint="Number the items from 0.")
    stop = None if math.isinf(num_samples) else int(start_id) + int(num_samples)
    return AugmentationStream(
        config,
        int(start_id),
        stop,
        rank=rank,
        world_size=world_size,
        chunk_size=chunk_size,
        epoch=epoch,
        on_progress=on_progress,
    )
