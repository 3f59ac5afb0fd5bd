"""The rows that a device generates side by side: their state lies on the device, and a step needs no word from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.models.decoding.attention import Held
from shardmill.models.decoding.choice import Past, Rules, choose
from shardmill.models.decoding.model import Decoder
from shardmill.models.decoding.pages import PAGE_TOKENS, Pages, pages_for, places_of, table_of


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue or to answer: its ids, how many new tokens at most, and one uniform number for each."""

    ids: NDArray[np.int32]
    limit: int
    draws: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """New tokens, the ending one included. `ended` says that the model ended by itself."""

    ids: NDArray[np.int64]
    ended: bool


class Seats:
    """A fixed number of seats, each empty or with a row. `longest` limits prompt and new tokens of a row together."""

    def __init__(
        self, decoder: Decoder, rules: Rules, *, count: int, pages: int, cross_pages: int, longest: int, most_new: int
    ) -> None:
        device = decoder.device
        self._decoder, self._rules, self.count = decoder, rules, count
        self.longest, self.most_new = longest, most_new
        self._own = Pages(decoder.own, pages, device)
        self._cross = Pages(decoder.cross, cross_pages, device) if decoder.cross is not None else None
        self._kept: dict[int, tuple[list[int], list[int]]] = {}
        self._empty = list(range(count - 1, -1, -1))

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        prefix = decoder.own_tokens(longest) if rules.looks_back else 0
        self._ids, self._at, self._limit = zeros(count), zeros(count), zeros(count)
        self._told, self._count, self._made = zeros(count, prefix + most_new), zeros(count), zeros(count)
        self._live = zeros(count, dtype=torch.bool)
        self._draws = zeros(count, most_new, dtype=torch.float32) if rules.temperature is not None else None
        self._table = zeros(count, pages_for(decoder.own_tokens(longest) + most_new), dtype=torch.int32)
        self._cross_table = zeros(count, pages_for(longest), dtype=torch.int32)
        self._cross_lengths = zeros(count, dtype=torch.int32)
        self._ends = torch.tensor(rules.ends, device=device)
        self._graphs: dict[int, Any] = {}

    @property
    def taken(self) -> list[int]:
        return list(self._kept)

    def has_room(self, waiting: Sequence[Prompt], more: Prompt) -> bool:
        """Whether another prompt can be seated beside those that wait to be."""
        every = [*waiting, more]
        own = sum(pages_for(self._decoder.own_tokens(len(p.ids)) + p.limit) for p in every)
        cross = sum(pages_for(len(p.ids)) for p in every) if self._cross is not None else 0
        return (
            len(every) <= len(self._empty)
            and own <= self._own.free
            and (self._cross is None or cross <= self._cross.free)
        )

    def seat(self, prompts: Sequence[Prompt]) -> list[int]:
        """Read some prompts and choose the first new token of each; the seats they got."""
        device = self._decoder.device
        seats = [self._empty.pop() for _ in prompts]
        lengths = np.array([len(p.ids) for p in prompts])
        limits = np.array([p.limit for p in prompts])
        kept = np.array([self._decoder.own_tokens(int(n)) for n in lengths])
        for seat, prompt, tokens in zip(seats, prompts, kept, strict=True):
            cross = self._cross.take(len(prompt.ids)) if self._cross is not None else []
            self._kept[seat] = self._own.take(int(tokens) + prompt.limit), cross
        try:
            table = table_of([self._kept[s][0] for s in seats], self._table.shape[1])
            cross_table = table_of([self._kept[s][1] for s in seats], self._cross_table.shape[1])
            own = self._hold(self._own, table, kept)
            crossed = self._hold(self._cross, cross_table, lengths) if self._cross is not None else None
            logits = self._decoder.read([p.ids for p in prompts], own, crossed)
        except BaseException:
            self.clear(seats)
            raise
        at = torch.tensor(seats, device=device)
        self._table[at], self._cross_table[at] = own.table, torch.from_numpy(cross_table).to(device)
        self._cross_lengths[at] = torch.from_numpy(lengths).int().to(device)
        self._at[at], self._limit[at] = torch.from_numpy(kept).to(device), torch.from_numpy(limits).to(device)
        self._made[at], self._count[at], self._live[at] = 0, 0, True
        if self._rules.looks_back:
            self._remember(prompts, at)
        if self._draws is not None:
            self._draws[at] = torch.from_numpy(np.stack([np.resize(p.draws, self.most_new) for p in prompts])).to(device)  # type: ignore[arg-type]
        self._choose(logits, at)
        return seats

    def _hold(self, pages: Pages, table: NDArray[np.int32], lengths: NDArray[np.int64]) -> Held:
        device = self._decoder.device
        places = torch.from_numpy(places_of(table, lengths)).to(device)
        return Held(pages, torch.from_numpy(table).to(device), torch.from_numpy(lengths).int().to(device), places)

    def _remember(self, prompts: Sequence[Prompt], at: Tensor) -> None:
        """Put what the choice looks back on before the new tokens: the prompt, or the decoder's first token."""
        told = [p.ids if self._decoder.cross is None else [self._decoder.start] for p in prompts]
        for seat, ids in zip(at.tolist(), told, strict=True):
            self._told[seat, : len(ids)] = torch.as_tensor(np.asarray(ids, np.int64), device=self._told.device)
            self._count[seat] = len(ids)

    def _choose(self, logits: Tensor, at: Tensor) -> None:
        """Choose and record a token for the seats `at`, which are live."""
        made, count = self._made[at], self._count[at]
        past = Past(self._told[at], count, made, self._limit[at])
        draws = self._draws[at, made] if self._draws is not None else None
        chosen = choose(self._rules, logits, past, draws)
        self._told[at, count] = chosen
        self._ids[at], self._made[at], self._count[at] = chosen, made + 1, count + 1
        self._live[at] = (made + 1 < self._limit[at]) & ~torch.isin(chosen, self._ends)

    def step(self) -> None:
        """One more token of each live row."""
        used = max(self._kept, default=-1) + 1
        if not used:
            return
        size = min(self.count, 1 << (used - 1).bit_length())
        if self._decoder.device.type != "cuda":
            self._step(used)
            return
        if size not in self._graphs:
            self._graphs[size] = self._capture(size)
        self._graphs[size].replay()

    def _step(self, size: int) -> None:
        live, at = self._live[:size], self._at[:size]
        place = at % PAGE_TOKENS + PAGE_TOKENS * self._table[:size].gather(1, (at // PAGE_TOKENS)[:, None])[:, 0].long()
        seen = torch.where(live, at + 1, 0).int()
        own = Held(self._own, self._table[:size], seen, torch.where(live, place, -1))
        cross = None
        if self._cross is not None:
            lengths = torch.where(live, self._cross_lengths[:size], 0)
            cross = Held(self._cross, self._cross_table[:size], lengths)
        logits = self._decoder.step(self._ids[:size], at, own, cross)
        made, count = self._made[:size], self._count[:size]
        draws = self._draws[:size].gather(1, made.clamp(max=self.most_new - 1)[:, None])[:, 0] if self._draws is not None else None
        chosen = choose(self._rules, logits, Past(self._told[:size], count, made, self._limit[:size]), draws)
        told, width = self._told[:size], self._told.shape[1]
        here = count.clamp(max=width - 1)[:, None]
        told.scatter_(1, here, torch.where(live[:, None], chosen[:, None], told.gather(1, here)))
        self._ids[:size] = torch.where(live, chosen, self._ids[:size])
        at += live
        made += live
        count += live
        live &= (made < self._limit[:size]) & ~torch.isin(chosen, self._ends)

    def _capture(self, size: int) -> Any:
        """Record a step once, so that the device repeats it without a word from here."""
        state = (self._ids, self._at, self._live, self._made, self._count, self._told)
        before = [t.clone() for t in state]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(size)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(size)
        for now, then in zip(state, before, strict=True):
            now.copy_(then)
        return graph

    def finished(self) -> list[int]:
        """The seats whose rows have ended; waits for the device."""
        live = self._live.cpu().numpy()
        return [seat for seat in self._kept if not live[seat]]

    def look(self, seats: Sequence[int]) -> list[Made]:
        """What some rows have made so far."""
        if not seats:
            return []
        at = torch.tensor(seats, device=self._decoder.device)
        told, count, made = (t[at].cpu().numpy() for t in (self._told, self._count, self._made))
        rows = [row[n - m : n] for row, n, m in zip(told, count, made, strict=True)]
        return [Made(row, bool(len(row)) and int(row[-1]) in self._rules.ends) for row in rows]

    def clear(self, seats: Sequence[int]) -> None:
        """Empty some seats."""
        if not seats:
            return
        self._live[torch.tensor(seats, device=self._decoder.device)] = False
        for seat in seats:
            own, cross = self._kept.pop(seat)
            self._own.give(own)
            if self._cross is not None:
                self._cross.give(cross)
            self._empty.append(seat)
        # The lowest seats are filled first: a step runs up to the highest one taken.
        self._empty.sort(reverse=True)
