"""Whether pages give what the model's own forward pass gives: logits of a few texts and some tokens after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.core.errors import ModelError
from shardmill.models.decoding.attention import Held
from shardmill.models.decoding.model import Decoder
from shardmill.models.decoding.pages import Pages, pages_for, places_of, send, table_of
from shardmill.models.golden import LOWEST_TOKEN_COSINES

Rows = Sequence[NDArray[np.int32]]
_FOLLOWING = 6
# How much further from float32 than the plain pass of the same precision pages may be.
_SLACK = 2.0


def plain_logits(model: Any, rows: Rows, *, crossed: bool) -> Tensor:
    """The logits after each row and after some tokens that follow it, (rows, tokens, vocabulary), one row at a time."""
    device = next(model.parameters()).device
    found = []
    for row in rows:
        ids = torch.from_numpy(row.astype(np.int64))[None].to(device)
        after = _following(row).to(device)[None]
        with torch.inference_mode():
            if crossed:
                start = torch.full_like(after[:, :1], int(model.generation_config.decoder_start_token_id))
                found.append(model(input_ids=ids, decoder_input_ids=torch.cat([start, after], 1)).logits[0])
            else:
                found.append(model(input_ids=torch.cat([ids, after], 1)).logits[0, len(row) - 1 :])
    logits = torch.stack(found).float()
    if not torch.isfinite(logits).all():
        raise ModelError("The model gives NaN or infinity.", hint="Fetch it again, or choose another precision.")
    return logits


def paged_logits(decoder: Decoder, rows: Rows) -> Tensor:
    """The same, all rows side by side."""
    device = decoder.device
    lengths = np.array([len(row) for row in rows])
    kept = np.array([decoder.own_tokens(len(row)) for row in rows])
    most = sum(pages_for(int(n) + _FOLLOWING) for n in kept) + sum(pages_for(int(n)) for n in lengths)
    pages = Pages(decoder.own, most, device)

    def hold(taken: list[list[int]], seen: NDArray[np.int64]) -> Held:
        table = send(table_of(taken, max(map(len, taken))), device)
        return Held(pages, table, send(seen.astype(np.int32), device), places_of(table, seen))

    owned = [pages.take(int(n) + _FOLLOWING) for n in kept]
    crossing = hold([pages.take(int(n)) for n in lengths], lengths) if decoder.crossed else None
    following = torch.stack([_following(row) for row in rows]).to(device)
    with torch.inference_mode():
        found = [decoder.read(rows, hold(owned, kept), crossing)]
        known = None if crossing is None else Held(pages, crossing.table, crossing.lengths)
        for i in range(_FOLLOWING):
            own = hold(owned, kept + i + 1)
            last = np.cumsum(kept + i + 1) - 1
            assert own.places is not None
            own = Held(pages, own.table, own.lengths, own.places[torch.from_numpy(last).to(device)])
            found.append(decoder.step(following[:, i], torch.from_numpy(kept + i).to(device), own, known))
    return torch.stack(found, 1)


def is_right(seen: Tensor, expected: Tensor, coarse: Tensor | None, precision: str) -> bool:
    """Whether logits have the direction of the expected ones, which are of float32.

    `coarse` are those of the plain pass in the same precision: a precision's own error is no fault of the pages.
    """
    allowed = 1 - LOWEST_TOKEN_COSINES[precision]
    if coarse is not None:
        allowed = max(allowed, _SLACK * _error(coarse, expected))
    return bool(torch.isfinite(seen).all()) and _error(seen, expected) <= allowed


def _error(seen: Tensor, expected: Tensor) -> float:
    a, b = (t.double() - t.double().mean(-1, keepdim=True) for t in (seen, expected))
    return float((1 - torch.nn.functional.cosine_similarity(a, b, dim=-1)).max())


def _following(row: NDArray[np.int32]) -> Tensor:
    """Tokens to go on with: the row's own, from its end on."""
    return torch.from_numpy(np.resize(row[::-1].copy(), _FOLLOWING).astype(np.int64))
