"""Beam search over pages: each seat is a group of rows, one for each beam, with the scores of transformers' search.

The beams of a group share the pages that the prompt fills, and those of the encoder's states. Their other pages follow
the beams: when a beam goes on from another, it gets a copy. Design: docs/design/generation-and-answers.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shardmill.models.decoding.choice import Past, Rules, apply_rules
from shardmill.models.decoding.model import Decoder
from shardmill.models.decoding.pages import PAGE_TOKENS, pages_for, send, table_of
from shardmill.models.decoding.prompt import Made, Prompt
from shardmill.models.decoding.seats import Seats

# What transformers adds to a score that must not win.
_NEVER = -1.0e9


@dataclass(frozen=True, slots=True)
class BeamSearch:
    """How many beams, and how answers of different lengths are compared; `early` says when no better one is awaited."""

    beams: int
    length_penalty: float = 1.0
    early: bool | Literal["never"] = False


def read_search(config: Any, beams: int) -> BeamSearch:
    """The search that a model's generation config asks for."""
    penalty = config.length_penalty
    return BeamSearch(beams, 1.0 if penalty is None else float(penalty), config.early_stopping or False)


class BeamSeats(Seats):
    """Seats of `count` prompts, each with the rows of its beams back to back."""

    def __init__(
        self,
        decoder: Decoder,
        rules: Rules,
        search: BeamSearch,
        *,
        count: int,
        pages: int,
        longest: int,
        most_new: int,
    ) -> None:
        beams = search.beams
        super().__init__(decoder, rules, count=count * beams, pages=pages, longest=longest, most_new=most_new)
        device = decoder.device
        self.count, self._search, self._beams = count, search, beams
        self._empty = list(range(count - 1, -1, -1))
        # Copies of pages that a row does not have go from here to here.
        self._spare = self._pages.take(1)[0]
        self._moving = torch.arange(pages_for(PAGE_TOKENS - 1 + most_new), device=device)
        self._fixed = torch.zeros(count * beams, dtype=torch.long, device=device)
        self._owned = torch.zeros(count * beams, dtype=torch.long, device=device)
        self._ranks = torch.arange(max(2, 1 + len(rules.ends)) * beams, device=device)
        self._running = torch.zeros(count, beams, device=device)
        self._best = torch.full((count, beams), _NEVER, device=device)
        self._over = torch.zeros(count, beams, dtype=torch.bool, device=device)
        self._open = torch.ones(count, 1, dtype=torch.bool, device=device)
        self._found = torch.zeros(count, beams, self._told.shape[1], dtype=torch.long, device=device)
        self._length = torch.zeros(count, beams, dtype=torch.long, device=device)

    def _state(self) -> list[Tensor]:
        own = [self._running, self._best, self._over, self._open, self._found, self._length]
        return [*super()._state(), *own]

    def _rows_of(self, seats: Sequence[int]) -> list[int]:
        return [seat * self._beams + beam for seat in seats for beam in range(self._beams)]

    def _own_pages(self, prompt: Prompt) -> tuple[int, int]:
        """The pages of a prompt that all beams share, and those of each beam."""
        own = self.decoder.own_tokens(len(prompt.ids))
        fixed = own // PAGE_TOKENS
        return fixed, pages_for(own + prompt.limit) - fixed

    def _wanted(self, prompt: Prompt) -> tuple[int, int]:
        fixed, moving = self._own_pages(prompt)
        return fixed + self._beams * moving, pages_for(len(prompt.ids)) if self.decoder.crossed else 0

    def keep_shared(self, ids: Any) -> None:
        """Beams share no beginning with those of other prompts."""

    def seat(self, prompts: Sequence[Prompt]) -> list[int]:
        """Read some prompts, and choose the first tokens of their beams."""
        device, crossed, beams = self.decoder.device, self.decoder.crossed, self._beams
        seats = [self._empty.pop() for _ in prompts]
        lengths = np.array([len(p.ids) for p in prompts])
        kept = np.array([self.decoder.own_tokens(int(n)) for n in lengths])
        tables: list[list[int]] = []
        crosses: list[list[int]] = []
        sizes: list[tuple[int, int]] = []
        for seat, prompt in zip(seats, prompts, strict=True):
            fixed, moving = self._own_pages(prompt)
            shared = self._pages.take(fixed * PAGE_TOKENS)
            each = [self._pages.take(moving * PAGE_TOKENS) for _ in range(beams)]
            cross = self._pages.take(len(prompt.ids)) if crossed else []
            self._kept[seat] = [*shared, *(page for pages in each for page in pages), *cross]
            tables += [shared + pages for pages in each]
            crosses.append(cross)
            sizes += [(fixed, fixed + moving)] * beams
        try:
            own = self._hold(table_of(tables[::beams], self._table.shape[1]), kept)
            cross_table = table_of(crosses, self._cross_table.shape[1])
            crossing = self._hold(cross_table, lengths) if crossed else None
            logits = self.decoder.read([p.ids for p in prompts], own, crossing)
        except BaseException:
            self.clear(seats)
            raise
        self.read_tokens += int(lengths.sum())
        rows = self._rows_of(seats)
        told = np.repeat(np.array([lengths, kept, [p.least for p in prompts], [p.limit for p in prompts]]), beams, 1)
        at, cross_length, first, least, limit, fixed_pages, owned = send(
            np.concatenate([[rows], told, np.array(sizes).T]).astype(np.int64), device
        )
        self._table[at] = send(table_of(tables, self._table.shape[1]), device)
        self._cross_table[at] = send(np.repeat(cross_table, beams, 0), device)
        self._cross_lengths[at], self._at[at], self._least[at] = cross_length.int(), first, least
        self._limit[at], self._fixed[at], self._owned[at] = limit, fixed_pages, owned
        self._made[at], self._count[at], self._live[at] = 0, 0, True
        if self._rules.looks_back:
            self._remember([prompt for prompt in prompts for _ in range(beams)], at)
        groups = send(np.array(seats), device)
        self._running[groups], self._best[groups] = _NEVER, _NEVER
        self._running[groups, 0] = 0.0
        self._over[groups], self._open[groups] = False, True
        self._move(at, at.view(-1, beams)[:, :1].expand(-1, beams).flatten())
        self._advance(logits.repeat_interleave(beams, 0), groups)
        return seats

    def _step(self, size: int) -> None:
        rows = size * self._beams
        logits = self._decode(rows)
        self._at[:rows] += self._live[:rows]
        self._advance(logits, torch.arange(size, device=logits.device))

    def _capture(self, size: int) -> Any:
        """Record a step in which no row is live: a trial step would move keys and values, which nothing takes back."""
        live = self._live.clone()
        self._live.zero_()
        try:
            return super()._capture(size)
        finally:
            self._live.copy_(live)

    def _advance(self, logits: Tensor, groups: Tensor) -> None:
        """Go on with the best beams of some groups, and keep the best answers that have ended; as transformers does."""
        search, beams, words = self._search, self._beams, logits.shape[1]
        at = (groups[:, None] * beams + torch.arange(beams, device=groups.device)).flatten()
        made, count, limit, told = self._made[at], self._count[at], self._limit[at], self._told[at]
        scores = logits.log_softmax(-1)
        apply_rules(self._rules, scores, Past(told, count, made, self._least[at], limit))
        scores = (scores.view(-1, beams, words) + self._running[groups, :, None]).flatten(1)
        best, chosen = scores.topk(len(self._ranks))
        parents, tokens = chosen // words, chosen % words
        new, most = made.view(-1, beams)[:, :1] + 1, limit.view(-1, beams)[:, :1]
        ends = torch.isin(tokens, self._ends) | (new >= most)
        # Every candidate, as it would be written.
        place = count.view(-1, beams)[:, :1].clamp(max=told.shape[1] - 1)
        written = told.view(-1, beams, told.shape[1])
        written = written.gather(1, parents[:, :, None].expand(-1, -1, told.shape[1]))
        written.scatter_(2, place[:, None].expand(-1, len(self._ranks), 1), tokens[:, :, None])

        going, which = (best + ends.float() * _NEVER).topk(beams)
        live = self._live[at].view(-1, beams)[:, :1]
        self._finish(groups, live, best, ends, written, new)
        parent = torch.where(live, parents.gather(1, which), torch.arange(beams, device=at.device))
        self._running[groups] = torch.where(live, going, self._running[groups])
        next_told = written.gather(1, which[:, :, None].expand(-1, -1, told.shape[1])).flatten(0, 1)
        alive = live.expand(-1, beams).flatten()
        self._told[at] = torch.where(alive[:, None], next_told, told)
        self._ids[at] = torch.where(alive, tokens.gather(1, which).flatten(), self._ids[at])
        self._made[at], self._count[at] = made + alive, count + alive
        self._move(at, (groups[:, None] * beams + parent).flatten())

        reach = most if search.early == "never" and search.length_penalty > 0 else new
        hope = going[:, :1] / reach**search.length_penalty
        over, found = self._over[groups], self._best[groups]
        worst = torch.where(over, found.min(1, keepdim=True).values, _NEVER)
        hopeful = self._open[groups] & (hope > worst).any(1, keepdim=True)
        self._open[groups] = torch.where(live, hopeful, self._open[groups])
        waits = ~over.all(1, keepdim=True) if search.early is True else torch.ones_like(live)
        self._live[at] = (live & hopeful & waits & ~ends.all(1, keepdim=True)).expand(-1, beams).flatten()

    def _finish(
        self, groups: Tensor, live: Tensor, best: Tensor, ends: Tensor, written: Tensor, length: Tensor
    ) -> None:
        """Keep the best answers of each group; only the likeliest candidates may end one."""
        search, over = self._search, self._over[groups]
        just = ends & (self._ranks < self._beams)
        scores = best / length**search.length_penalty
        if search.early is True:
            scores = scores + over.all(1, keepdim=True).float() * _NEVER
        scores = scores + (~self._open[groups]).float() * _NEVER
        scores = scores + (~just).float() * _NEVER
        kept, which = torch.cat([self._best[groups], scores], 1).topk(self._beams)
        ended = torch.cat([over, just], 1).gather(1, which)
        lengths = torch.cat([self._length[groups], length.expand_as(best)], 1).gather(1, which)
        texts = torch.cat([self._found[groups], written], 1)
        texts = texts.gather(1, which[:, :, None].expand(-1, -1, texts.shape[2]))
        self._best[groups] = torch.where(live, kept, self._best[groups])
        self._over[groups] = torch.where(live, ended, over)
        self._length[groups] = torch.where(live, lengths, self._length[groups])
        self._found[groups] = torch.where(live[:, :, None], texts, self._found[groups])

    def _move(self, rows: Tensor, parents: Tensor) -> None:
        """Copy the keys and values of some rows from their parents."""
        if not rows.is_cuda:
            changed = rows != parents
            rows, parents = rows[changed], parents[changed]
        # All rows of a group have the same number of tokens and pages.
        columns = self._fixed[rows][:, None] + self._moving
        there = (columns < self._owned[rows][:, None]) & (columns * PAGE_TOKENS <= self._at[rows][:, None])
        columns = columns.clamp(max=self._table.shape[1] - 1)
        to, source = (
            torch.where(there, self._table[each].gather(1, columns).long(), self._spare).flatten()
            for each in (rows, parents)
        )
        for kept in (self._pages.keys, self._pages.values):
            for layer in kept:
                layer[to] = layer[source]

    def look(self, seats: Sequence[int]) -> list[Made]:
        """The best answers that have ended."""
        if not seats:
            return []
        groups = send(np.array(seats), self.decoder.device)
        first = groups * self._beams
        prefix = (self._count[first] - self._made[first]).tolist()
        texts, lengths = self._found[groups, 0].cpu().numpy(), self._length[groups, 0].tolist()
        rows = [row[n : n + m] for row, n, m in zip(texts, prefix, lengths, strict=True)]
        return [Made(row, bool(len(row)) and int(row[-1]) in self._rules.ends) for row in rows]
