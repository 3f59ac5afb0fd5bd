"""Padding-free batches: the texts of a batch back to back, each attending only to itself.

The attention is registered through transformers' own interface, so a model that uses that interface runs packed
without changes. The golden sentences check that its vectors are correct before it is chosen.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shardmill.core.errors import ModelError
from shardmill.models import gradients
from shardmill.models.biased import take_over_biases
from shardmill.models.compiling import compile_layers, eager_if
from shardmill.models.encoder import Encoder
from shardmill.models.folder import TOKENS, ModelFolder
from shardmill.models.tokenizer import first_position
from shardmill.models.window import find_reach

ATTENTION = "shardmill_packed"
_LEAST_COMPILED_TOKENS = 2
_TILED_WIDTHS = {16, 32, 64, 128}
# Arguments of transformers that do not change what attention gives; any other is refused.
_WITHOUT_EFFECT = {
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "max_length_k", "max_length_q",
    "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits", "past_key_value",
    "past_key_values", "position_embeddings", "position_ids", "return_dict", "seq_idx", "use_cache",
}  # fmt: skip
_FAR = 1 << 20
# Families whose embeddings are made of three tokens, so that the ends of texts would mix.
_JOINS_NEIGHBOURS = {"mobilebert"}


@dataclass(slots=True)
class Pack:
    """The start of each text in a packed batch; `starts` has one entry more than there are texts."""

    starts: Tensor
    lengths: NDArray[np.int64]
    longest: int
    attended: int = 0
    """How many layers have attended to it."""


# The configs whose masks were checked, by identity and window; kept alive, so that no other gets that identity.
_checked: dict[tuple[int, int], Any] = {}
# The pack that the model currently runs on; the attention of every layer reads it.
_packs: list[Pack] = []
_Item = TypeVar("_Item")


@contextlib.contextmanager
def running(pack: Pack) -> Iterator[None]:
    """Let the packed attention of every layer read this pack."""
    with on_top(_packs, pack):
        yield


@contextlib.contextmanager
def on_top(stack: list[_Item], item: _Item) -> Iterator[None]:
    """Put an item on a stack for as long as a model runs: its attention finds it there."""
    stack.append(item)
    try:
        yield
    finally:
        stack.pop()


class PackedEncoder(Encoder):
    """Runs a batch as one row of tokens, without padding."""

    padded = False

    def __init__(self, folder: ModelFolder, *, device: str, pad_id: int, loaded: Encoder | None = None) -> None:
        if folder.config.get("model_type") in _JOINS_NEIGHBOURS:
            raise ModelError("This model joins neighbouring tokens before its layers.", hint="It runs padded.")
        register()
        super().__init__(folder, device=device, pad_id=pad_id, attention=ATTENTION, loaded=loaded)
        self._model.config.use_cache = False
        self.biased = take_over_biases(self._model, ATTENTION, _attend_biased)
        self._first_position = first_position(folder)
        self._attends = False

    def compile(self, *, learns: bool = False) -> None:
        """Compile the layers, at the next call."""
        compile_layers(self._model, learns=learns)
        self._compiled = True

    def backward(self, vectors: Tensor, upper: Tensor, rows: Sequence[NDArray[np.int32]]) -> None:
        lengths = np.array([len(row) for row in rows])
        starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        with on_top(_packs, Pack(starts.to(self._device), lengths, int(lengths.max()))):
            super().backward(vectors, upper, rows)

    def _pooled(self, rows: Sequence[NDArray[np.int32]], skip: int) -> Tensor:
        lengths = np.array([len(row) for row in rows])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        tokens = int(starts[-1])
        # One copy to the device instead of three. Starts come first, because they must be aligned.
        sizes = [_rounded(len(starts)), tokens, tokens]
        staged = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=self._device.type == "cuda")
        places, ids, positions = np.split(staged.numpy(), np.cumsum(sizes)[:-1])
        places[: len(starts)] = starts
        np.concatenate(rows, out=ids)
        positions[:] = self._positions(ids, starts, lengths)
        sent_starts, sent_ids, sent_positions = torch.split(staged.to(self._device, non_blocking=True), sizes)
        pack = Pack(sent_starts[: len(starts)], lengths, int(lengths.max()))
        with on_top(_packs, pack), eager_if(self._compiled and tokens < _LEAST_COMPILED_TOKENS):
            hidden = self._model(
                input_ids=sent_ids[None],
                position_ids=sent_positions[None],
                attention_mask=torch.ones_like(sent_ids)[None],
                return_dict=True,
            ).last_hidden_state
        if not self._attends:
            self._check_attends(pack)
        if self._words is not None:
            weights: Tensor = self._words(hidden[0], lengths)
            return weights
        return pool_packed(hidden[0].float(), pack, self._pooling.modes, 0 if self._pooling.include_prompt else skip)

    def _check_attends(self, pack: Pack) -> None:
        """Refuse a model with layers that would mix the texts: those that do not attend through our function."""
        if pack.attended < self._model.config.num_hidden_layers:
            raise ModelError("Not every layer of this model has packed attention.", hint="It runs padded.")
        self._attends = True

    def _positions(
        self, ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The position of each token in its text; models that count from the padding id skip padding tokens."""
        return positions_of(ids, starts, lengths, self._first_position, self._pad_id)


