"""Generates for a stream of prompts: a row that has ended leaves, and another joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from shardmill.errors import DeviceOutOfMemory
from shardmill.models.decoding.seats import Made, Prompt, Seats
from shardmill.models.encoder import memory_guard

Key = TypeVar("Key")
_STEPS_BETWEEN_LOOKS = 4
# New rows are read together, once this share of the seats is empty: few large batches are faster than many small ones.
_REFILL_SHARE = 1 / 16


@dataclass(slots=True)
class Stream(Generic[Key]):
    """`read_tokens` is the most that is read at once; it is halved if that does not fit into memory.

    `stops` is asked about rows that go on, and may end one: it returns what is left of it.
    """

    seats: Seats
    read_tokens: int
    stops: Callable[[Made], Made | None] | None = None
    steps: int = 0

    def run(self, prompts: Iterator[tuple[Key, Prompt]]) -> Iterator[tuple[Key, Made | DeviceOutOfMemory]]:
        """The new tokens of each prompt, as rows end; in no order."""
        keys: dict[int, Key] = {}
        waiting: list[tuple[Key, Prompt]] = []
        more = True
        with torch.inference_mode():
            while True:
                while more and len(waiting) < self.seats.count:
                    try:
                        waiting.append(next(prompts))
                    except StopIteration:
                        more = False
                yield from self._fill(keys, waiting)
                if not keys and not waiting:
                    if not more:
                        return
                    continue
                with memory_guard():
                    for _ in range(_STEPS_BETWEEN_LOOKS):
                        self.seats.step()
                    self.steps += _STEPS_BETWEEN_LOOKS
                    yield from self._take(keys)

    def _fill(
        self, keys: dict[int, Key], waiting: list[tuple[Key, Prompt]]
    ) -> Iterator[tuple[Key, Made | DeviceOutOfMemory]]:
        empty = self.seats.count - len(keys)
        while waiting and (not keys or empty >= max(1, self.seats.count * _REFILL_SHARE)):
            group = self._group([prompt for _, prompt in waiting])
            if not group:
                if not keys:
                    key, prompt = waiting.pop(0)
                    yield key, DeviceOutOfMemory(f"{len(prompt.ids):,} tokens do not fit into the device's memory.")
                    continue
                return
            try:
                with memory_guard():
                    seats = self.seats.seat(group)
            except DeviceOutOfMemory as error:
                if len(group) > 1:
                    self.read_tokens = max(1, sum(len(p.ids) for p in group) // 2)
                    continue
                if keys:
                    return
                yield waiting.pop(0)[0], error
                continue
            keys.update(zip(seats, (key for key, _ in waiting[: len(group)]), strict=True))
            del waiting[: len(group)]
            empty -= len(group)

    def _group(self, waiting: list[Prompt]) -> list[Prompt]:
        """The first of those waiting that can be read together."""
        group: list[Prompt] = []
        tokens = 0
        for prompt in waiting:
            tokens += len(prompt.ids)
            if (group and tokens > self.read_tokens) or not self.seats.has_room(group, prompt):
                break
            group.append(prompt)
        return group

    def _take(self, keys: dict[int, Key]) -> Iterator[tuple[Key, Made]]:
        ended = self.seats.finished()
        over = list(zip(ended, self.seats.look(ended), strict=True)) if ended else []
        if self.stops is not None:
            going = [seat for seat in keys if seat not in set(ended)]
            over = [(seat, self.stops(made) or made) for seat, made in over]
            for seat, made in zip(going, self.seats.look(going), strict=True):
                if (cut := self.stops(made)) is not None:
                    over.append((seat, cut))
        self.seats.clear([seat for seat, _ in over])
        for seat, made in over:
            yield keys.pop(seat), made
