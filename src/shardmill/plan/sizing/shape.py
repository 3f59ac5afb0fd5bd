"""A model's size from its config.json: parameters, weights used per token, widths of its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import ModelError

_BERTS = ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")
_LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
KNOWN = (*_BERTS, "distilbert", "modernbert", *_LLAMAS, "t5", "bart")


@dataclass(frozen=True, slots=True)
class Shape:
    """`weights` counts the matrix weights used per token read, `decoder_weights` those used per token written.

    `width` is the width of queries, `kv_width` of keys and of values, `inner` of a feed-forward block's activations.
    `head_weights` are those of matrices after the network that every token is multiplied with: the words of SPLADE.
    """

    parameters: int
    weights: int
    layers: int
    hidden: int
    heads: int
    width: int
    kv_width: int
    inner: int
    causal: bool = False
    decoder_weights: int = 0
    decoder_layers: int = 0
    head_weights: int = 0

    def flops(self, tokens: float) -> float:
        """Floating-point operations to read one text of `tokens` tokens."""
        attention = 4.0 * self.layers * self.width * (0.5 if self.causal else 1.0)
        return tokens * (2.0 * (self.weights + self.head_weights) + attention * tokens)


def read_shape(config: dict[str, Any]) -> Shape:
    """The shape that a config describes; a ModelError if its model type is unknown."""
    kind = str(config.get("model_type", ""))
    try:
        if kind in _BERTS:
            return _bert(config, kind)
        if kind == "distilbert":
            return _distilbert(config)
        if kind == "modernbert":
            return _modernbert(config)
        if kind in _LLAMAS:
            return _llama(config, kind)
        if kind == "t5":
            return _t5(config)
        if kind == "bart":
            return _bart(config)
    except KeyError as error:
        raise ModelError(f"The config of a {kind} model has no {error.args[0]}.") from error
    raise ModelError(f"The size of a model of type {kind!r} cannot be estimated.", hint=f"Known: {', '.join(KNOWN)}.")


def _bert(config: dict[str, Any], kind: str) -> Shape:
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    matrices = 4 * hidden * hidden + 2 * hidden * inner
    layer = matrices + 4 * hidden + inner + hidden + 4 * hidden
    types = 0 if kind == "mpnet" else config.get("type_vocab_size", 2)
    buckets = config.get("relative_attention_num_buckets", 32) * heads if kind == "mpnet" else 0
    looked_up = (config["vocab_size"] + config["max_position_embeddings"] + types) * hidden + 2 * hidden
    pooler = hidden * hidden + hidden
    parameters = looked_up + layers * layer + pooler + buckets
    return Shape(parameters, layers * matrices, layers, hidden, heads, hidden, hidden, inner)


def _distilbert(config: dict[str, Any]) -> Shape:
    hidden, inner, layers, heads = config["dim"], config["hidden_dim"], config["n_layers"], config["n_heads"]
    matrices = 4 * hidden * hidden + 2 * hidden * inner
    looked_up = (config["vocab_size"] + config["max_position_embeddings"] + 2) * hidden
    parameters = looked_up + layers * (matrices + 9 * hidden + inner)
    return Shape(parameters, layers * matrices, layers, hidden, heads, hidden, hidden, inner)


def _modernbert(config: dict[str, Any]) -> Shape:
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    matrices = 4 * hidden * hidden + 3 * hidden * inner
    parameters = config["vocab_size"] * hidden + layers * (matrices + 2 * hidden) + hidden
    heads = config["num_attention_heads"]
    return Shape(parameters, layers * matrices, layers, hidden, heads, hidden, hidden, 3 * inner)


def _llama(config: dict[str, Any], kind: str) -> Shape:
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    width, kv_width = heads * head, (config.get("num_key_value_heads") or heads) * head
    matrices = 2 * hidden * width + 2 * hidden * kv_width + 3 * hidden * inner
    small = 2 * hidden + {"qwen3": 2 * head, "qwen2": width + 2 * kv_width}.get(kind, 0)
    embedded = config["vocab_size"] * hidden
    writes = (config.get("architectures") or [""])[0].endswith("ForCausalLM")
    head_weights = embedded if writes and not config.get("tie_word_embeddings", False) else 0
    parameters = embedded + layers * (matrices + small) + hidden + head_weights
    weights = layers * matrices
    return Shape(
        parameters,
        weights,
        layers,
        hidden,
        heads,
        width,
        kv_width,
        3 * inner,
        causal=bool(config.get("is_causal", True)),
        decoder_weights=weights + embedded,
        decoder_layers=layers,
    )


def _t5(config: dict[str, Any]) -> Shape:
    hidden, inner, heads = config["d_model"], config["d_ff"], config["num_heads"]
    layers = config["num_layers"]
    decoders = config.get("num_decoder_layers") or layers
    width = heads * config["d_kv"]
    wide = 3 if str(config.get("feed_forward_proj", "relu")).startswith("gated") else 2
    attention, forward = 4 * hidden * width, wide * hidden * inner
    embedded = config["vocab_size"] * hidden
    buckets = 2 * config.get("relative_attention_num_buckets", 32) * heads
    reading = layers * (attention + forward)
    writing = decoders * (2 * attention + forward)
    norms = (2 * layers + 3 * decoders + 2) * hidden
    head_weights = 0 if config.get("tie_word_embeddings", True) else embedded
    parameters = embedded + buckets + reading + writing + norms + head_weights
    held = inner * (3 if wide == 3 else 1)
    decoder_weights = writing + embedded
    return Shape(parameters, reading, layers, hidden, heads, width, width, held, False, decoder_weights, decoders)


def _bart(config: dict[str, Any]) -> Shape:
    hidden, layers, decoders = config["d_model"], config["encoder_layers"], config["decoder_layers"]
    inner, decoder_inner = config["encoder_ffn_dim"], config["decoder_ffn_dim"]
    reading = layers * (4 * hidden * hidden + 2 * hidden * inner)
    writing = decoders * (8 * hidden * hidden + 2 * hidden * decoder_inner)
    embedded = config["vocab_size"] * hidden
    positions = 2 * (config["max_position_embeddings"] + 2) * hidden
    small = layers * (9 * hidden + inner) + decoders * (15 * hidden + decoder_inner) + 4 * hidden
    parameters = embedded + positions + reading + writing + small
    heads = config["encoder_attention_heads"]
    decoder_weights = writing + embedded
    return Shape(parameters, reading, layers, hidden, heads, hidden, hidden, inner, False, decoder_weights, decoders)