def positions_of(
    ids: NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64], first: int, pad_id: int
) -> NDArray[np.int64]:
    """The positions of a model whose texts begin at `first`, if that is not 0 counted without padding tokens."""
    if not first:
        return np.arange(len(ids)) - np.repeat(starts[:-1], lengths)
    counted = ids != pad_id
    count: NDArray[np.int64] = np.cumsum(counted)
    before = np.repeat(count[starts[:-1]] - counted[starts[:-1]], lengths)
    positions: NDArray[np.int64] = (count - before) * counted + first - 1
    return positions


def _rounded(count: int) -> int:
    return -(-count // 16) * 16


def pool_packed(hidden: Tensor, pack: Pack, modes: Sequence[str], skip: int) -> Tensor:
    """One vector per text, in float32, without its first `skip` tokens; the same as `pool` on a padded batch."""
    if tuple(modes) == (TOKENS,):
        return hidden
    return torch.cat([_pool_by(mode, hidden, pack, skip) for mode in modes], dim=-1)


def _pool_by(mode: str, hidden: Tensor, pack: Pack, skip: int) -> Tensor:
    first, end = pack.starts[:-1].long(), pack.starts[1:].long()
    pooled = (end - first > skip)[:, None]
    if mode == "cls":
        return hidden[first + skip * pooled[:, 0]]
    if mode == "lasttoken":
        return hidden[end - 1] * pooled
    if not skip and mode != "weightedmean":
        return _by_text("max", hidden, first, end) if mode == "max" else _mean(mode, hidden, end - first, first, end)
    within = torch.arange(len(hidden), device=hidden.device) - first.repeat_interleave(
        end - first, output_size=len(hidden)
    )
    keep = (within >= skip)[:, None]
    if mode == "max":
        return _by_text("max", hidden.masked_fill(~keep, float("-inf")), first, end)
    weights = keep * (within + 1.0 if mode == "weightedmean" else torch.ones_like(hidden[:, 0]))[:, None]
    # Multiplying a skipped position by zero is not enough: NaN * 0 is NaN.
    weighted = torch.where(weights > 0, hidden * weights, 0.0)
    return _mean(mode, weighted, _by_text("sum", weights, first, end)[:, 0], first, end)


def _mean(mode: str, values: Tensor, count: Tensor, first: Tensor, end: Tensor) -> Tensor:
    divisor = count.float().clamp(min=1e-9)[:, None]
    return _by_text("sum", values, first, end) / (divisor.sqrt() if mode == "mean_sqrt_len_tokens" else divisor)


def _by_text(reduce: str, values: Tensor, first: Tensor, end: Tensor) -> Tensor:
    """Reduce per text, always in the same order, unlike `index_add_`."""
    reduced: Tensor = torch.segment_reduce(values, reduce, lengths=end - first, axis=0, unsafe=True)
    return reduced


def register() -> None:
    """Register the packed attention with transformers. It needs no mask, because nothing is padded."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, packed_attention)
    AttentionMaskInterface.register(ATTENTION, check_mask)


def check_mask(
    *args: Any, mask_function: Callable[..., Tensor], config: Any, local_size: int | None = None, **kwargs: Any
) -> None:
    """Refuse a mask other than whole texts, causal or a window, such as chunks; asked once for each kind of layer."""
    window = local_size or _FAR
    if (id(config), window) in _checked:
        return
    distance = torch.tensor([-_FAR, -window - 1, -window, 1 - window, -1, 0, 1, window - 1, window, window + 1, _FAR])
    first = torch.tensor(0)
    seen = mask_function(first, first, torch.tensor(2 * _FAR), distance + 2 * _FAR).expand(len(distance))
    near = distance.abs() < window, distance.abs() <= window, torch.ones_like(distance, dtype=torch.bool)
    if not any(torch.equal(seen, allowed & side) for allowed in near for side in (distance <= 0, near[-1])):
        raise ModelError("Packed attention does not implement this model's mask.", hint="It runs padded.")
    _checked[id(config), window] = config


def packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over the current pack, with transformers' signature: inputs are (1, heads, tokens, width)."""
    bias = position_bias if getattr(module, "passes_bias_by_distance", False) else None
    unread = position_bias if bias is None else None
    refuse_unknown({**kwargs, "attention_mask": attention_mask, "position_bias": unread})
    left, right = find_reach(bool(getattr(module, "is_causal", False)), is_causal, sliding_window)
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = (t.to(torch.get_autocast_dtype(q.device.type)) for t in (q, k, v))
    by_distance = None if bias is None else bias[0, :, 0]
    return _attend(q, k, v, scaling or q.shape[-1] ** -0.5, left, right, by_distance)[None], None


def _attend_biased(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor) -> Tensor:
    """Attention over the current pack for modules that call it themselves."""
    made: Tensor = _attend(q, k, v, scale, -1, -1, bias)
    return made


def refuse_unknown(given: Mapping[str, Any]) -> None:
    """Refuse arguments of attention that change its result and that the packed kernels do not implement."""
    unknown = [n for n, v in given.items() if n not in _WITHOUT_EFFECT and v is not None and v is not False]
    if unknown:
        raise ModelError(f"Packed attention does not implement {', '.join(unknown)}.", hint="It runs padded.")


@torch.library.custom_op("shardmill::attend", mutates_args=())
def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, right: int, bias: Tensor | None = None) -> Tensor:
    """One opaque operation, so that compiled code does not depend on the number of texts or the longest one."""
    return attend_pack(q, k, v, _packs[-1], scale, (left, right), bias)


