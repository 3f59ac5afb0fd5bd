"""Generates for a stream of prompts: a row that has ended leaves, and another joins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.core.errors import DeviceOutOfMemory
from shardmill.models.decoding.prompt import Made, Prompt
from shardmill.models.decoding.seats import Seats
from shardmill.models.encoder import memory_guard

Key = TypeVar("Key")
Group = list[tuple[Key, Prompt, Made | DeviceOutOfMemory]]
# New rows are read together, once this share of the seats is empty: few large batches are faster than many small ones.
_REFILL_SHARE = 1 / 16
# Steps without a lack of memory after which twice as many rows are tried again.
_CALM_STEPS = 1024
# Prompts that must begin alike, for their beginning to be read once for all.
_LEAST_ALIKE = 8


@dataclass(slots=True)
class PagedStream(Generic[Key]):
    """`read_tokens` is the most that is read at once; it is halved if that does not fit into memory.

    `stops` is asked about rows that go on, and may end one.
    """

    seats: Seats
    read_tokens: int
    stops: Callable[[Made], bool] | None = None
    steps: int = 0
    _most: int = 0
    _calm: int = 0
    _looked: bool = False

    def run(self, prompts: Iterator[tuple[Key, Prompt] | None]) -> Iterator[Group[Key]]:
        """The new tokens of prompts, in groups as rows end and in no order; None says that no prompt is ready yet."""
        self._most = self._most or self.seats.count
        seated: dict[int, tuple[Key, Prompt]] = {}
        waiting: list[tuple[Key, Prompt]] = []
        more, ended = True, list[Any]()
        while more or waiting or seated:
            while more and len(waiting) < self._most:
                try:
                    if (one := next(prompts)) is None:
                        break
                    waiting.append(one)
                except StopIteration:
                    more = False
            with torch.inference_mode():
                ended += self._fill(seated, waiting)
                error = self._step() if seated else None
            # A GPU takes its steps while the caller looks at what ended before them.
            if ended:
                yield ended
            with torch.inference_mode():
                ended = self._end(seated, waiting, error) if seated else []
        if ended:
            yield ended

    def _step(self) -> DeviceOutOfMemory | None:
        """Some steps; the error, if they do not fit into memory."""
        try:
            with memory_guard():
                for _ in range(self.seats.most_steps):
                    self.seats.step()
        except DeviceOutOfMemory as error:
            return error
        self.steps += self.seats.most_steps
        self._calm += self.seats.most_steps
        if self._calm >= _CALM_STEPS:
            self._most, self._calm = min(self.seats.count, 2 * self._most), 0
        return None

    def _end(
        self, seated: dict[int, tuple[Key, Prompt]], waiting: list[tuple[Key, Prompt]], error: DeviceOutOfMemory | None
    ) -> Group[Key]:
        """The rows that have ended after some steps, or that have to leave."""
        try:
            with memory_guard():
                return self._take(seated) if error is None else self._leave(seated, waiting, error)
        except DeviceOutOfMemory as found:
            return self._leave(seated, waiting, found)

    def _fill(self, seated: dict[int, tuple[Key, Prompt]], waiting: list[tuple[Key, Prompt]]) -> Group[Key]:
        """Seat those that wait, as far as there is room; the ones for which there never is."""
        bad: Group[Key] = []
        if not self._looked and len(waiting) >= _LEAST_ALIKE:
            self._looked = True
            with contextlib.suppress(DeviceOutOfMemory), memory_guard():
                self.seats.keep_shared(_alike([prompt.ids for _, prompt in waiting]))
        if seated and self._most - len(seated) < max(1, self._most * _REFILL_SHARE):
            return bad
        while waiting and len(seated) < self._most:
            first = [prompt for _, prompt in waiting[: self._most - len(seated)]]
            group = self.seats.choose_first(first, self.read_tokens)
            error = DeviceOutOfMemory(f"{len(waiting[0][1].ids):,} tokens do not fit into the device's memory.")
            try:
                if group:
                    with memory_guard():
                        seats = self.seats.seat(group)
                    seated.update(zip(seats, waiting[: len(group)], strict=True))
                    del waiting[: len(group)]
                    continue
            except DeviceOutOfMemory as found:
                if len(group) > 1:
                    self.read_tokens = max(1, sum(len(p.ids) for p in group) // 2)
                    continue
                error = found
            if seated:
                break
            bad.append((*waiting.pop(0), error))
        return bad

    def _take(self, seated: dict[int, tuple[Key, Prompt]]) -> Group[Key]:
        """The rows that have ended."""
        ended = self.seats.finished()
        over = list(zip(ended, self.seats.look(ended), strict=True))
        if self.stops is not None:
            going = [seat for seat in seated if seat not in set(ended)]
            over += [(s, made) for s, made in zip(going, self.seats.look(going), strict=True) if self.stops(made)]
        self.seats.clear([seat for seat, _ in over])
        return [(*seated.pop(seat), made) for seat, made in over]

    def _leave(
        self, seated: dict[int, tuple[Key, Prompt]], waiting: list[tuple[Key, Prompt]], error: DeviceOutOfMemory
    ) -> Group[Key]:
        """Too many rows for the memory: half of them go back to wait and begin anew later. A single one is given up."""
        leaving = sorted(seated)[len(seated) // 2 :]
        self._most, self._calm = max(1, len(seated) // 2), 0
        self.seats.clear(leaving)
        left = [seated.pop(seat) for seat in leaving]
        if not seated:
            return [(key, prompt, error) for key, prompt in left]
        waiting[:0] = left
        return []


def _alike(rows: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """What all rows begin with, but for the last token of the shortest."""
    shortest = min(map(len, rows)) - 1
    same = np.logical_and.reduce([row[:shortest] == rows[0][:shortest] for row in rows])
    return rows[0][: shortest if same.all() else int(same.argmin())]
