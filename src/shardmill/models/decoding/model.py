"""A causal or an encoder-decoder model that keeps its keys and values in pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardmill.core.errors import ModelError
from shardmill.models.biased import bias_by_distance
from shardmill.models.compiling import compile_layers
from shardmill.models.decoding.attention import ATTENTION, Held, Turn, mark_cross, register, running
from shardmill.models.decoding.pages import PAGE_TOKENS, PageShape, count_within, send
from shardmill.models.packed import Pack

Rows = Sequence[NDArray[np.int32]]
_ALIGNED_WORDS = 64
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class Decoder(ABC):
    """Runs texts once (`read`), then one new token of each row at a time (`step`). Both return logits in float32."""

    def __init__(self, model: Any) -> None:
        register()
        self.model = model
        self.config: Any = model.config.get_text_config(decoder=True)
        refuse_layers(self.config)
        model.set_attn_implementation(ATTENTION)

    @property
    def device(self) -> torch.device:
        found: torch.device = next(self.model.parameters()).device
        return found

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = next(self.model.parameters()).dtype
        return found

    own: PageShape
    crossed = False
    compiled = False
    start: int = 0
    _aligned: Tensor | None = None

    @abstractmethod
    def read(self, texts: Rows, own: Held, cross: Held | None, before: Tensor | None = None) -> Tensor:
        """Run whole texts; the logits of the token that follows each.

        `before` are the pages, all full, of a text that comes before each of them and was read already.
        """

    def _head(self, hidden: Tensor) -> Tensor:
        """The logits of some tokens in float32."""
        head: Any = self.model.get_output_embeddings()
        words = head.weight.shape[0]
        if not hidden.is_cuda or not words % _ALIGNED_WORDS or head.bias is not None:
            logits: Tensor = head(hidden)
            return logits.float()
        # A matrix product with a number of columns that is not aligned takes four times as long.
        if self._aligned is None:
            self._aligned = nn.functional.pad(head.weight, (0, 0, 0, -words % _ALIGNED_WORDS))
        return nn.functional.linear(hidden, self._aligned)[:, :words].float()

    def compile(self) -> None:
        """Compile the layers at their next call."""
        for module in self.model.modules():
            # The attention counts the layers by itself; a number in each would compile each for itself.
            if isinstance(getattr(module, "layer_idx", None), int):
                module.layer_idx = 0
        for part in self._parts():
            compile_layers(part)
        self.compiled = True

    def _parts(self) -> list[nn.Module]:
        return [self.model.get_decoder()]

    @abstractmethod
    def step(self, ids: Tensor, at: Tensor, own: Held, cross: Held | None) -> Tensor:
        """Run one token of each row, at its position; the logits of the next."""

    @abstractmethod
    def own_tokens(self, text_tokens: int) -> int:
        """How many tokens of a text of this length are kept beside the new ones."""


class CausalDecoder(Decoder):
    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.own = find_shape(model, crossed=False)

    def own_tokens(self, text_tokens: int) -> int:
        return text_tokens

    def read(self, texts: Rows, own: Held, cross: Held | None, before: Tensor | None = None) -> Tensor:
        first = 0 if before is None else len(before) * PAGE_TOKENS
        pack, ids, positions = lay_out(texts, self.device, first)
        last = pack.starts[1:].long() - 1
        turn = Turn(pack, own, before=before)
        with running(turn):
            hidden = self._hidden(ids, positions)
        check_attended(turn.layer + 1, self.own.layers)
        return self._logits(hidden[last])

    def step(self, ids: Tensor, at: Tensor, own: Held, cross: Held | None) -> Tensor:
        with running(Turn(None, own)):
            return self._logits(self._hidden(ids, at))

    def _hidden(self, ids: Tensor, positions: Tensor) -> Tensor:
        base = self.model.get_decoder()
        hidden: Tensor = base(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, return_dict=True
        ).last_hidden_state
        return hidden[0]

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden)
        scale = getattr(self.config, "logits_scaling", None)
        cap = getattr(self.config, "final_logit_softcapping", None)
        if getattr(self.config, "logit_scale", None):
            logits = logits * self.config.logit_scale
        if scale:
            logits = logits / scale
        return torch.tanh(logits / cap) * cap if cap else logits


class CrossDecoder(Decoder):
    """An encoder and a decoder: the texts are the encoder's, and the decoder starts with one token of its own."""

    crossed = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        mark_cross(model)
        self._encoder, self._decoder = model.get_encoder(), model.get_decoder()
        if not any(getattr(m, "shardmill_cross", False) for m in self._decoder.modules()):
            raise ModelError("The decoder's attention to the encoder was not found.", hint="It runs padded.")
        self.own = find_shape(model, crossed=True)
        self.start = int(model.generation_config.decoder_start_token_id)
        self._positions: Tensor | None = None
        self._biases = [find_bias(part) for part in (self._encoder, self._decoder)]
        for part, bias in zip((self._encoder, self._decoder), self._biases, strict=True):
            embed = getattr(part, "embed_positions", None)
            if embed is None and bias is None:
                raise ModelError("How this family counts positions is not known.", hint="It runs padded.")
            if embed is not None:
                embed.register_forward_pre_hook(self._place, with_kwargs=True)
        added: Tensor | None = getattr(model, "final_logits_bias", None)
        self._bias = added.float() if added is not None and bool(added.any()) else None

    def own_tokens(self, text_tokens: int) -> int:
        return 1

    def _place(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Positions as they are in each row; the modules would count them through all rows."""
        return args, {**kwargs, "position_ids": self._positions}

    def _parts(self) -> list[nn.Module]:
        return [self._encoder, self._decoder]

    def read(self, texts: Rows, own: Held, cross: Held | None, before: Tensor | None = None) -> Tensor:
        pack, ids, self._positions = lay_out(texts, self.device)
        with running(Turn(pack, None, bias=self._biases[0])):
            states = self._encoder(input_ids=ids[None], return_dict=True).last_hidden_state
        check_attended(pack.attended, self._encoder.config.num_hidden_layers)
        start = torch.full((len(texts),), self.start, device=self.device)
        return self._run(start, torch.zeros_like(start), states, Turn(None, own, cross, self._biases[1]), known=False)

    def step(self, ids: Tensor, at: Tensor, own: Held, cross: Held | None) -> Tensor:
        width = self._encoder.config.d_model
        nothing = torch.empty((1, 1, width), dtype=self.dtype, device=self.device)
        return self._run(ids, at, nothing, Turn(None, own, cross, self._biases[1]), known=True)

    def _run(self, ids: Tensor, at: Tensor, states: Tensor, turn: Turn, *, known: bool) -> Tensor:
        """With the keys and values of the encoder's states `known`, the modules do not compute them again."""
        self._positions = at
        with running(turn):
            hidden = self._decoder(
                input_ids=ids[None],
                encoder_hidden_states=states,
                past_key_values=_no_cache(self.own.layers, known, states),
                use_cache=True,
                return_dict=True,
            ).last_hidden_state[0]
        check_attended(turn.layer + 1, self.own.layers)
        if getattr(self.model.config, "scale_decoder_outputs", False):
            hidden = hidden * self.model.config.d_model**-0.5
        logits = self._head(hidden)
        return logits if self._bias is None else logits + self._bias


class _Nothing:
    """What transformers takes for a cache: it keeps nothing, since the attention does."""

    def __init__(self, layers: int, states: Tensor) -> None:
        self.layers = [self] * layers
        self.keys = self.values = states[:, None, :, :1]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return key_states, value_states

    def get_seq_length(self, *args: Any) -> int:
        return 0


def _no_cache(layers: int, known: bool, states: Tensor) -> Any:
    """A cache of nothing, that says whether the keys and values of the encoder's states are known."""
    from transformers.cache_utils import EncoderDecoderCache

    whole: Any = EncoderDecoderCache.__new__(EncoderDecoderCache)
    whole.self_attention_cache = whole.cross_attention_cache = _Nothing(layers, states)
    whole.is_updated = _Known(known)
    return whole


class _Known:
    """Says of every layer whether the keys and values of the encoder's states are known."""

    def __init__(self, known: bool) -> None:
        self.known = known

    def get(self, layer: int) -> bool:
        return self.known

    def __setitem__(self, layer: int, known: bool) -> None:
        pass


def find_shape(model: Any, *, crossed: bool) -> PageShape:
    """The keys and values that a model keeps for each token."""
    c: Any = model.config if crossed else model.config.get_text_config(decoder=True)
    dtype = next(model.parameters()).dtype
    if crossed:
        layers = getattr(c, "decoder_layers", None) or getattr(c, "num_decoder_layers", None) or c.num_layers
        heads = getattr(c, "decoder_attention_heads", None) or c.num_heads
        return PageShape(layers, heads, getattr(c, "d_kv", None) or c.d_model // heads, dtype)
    heads = getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    width = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    return PageShape(c.num_hidden_layers, heads, width, dtype)


def find_bias(part: nn.Module) -> Tensor | None:
    """The bias that T5 and its kin add by distance, (heads, distances), taken over from the module that computes it.

    The module would compute it for every pair of tokens in a batch.
    """
    found = [m for m in part.modules() if getattr(m, "has_relative_attention_bias", False)]
    if not found:
        return None
    if len(found) > 1:
        raise ModelError("Each layer of this model has a position bias of its own.", hint="It runs padded.")
    module: Any = found[0]
    bias = bias_by_distance(module)
    nothing = torch.zeros((1, 1, 1, 1), device=bias.device)
    module.compute_bias = lambda *args, **kwargs: nothing
    return bias


def lay_out(texts: Rows, device: torch.device, first: int = 0) -> tuple[Pack, Tensor, Tensor]:
    """Texts back to back: where each starts, their ids and positions from `first` on, in one copy to the device."""
    lengths = np.array([len(text) for text in texts])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    staged = np.concatenate([starts, *texts, count_within(lengths) + first]).astype(np.int64)
    sent = send(staged, device)
    sizes = [len(starts), int(lengths.sum()), int(lengths.sum())]
    sent_starts, ids, positions = torch.split(sent, sizes)
    return Pack(sent_starts.int(), lengths, int(lengths.max())), ids, positions


def check_attended(seen: int, layers: int) -> None:
    """Refuse a model with layers that do not attend through our function, and would mix the rows."""
    if seen < layers:
        raise ModelError("Not every layer of this model attends over pages.", hint="It runs padded.")


def refuse_layers(config: Any) -> None:
    """Refuse layers whose attention is neither whole nor a window."""
    unknown = sorted(set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS)
    if unknown:
        raise ModelError(f"Attention over pages does not implement {', '.join(unknown)}.", hint="It runs padded.")