def attend_pack(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack: Pack,
    scale: float,
    window: tuple[int, int],
    bias: Tensor | None = None,
    earlier: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Attention within each text of a pack by the kernel of this device; `bias`, `earlier` as in `attention.attend`."""
    pack.attended += 1
    if not q.is_cuda:
        return _one_by_one(q, k, v, pack, scale, window, bias, earlier)
    if tiles_fit(q.shape[2]):
        return _by_triton(q, k, v, pack, scale, window, bias, earlier)
    if bias is not None:
        raise ModelError(f"Packed attention with heads {q.shape[2]} wide has no position bias.", hint="It runs padded.")
    assert earlier is None
    return _by_varlen(q, k, v, pack, scale, window)


@_attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, right: int, bias: Tensor | None = None) -> Tensor:
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)


@torch.library.custom_op("shardmill::attend_back", mutates_args=())
def _attend_back(
    up: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, right: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `attend`, for the pack that it ran on, which must be the current one again."""
    pack, window = _packs[-1], (left, right)
    if q.is_cuda:
        return gradients.by_flash(up, q, k, v, pack.starts, pack.longest, scale, window)
    lengths = pack.lengths.tolist()
    return gradients.one_by_one(up, q, k, v, lengths, [_window_mask(n, window, q.device, 0) for n in lengths], scale)


@_attend_back.register_fake
def _(
    up: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, left: int, right: int
) -> tuple[Tensor, Tensor, Tensor]:
    made = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (q, k, v)]
    return made[0], made[1], made[2]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    *ctx.rest, bias = inputs[3:]
    ctx.biased = bias is not None


