"""The rows that a device generates side by side: their state lies on the device, and a step needs no word from here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.models.decoding.attention import Held
from shardmill.models.decoding.choice import Past, Rules, choose, score
from shardmill.models.decoding.model import Decoder
from shardmill.models.decoding.pages import PAGE_TOKENS, Pages, pages_for, places_of, send, table_of
from shardmill.models.decoding.prompt import Made, Prompt
from shardmill.models.decoding.schema import Guide
from shardmill.models.packed import tiles_fit

# Steps are recorded for a power of two of seats, and above this for multiples of it.
_SIZE_STEP = 256


class Seats:
    """A fixed number of seats, each empty or with a row. `longest` is the most tokens of a prompt.

    `shared` are the pages of a text that many prompts begin with, and `read_tokens` counts the tokens read so far.
    """

    def __init__(
        self,
        decoder: Decoder,
        rules: Rules,
        *,
        count: int,
        pages: int,
        longest: int,
        most_new: int,
        guide: Guide | None = None,
    ) -> None:
        device = decoder.device
        self.decoder, self._rules, self._guide, self.count = decoder, rules, guide, count
        self.longest, self.most_new = longest, most_new
        self._pages = Pages(decoder.own, pages, device)
        self._kept: dict[int, list[int]] = {}
        self._empty = list(range(count - 1, -1, -1))
        self._shared_ids, self._shared_pages = np.zeros(0, np.int32), list[int]()
        self.read_tokens = 0

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        prefix = decoder.own_tokens(longest) if rules.looks_back else 0
        self._ids, self._at, self._least, self._limit = zeros(count), zeros(count), zeros(count), zeros(count)
        self._told, self._count, self._made = zeros(count, prefix + most_new), zeros(count), zeros(count)
        self._live = zeros(count, dtype=torch.bool)
        self._draws = zeros(count, most_new, dtype=torch.float32) if rules.temperature is not None else None
        self._scores = zeros(count, most_new, dtype=torch.float32) if rules.scored else None
        self._allowed = torch.from_numpy(guide.masks).to(device) if guide is not None else None
        self._table = zeros(count, pages_for(decoder.own_tokens(longest) + most_new), dtype=torch.int32)
        self._cross_table = zeros(count, pages_for(longest) if decoder.crossed else 1, dtype=torch.int32)
        self._cross_lengths = zeros(count, dtype=torch.int32)
        self._ends = torch.tensor(rules.ends, dtype=torch.long, device=device)
        self._graphs: dict[int, Any] = {}

    @property
    def taken(self) -> list[int]:
        return list(self._kept)

    @property
    def most_steps(self) -> int:
        """How many steps may follow one another without a look: one, where each choice is guided from here."""
        return 4 if self._guide is None else 1

    def _wanted(self, prompt: Prompt) -> tuple[int, int]:
        """The pages that a prompt takes for its own tokens, and for what its decoder attends to."""
        own = self.decoder.own_tokens(len(prompt.ids)) + prompt.limit - self.share(prompt) * PAGE_TOKENS
        return pages_for(own), pages_for(len(prompt.ids)) if self.decoder.crossed else 0

    def choose_first(self, prompts: Sequence[Prompt], most_tokens: int) -> list[Prompt]:
        """The first of some prompts that can be seated together; more than `most_tokens` only if it is a single one."""
        chosen: list[Prompt] = []
        tokens = pages = 0
        shared = self.share(prompts[0])
        for prompt in prompts[: len(self._empty)]:
            tokens, pages = tokens + len(prompt.ids), pages + sum(self._wanted(prompt))
            if (chosen and tokens > most_tokens) or pages > self._pages.free or self.share(prompt) != shared:
                break
            chosen.append(prompt)
        return chosen

    def share(self, prompt: Prompt) -> int:
        """How many of the shared pages a prompt begins with."""
        if not self._shared_pages:
            return 0
        most = min(len(self._shared_ids), len(prompt.ids) - 1)
        same = prompt.ids[:most] == self._shared_ids[:most]
        return (most if same.all() else int(same.argmin())) // PAGE_TOKENS

    def keep_shared(self, ids: NDArray[np.int32]) -> None:
        """Read a text that many prompts begin with, once; only what fills whole pages is kept."""
        tokens = len(ids) // PAGE_TOKENS * PAGE_TOKENS
        fits = self.decoder.device.type != "cuda" or tiles_fit(self.decoder.own.width)
        if self._shared_pages or self.decoder.crossed or not tokens or not fits or pages_for(tokens) > self._pages.free:
            return
        pages = self._pages.take(tokens)
        try:
            self.decoder.read([ids[:tokens]], self._hold(table_of([pages], len(pages)), np.array([tokens])), None)
        except BaseException:
            self._pages.give(pages)
            raise
        self._shared_ids, self._shared_pages = ids[:tokens].copy(), pages
        self.read_tokens += tokens

    def seat(self, prompts: Sequence[Prompt]) -> list[int]:
        """Read some prompts, which begin with as many shared pages, and choose the first new token of each."""
        device, crossed = self.decoder.device, self.decoder.crossed
        shared = self._shared_pages[: self.share(prompts[0])]
        skip = len(shared) * PAGE_TOKENS
        seats = [self._empty.pop() for _ in prompts]
        lengths = np.array([len(p.ids) for p in prompts])
        kept = np.array([self.decoder.own_tokens(int(n)) for n in lengths])
        pages = [[self._pages.take(n * PAGE_TOKENS) for n in self._wanted(prompt)] for prompt in prompts]
        self._kept.update((seat, own + cross) for seat, (own, cross) in zip(seats, pages, strict=True))
        try:
            table = table_of([shared + own for own, _ in pages], self._table.shape[1])
            cross_table = table_of([cross for _, cross in pages], self._cross_table.shape[1])
            own = self._hold(table, kept, skip)
            crossing = self._hold(cross_table, lengths) if crossed else None
            before = send(np.array(shared), device) if shared else None
            logits = self.decoder.read([p.ids[skip:] for p in prompts], own, crossing, before)
        except BaseException:
            self.clear(seats)
            raise
        self.read_tokens += int(lengths.sum()) - skip * len(seats)
        numbers = [seats, lengths, kept, [p.least for p in prompts], [p.limit for p in prompts]]
        at, *told = send(np.array(numbers, np.int64), device)
        self._table[at], self._cross_table[at] = own.table, send(cross_table, device)
        self._cross_lengths[at] = told[0].int()
        self._at[at], self._least[at], self._limit[at] = told[1:]
        self._made[at], self._count[at], self._live[at] = 0, 0, True
        if self._rules.looks_back:
            self._remember(prompts, at)
        if self._draws is not None:
            drawn = np.stack([np.resize(np.asarray(p.draws), self.most_new) for p in prompts])
            self._draws[at] = send(drawn, device)
        if self._guide is not None and self._allowed is not None:
            self._guide.begin(seats)
            self._allowed[at] = send(self._guide.masks[seats], device)
        self._choose(logits, at)
        self._follow(seats)
        return seats

    def _hold(self, table: NDArray[np.int32], lengths: NDArray[np.int64], skip: int = 0) -> Held:
        device = self.decoder.device
        sent = send(table, device)
        return Held(self._pages, sent, send(lengths.astype(np.int32), device), places_of(sent, lengths, skip))

    def _remember(self, prompts: Sequence[Prompt], at: Tensor) -> None:
        """Put what the choice looks back on before the new tokens: the prompt, or the decoder's first token."""
        told = [[self.decoder.start] if self.decoder.crossed else p.ids for p in prompts]
        counts = np.array([len(ids) for ids in told])
        rows = np.zeros((len(told), counts.max()), np.int64)
        for row, ids in zip(rows, told, strict=True):
            row[: len(ids)] = ids
        self._told[at, : rows.shape[1]] = send(rows, self.decoder.device)
        self._count[at] = send(counts, self.decoder.device)

    def _choose(self, logits: Tensor, at: Tensor) -> None:
        """Choose and record a token for the seats `at`, which are live."""
        made, count = self._made[at], self._count[at]
        allowed = self._allowed[at] if self._allowed is not None else None
        past = Past(self._told[at], count, made, self._least[at], self._limit[at], allowed)
        draws = self._draws[at, made] if self._draws is not None else None
        raw = logits.clone() if self._scores is not None else logits
        chosen = choose(self._rules, logits, past, draws)
        if self._scores is not None:
            self._scores[at, made] = score(raw, chosen)
        self._told[at, count] = chosen
        self._ids[at], self._made[at], self._count[at] = chosen, made + 1, count + 1
        self._live[at] = (made + 1 < self._limit[at]) & ~torch.isin(chosen, self._ends)

    def _follow(self, seats: Sequence[int]) -> None:
        """Tell the guide what some rows chose, and the device what each may choose next."""
        if self._guide is None or self._allowed is None or not seats:
            return
        at = send(np.array(seats), self.decoder.device)
        self._guide.advance(seats, self._ids[at].tolist(), self._live[at].tolist())
        self._allowed[at] = send(self._guide.masks[list(seats)], self.decoder.device)

    def step(self) -> None:
        """One more token of each live row."""
        used = max(self._kept, default=-1) + 1
        if not used:
            return
        going = [seat for seat, live in enumerate(self._live[:used].tolist()) if live] if self._guide else []
        if self.decoder.device.type != "cuda":
            self._step(used)
        else:
            size = min(self.count, _rounded(used))
            if size not in self._graphs:
                self._graphs[size] = self._capture(size)
            self._graphs[size].replay()
        self._follow(going)

    def _decode(self, size: int) -> Tensor:
        """Run the last token of each of the first rows; the logits of the next."""
        live, at = self._live[:size], self._at[:size]
        column = (at // PAGE_TOKENS).clamp(max=self._table.shape[1] - 1)
        place = at % PAGE_TOKENS + PAGE_TOKENS * self._table[:size].gather(1, column[:, None])[:, 0].long()
        own = Held(self._pages, self._table[:size], torch.where(live, at + 1, 0).int(), torch.where(live, place, -1))
        cross = None
        if self.decoder.crossed:
            lengths = torch.where(live, self._cross_lengths[:size], 0)
            cross = Held(self._pages, self._cross_table[:size], lengths)
        return self.decoder.step(self._ids[:size], at, own, cross)

    def _step(self, size: int) -> None:
        logits, live = self._decode(size), self._live[:size]
        made, count, told = self._made[:size], self._count[:size], self._told[:size]
        draws = None
        if self._draws is not None:
            draws = self._draws[:size].gather(1, made.clamp(max=self.most_new - 1)[:, None])[:, 0]
        allowed = self._allowed[:size] if self._allowed is not None else None
        past = Past(told, count, made, self._least[:size], self._limit[:size], allowed)
        raw = logits.clone() if self._scores is not None else logits
        chosen = choose(self._rules, logits, past, draws)
        if self._scores is not None:
            scores, place = self._scores[:size], made.clamp(max=self.most_new - 1)[:, None]
            scores.scatter_(1, place, torch.where(live[:, None], score(raw, chosen)[:, None], scores.gather(1, place)))
        here = count.clamp(max=told.shape[1] - 1)[:, None]
        told.scatter_(1, here, torch.where(live[:, None], chosen[:, None], told.gather(1, here)))
        self._ids[:size] = torch.where(live, chosen, self._ids[:size])
        self._at[:size] += live
        made += live
        count += live
        live &= (made < self._limit[:size]) & ~torch.isin(chosen, self._ends)

    def _capture(self, size: int) -> Any:
        """Record a step once, so that the device repeats it without a word from here."""
        state = self._state()
        before = [t.clone() for t in state]
        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._step(size)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            pool = next(iter(self._graphs.values())).pool() if self._graphs else None
            with torch.cuda.graph(graph, pool=pool):
                self._step(size)
        finally:
            for now, then in zip(state, before, strict=True):
                now.copy_(then)
        return graph

    def _state(self) -> list[Tensor]:
        """What a step changes, but for keys and values."""
        scores = [] if self._scores is None else [self._scores]
        return [self._ids, self._at, self._live, self._made, self._count, self._told, *scores]

    def _rows_of(self, seats: Sequence[int]) -> list[int]:
        """The rows of some seats."""
        return list(seats)

    def finished(self) -> list[int]:
        """The seats whose rows have ended; waits for the device."""
        live = self._live.cpu().numpy()
        return [seat for seat in self._kept if not live[self._rows_of([seat])[0]]]

    def look(self, seats: Sequence[int]) -> list[Made]:
        """What some rows have made so far."""
        if not seats:
            return []
        at = send(np.array(seats), self.decoder.device)
        told, count, made = (t[at].cpu().numpy() for t in (self._told, self._count, self._made))
        rows = [row[n - m : n] for row, n, m in zip(told, count, made, strict=True)]
        scores: Any = [None] * len(rows) if self._scores is None else self._scores[at].cpu().numpy()
        return [
            Made(row, bool(len(row)) and int(row[-1]) in self._rules.ends, None if own is None else own[: len(row)])
            for row, own in zip(rows, scores, strict=True)
        ]

    def clear(self, seats: Sequence[int]) -> None:
        """Empty some seats."""
        if not seats:
            return
        self._live[send(np.array(self._rows_of(seats)), self.decoder.device)] = False
        for seat in seats:
            self._pages.give(self._kept.pop(seat))
            self._empty.append(seat)
        # The lowest seats are filled first: a step runs up to the highest one taken.
        self._empty.sort(reverse=True)


def _rounded(used: int) -> int:
    if used > _SIZE_STEP:
        return -(-used // _SIZE_STEP) * _SIZE_STEP
    return 1 << (used - 1).bit_length()
