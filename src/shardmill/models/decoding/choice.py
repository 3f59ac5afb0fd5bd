"""The next token from logits: the model's own rules, then the likeliest or one drawn; all on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Rules:
    """How a token is chosen: the likeliest, or with a `temperature` one drawn by a uniform number per row and step.

    `masked` rows are told for every step which tokens are allowed. `scored` rows remember the log-probability of each
    token that was chosen, by the model alone.
    """

    ends: tuple[int, ...] = ()
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    first: int | None = None
    last: int | None = None
    never: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    repetition: float = 1.0
    no_repeat: int = 0
    masked: bool = False
    min_p: float = 0.0
    scored: bool = False

    @property
    def looks_back(self) -> bool:
        """Whether the choice depends on earlier tokens, those of a causal model's prompt included."""
        return self.repetition != 1.0 or self.no_repeat > 0


@dataclass(frozen=True, slots=True)
class Past:
    """What each row has so far: `told` (rows, width), of which `count` are set; the `made` last of them are new.

    `least` and `limit` are for the number of new tokens. `allowed` has a bit for each token of the vocabulary.
    """

    told: Tensor
    count: Tensor
    made: Tensor
    least: Tensor
    limit: Tensor
    allowed: Tensor | None = None


def choose(rules: Rules, logits: Tensor, past: Past, draws: Tensor | None) -> Tensor:
    """The next token of each row. `logits` (rows, vocabulary) are changed in place."""
    apply_rules(rules, logits, past)
    if rules.temperature is None or draws is None:
        return logits.argmax(-1)
    return draw(rules, logits / rules.temperature, draws)


def score(logits: Tensor, chosen: Tensor) -> Tensor:
    """The log-probability of a token of each row; `logits` are as the model gave them."""
    return logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(-1)


def apply_rules(rules: Rules, logits: Tensor, past: Past) -> None:
    """The model's own rules, in the order of transformers."""
    if rules.looks_back:
        place = torch.arange(past.told.shape[1], device=logits.device)
        set_ = place < past.count[:, None]
        if rules.repetition != 1.0:
            _weaken_repeated(logits, past.told, set_, rules.repetition)
        if rules.no_repeat:
            _forbid_repeated(logits, past, set_, rules.no_repeat)
    early = past.made < past.least
    for end in rules.ends:
        logits[:, end] = torch.where(early, _NEVER, logits[:, end])
    if rules.never:
        logits[:, list(rules.never)] = _NEVER
    begins = past.made == 0
    # As in transformers, a first token that is forced is not the one that these are forbidden for.
    free = begins if rules.first is None else past.made == 1
    for token in rules.never_first:
        logits[:, token] = torch.where(free, _NEVER, logits[:, token])
    if rules.first is not None:
        _force(logits, begins, rules.first)
    if rules.last is not None:
        _force(logits, past.made == past.limit - 1, rules.last)
    if past.allowed is not None:
        forbid(logits, past.allowed)


def forbid(logits: Tensor, allowed: Tensor) -> None:
    """Forbid the tokens whose bit is not set; `allowed` is (rows, words of 32 bits)."""
    bit = torch.arange(32, device=logits.device, dtype=torch.int32)
    bits = (allowed[:, :, None] >> bit & 1).flatten(1).bool()
    known = min(bits.shape[1], logits.shape[1])
    logits[:, :known].masked_fill_(~bits[:, :known], _NEVER)
    logits[:, known:] = _NEVER


def _force(logits: Tensor, where: Tensor, token: int) -> None:
    logits.masked_fill_(where[:, None], _NEVER)
    logits[:, token] = torch.where(where, 0.0, logits[:, token])


def _weaken_repeated(logits: Tensor, told: Tensor, set_: Tensor, penalty: float) -> None:
    seen = torch.zeros_like(logits, dtype=torch.bool)
    # An unset place writes the row's first token again, which is set.
    seen.scatter_(1, torch.where(set_, told, told[:, :1]), True)
    weaker = torch.where(logits < 0, logits * penalty, logits / penalty)
    logits.copy_(torch.where(seen & set_.any(1, keepdim=True), weaker, logits))


def _forbid_repeated(logits: Tensor, past: Past, set_: Tensor, size: int) -> None:
    """Forbid each token that would repeat a run of `size` tokens."""
    told, count = past.told, past.count
    width = told.shape[1] - size + 1
    if width < 1:
        return
    match = set_[:, size - 1 :].clone()
    for i in range(size - 1):
        at = (count - (size - 1) + i).clamp(min=0)
        match &= told[:, i : i + width] == told.gather(1, at[:, None])
    match &= (count >= size)[:, None]
    # Runs that end within the row so far; a token that is not to be forbidden is written to a column beyond.
    spare = logits.shape[1]
    wide = torch.zeros((logits.shape[0], spare + 1), dtype=torch.bool, device=logits.device)
    wide.scatter_(1, torch.where(match, told[:, size - 1 :], spare), True)
    logits.masked_fill_(wide[:, :spare], _NEVER)


def draw(rules: Rules, logits: Tensor, draws: Tensor) -> Tensor:
    """One token a row, by its uniform number: the first whose share of all likelier ones reaches the number."""
    wanted = min(rules.top_k or logits.shape[1], logits.shape[1])
    values, tokens = logits.topk(wanted, sorted=True) if wanted < logits.shape[1] else logits.sort(descending=True)
    shares = values.softmax(-1)
    if rules.top_p < 1.0:
        before = shares.cumsum(-1) - shares
        shares = torch.where(before < rules.top_p, shares, 0.0)
    if rules.min_p:
        shares = torch.where(shares >= rules.min_p * shares[:, :1], shares, 0.0)
    up_to = shares.cumsum(-1)
    chosen = (up_to < draws[:, None] * up_to[:, -1:]).sum(-1, keepdim=True)
    return tokens.gather(1, chosen.clamp(max=wanted - 1))[:, 0]