def _go_back(ctx: Any, up: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.biased:
        raise ModelError("Packed attention does not teach a position bias.", hint="It learns padded.")
    return (*_attend_back(up, *ctx.saved_tensors, *ctx.rest), None, None, None, None)


_attend.register_autograd(_go_back, setup_context=_remember)


@cache
def tiles_fit(width: int) -> bool:
    """Whether shardmill's own kernel takes heads of this width."""
    return width in _TILED_WIDTHS and importlib.util.find_spec("triton") is not None


def _by_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack: Pack,
    scale: float,
    window: tuple[int, int],
    bias: Tensor | None,
    earlier: tuple[Tensor, Tensor] | None,
) -> Tensor:
    from shardmill.models.attention import attend

    result: Tensor = attend(q, k, v, pack.starts, pack.longest, scale, window, bias, earlier)
    return result


def _by_varlen(q: Tensor, k: Tensor, v: Tensor, pack: Pack, scale: float, window: tuple[int, int]) -> Tensor:
    """torch's own kernel, for head widths that do not fit a tile."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {"scale": scale}
    if "window_size" in known:
        options["window_size"] = window
    elif window in ((-1, -1), (-1, 0)):
        options["is_causal"] = window == (-1, 0)
    else:
        raise ValueError("this version of torch has no sliding-window attention")
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    out: Any = varlen_attn(q, k, v, pack.starts, pack.starts, pack.longest, pack.longest, **options)
    return out  # type: ignore[no-any-return]


def _one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pack: Pack,
    scale: float,
    window: tuple[int, int],
    bias: Tensor | None = None,
    earlier: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The same by plain attention, one text at a time: for devices without the kernel, and as a reference in tests."""
    parts = []
    ends = np.cumsum(pack.lengths)
    before = 0 if earlier is None else len(earlier[0])
    for start, stop in zip(ends - pack.lengths, ends, strict=True):
        a, b, c = (t[start:stop].transpose(0, 1)[None] for t in (q, k, v))
        if earlier is not None:
            b, c = (torch.cat([e.transpose(0, 1)[None], t], 2) for e, t in zip(earlier, (b, c), strict=True))
        mask = _window_mask(int(stop - start), window, q.device, before)
        if bias is not None:
            mask = _biased(bias, int(stop - start), mask).to(q.dtype)
        grouped = q.shape[1] != k.shape[1]
        parts.append(scaled_dot_product_attention(a, b, c, mask, scale=scale, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(parts)


def _window_mask(length: int, window: tuple[int, int], device: torch.device, before: int) -> Tensor | None:
    if window == (-1, -1):
        return None
    at = torch.arange(before + length, device=device)
    distance = at[None, :] - at[before:, None]
    left, right = (len(at) if side < 0 else side for side in window)
    return (distance <= right) & (distance >= -left)


def _biased(bias: Tensor, length: int, mask: Tensor | None) -> Tensor:
    """The bias of each pair of tokens, and minus infinity where the mask hides one."""
    at, reach = torch.arange(length, device=bias.device), bias.shape[1] // 2
    added = bias[:, (at[None, :] - at[:, None]).clamp(-reach, reach) + reach]
    return added if mask is None else added.masked_fill(~mask, float("-inf"))
