"""transformers' own `generate` in padded batches, for what pages do not implement: beams, and some families."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.core.errors import DeviceOutOfMemory
from shardmill.models.decoding.choice import Rules, draw, forbid, score
from shardmill.models.decoding.prompt import Made, Prompt
from shardmill.models.decoding.schema import Grammar, Guide
from shardmill.models.decoding.stream import Group, Key
from shardmill.models.encoder import memory_guard, quiet

# Batches that are sorted by length together.
_SORTED_BATCHES = 8


@dataclass(slots=True)
class PlainStream(Generic[Key]):
    """Batches of `rows` prompts of about one length; halved if they do not fit into memory."""

    model: Any
    rules: Rules
    pad: int
    crossed: bool
    beams: int
    rows: int
    grammar: Grammar | None = None
    stops: Callable[[Made], bool] | None = None

    def run(self, prompts: Iterator[tuple[Key, Prompt] | None]) -> Iterator[Group[Key]]:
        """As `PagedStream.run`."""
        waiting: list[tuple[Key, Prompt]] = []
        more = True
        while more or waiting:
            while more and len(waiting) < self.rows * _SORTED_BATCHES:
                try:
                    if (one := next(prompts)) is None:
                        break
                    waiting.append(one)
                except StopIteration:
                    more = False
            waiting.sort(key=lambda each: (each[1].limit, len(each[1].ids)), reverse=True)
            batch = self._first(waiting)
            if not batch:
                continue
            try:
                with memory_guard(), quiet(), torch.inference_mode():
                    made = self._generate([prompt for _, prompt in batch])
            except DeviceOutOfMemory as error:
                if len(batch) > 1:
                    self.rows = len(batch) // 2
                    continue
                made = [error]  # type: ignore[list-item]
            del waiting[: len(batch)]
            yield [(*each, row) for each, row in zip(batch, made, strict=True)]

    def _first(self, waiting: list[tuple[Key, Prompt]]) -> list[tuple[Key, Prompt]]:
        """The next batch: one limit, and one length where padding would count as part of the prompt."""
        batch: list[tuple[Key, Prompt]] = []
        for key, prompt in waiting[: self.rows]:
            first = batch[0][1] if batch else prompt
            exact = not self.crossed and (self.rules.looks_back or prompt.least or first.least)
            if prompt.limit != first.limit or (exact and len(prompt.ids) != len(first.ids)):
                break
            batch.append((key, prompt))
        return batch

    def _generate(self, prompts: Sequence[Prompt]) -> list[Made]:
        longest = max(len(p.ids) for p in prompts)
        ids = np.full((len(prompts), longest), self.pad, np.int64)
        mask = np.zeros_like(ids)
        for i, prompt in enumerate(prompts):
            where = slice(0, len(prompt.ids)) if self.crossed else slice(longest - len(prompt.ids), longest)
            ids[i, where], mask[i, where] = prompt.ids, 1
        device = next(self.model.parameters()).device
        config = copy.deepcopy(self.model.generation_config)
        config.update(
            max_new_tokens=prompts[0].limit, max_length=None, num_beams=self.beams, pad_token_id=self.pad,
            do_sample=False, temperature=1.0, top_k=50, top_p=1.0, num_return_sequences=1,
            return_dict_in_generate=False, repetition_penalty=self.rules.repetition,
        )  # fmt: skip
        first = 1 if self.crossed else longest
        told = self.model.generate(
            torch.from_numpy(ids).to(device),
            attention_mask=torch.from_numpy(mask).to(device),
            generation_config=config,
            logits_processor=self._processors(prompts, first),
            stopping_criteria=[self._stopping(first)] if self.stops is not None else None,
        )
        made = [self._cut(row[first:]) for row in told.cpu().numpy()]
        if not self.rules.scored:
            return made
        return [replace(own, scores=self._score(prompt, own)) for prompt, own in zip(prompts, made, strict=True)]

    def _score(self, prompt: Prompt, made: Made) -> NDArray[np.float32]:
        """The log-probabilities of new tokens, by the model alone: `generate` tells those after its rules."""
        device = next(self.model.parameters()).device
        read, new = (torch.from_numpy(np.asarray(ids, np.int64)).to(device) for ids in (prompt.ids, made.ids))
        if self.crossed:
            start = new.new_full((1,), int(self.model.generation_config.decoder_start_token_id))
            logits = self.model(input_ids=read[None], decoder_input_ids=torch.cat([start, new[:-1]])[None]).logits[0]
        else:
            logits = self.model(input_ids=torch.cat([read, new[:-1]])[None]).logits[0, len(read) - 1 :]
        found: NDArray[np.float32] = score(logits.float(), new).cpu().numpy()
        return found

    def _cut(self, row: Any) -> Made:
        """A row up to its first end token; what follows is padding."""
        ends = np.flatnonzero(np.isin(row, self.rules.ends))
        return Made(row[: ends[0] + 1], True) if len(ends) else Made(row, False)

    def _processors(self, prompts: Sequence[Prompt], first: int) -> Any:
        from transformers import LogitsProcessorList

        found: list[Any] = []
        if self.grammar is not None:
            found.append(_Guided(Guide(self.grammar, len(prompts)), first, self.rules.ends))
        if self.rules.temperature is not None:
            drawn = torch.from_numpy(np.stack([np.asarray(p.draws) for p in prompts]))
            found.append(_Drawn(self.rules, drawn, first))
        return LogitsProcessorList(found)

    def _stopping(self, first: int) -> Any:
        assert self.stops is not None
        stops = self.stops

        def ended(ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            rows = ids[:, first:].cpu().numpy()
            return torch.tensor([stops(Made(row, False)) for row in rows], device=ids.device)

        return ended


@dataclass(slots=True)
class _Guided:
    """Leaves each row the tokens that its schema allows."""

    guide: Guide
    first: int
    ends: tuple[int, ...]

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        rows = list(range(len(ids)))
        if ids.shape[1] == self.first:
            self.guide.begin(rows)
        else:
            ended: Any = np.isin(ids[:, self.first :].cpu().numpy(), self.ends).any(1)
            self.guide.advance(rows, ids[:, -1].tolist(), [not over for over in ended.tolist()])
        forbid(scores, torch.from_numpy(self.guide.masks).to(scores.device))
        return scores


@dataclass(slots=True)
class _Drawn:
    """Leaves each row the one token that its own number draws."""

    rules: Rules
    draws: Tensor
    first: int

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        assert self.rules.temperature is not None
        step = ids.shape[1] - self.first
        chosen = draw(self.rules, scores.float() / self.rules.temperature, self.draws[:, step].to(scores.device))
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen[:, None], 0.0)
