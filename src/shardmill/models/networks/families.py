"""One description per family of encoders: the names of its weights, and in what it differs from the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shardmill.models.networks.description import (
    Attention,
    Buckets,
    EncoderNetwork,
    FeedForward,
    Layer,
    Positions,
)
from shardmill.models.networks.heads import describe_head
from shardmill.models.networks.names import Names, check_activation
from shardmill.models.networks.said import Said
from shardmill.models.networks.stored import StoredWeights
from shardmill.models.networks.unknown import NotDescribed

# Weights that are stored and not used: heads for training, and buffers.
_UNUSED = re.compile(
    r"(^|\.)(pooler|cls|lm_head|vocab_\w+|predictions|generator\w*|discriminator\w*|classifier|qa_outputs|pre_classifier"
    r"|head|decoder|dropout|sop_classifier)\."
    r"|(^|\.)(position_ids|token_type_ids|inv_freq|embed_positions)$|(^|\.)(\w+_)?inv_freq$"
)
# A distance from which T5's and MPNet's buckets are the same, if the config does not say it.
_FARTHEST = 128


def describe(config: Mapping[str, Any], weights: StoredWeights, kind: str = "") -> EncoderNetwork:
    """The network of a model folder; NotDescribed tells why there is none. `kind` is that of a head (models.kinds)."""
    family = str(config.get("model_type"))
    if family not in _FAMILIES:
        raise NotDescribed(f"its family {family} is not among {', '.join(sorted(_FAMILIES))}")
    make, prefixes, only = _FAMILIES[family]
    said = Said(dict(config), only)
    names = Names(weights, prefixes)
    network = make(said, names)
    if kind:
        network = replace(network, head=describe_head(said, names, family, kind))
    said.check_all_read()
    _check_weights(network, weights)
    return network


def is_known(family: object) -> bool:
    """Whether the model type of a config is among those that are described."""
    return family in _FAMILIES


def _heads(width: int, heads: int) -> float:
    if width % heads:
        raise NotDescribed(f"its width {width} is not a multiple of its {heads} heads")
    return float((width // heads) ** -0.5)


def _bert(said: Said, names: Names, *, first: int | None = None, width: int = 768, heads: int = 12) -> EncoderNetwork:
    width, heads = said.int("hidden_size", width), said.int("num_attention_heads", heads)
    eps = float(said.get("layer_norm_eps", 1e-12))
    activation, scale = check_activation(said.get("hidden_act", "gelu")), _heads(width, heads)
    layers = []
    for i in range(said.int("num_hidden_layers", 12)):
        at = f"encoder.layer.{i}"
        query, key, value = (names.linear(f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        output = names.linear(f"{at}.attention.output.dense")
        feed = FeedForward(names.linear(f"{at}.intermediate.dense"), names.linear(f"{at}.output.dense"), activation)
        layers.append(
            Layer(
                Attention(query, key, value, output, heads, scale),
                names.norm(f"{at}.attention.output.LayerNorm", eps),
                feed,
                names.norm(f"{at}.output.LayerNorm", eps),
            )
        )
    said.has_no_effect("intermediate_size", "pad_token_id")
    return EncoderNetwork(
        words=names("embeddings.word_embeddings.weight"),
        types=names("embeddings.token_type_embeddings.weight"),
        positions=Positions(names("embeddings.position_embeddings.weight"), first),
        norm=names.norm("embeddings.LayerNorm", eps),
        layers=tuple(layers),
    )


def _roberta(said: Said, names: Names) -> EncoderNetwork:
    return _bert(said, names, first=said.int("pad_token_id", 1))


def _electra(said: Said, names: Names) -> EncoderNetwork:
    network = _bert(said, names, width=256, heads=4)
    if said.int("embedding_size", 128) == said.int("hidden_size", 256):
        return network
    return replace(network, project=names.linear("embeddings_project"))


def _distilbert(said: Said, names: Names) -> EncoderNetwork:
    width, heads = said.int("dim", 768), said.int("n_heads", 12)
    activation, scale = check_activation(said.get("activation", "gelu")), _heads(width, heads)
    layers = []
    for i in range(said.int("n_layers", 6)):
        at = f"transformer.layer.{i}"
        query, key, value, output = (names.linear(f"{at}.attention.{part}_lin") for part in ("q", "k", "v", "out"))
        feed = FeedForward(names.linear(f"{at}.ffn.lin1"), names.linear(f"{at}.ffn.lin2"), activation)
        layers.append(
            Layer(
                Attention(query, key, value, output, heads, scale),
                names.norm(f"{at}.sa_layer_norm", 1e-12),
                feed,
                names.norm(f"{at}.output_layer_norm", 1e-12),
            )
        )
    # A table of sines is stored like any other.
    said.has_no_effect("hidden_dim", "pad_token_id", "sinusoidal_pos_embds")
    return EncoderNetwork(
        words=names("embeddings.word_embeddings.weight"),
        positions=Positions(names("embeddings.position_embeddings.weight")),
        norm=names.norm("embeddings.LayerNorm", 1e-12),
        layers=tuple(layers),
    )


def _mpnet(said: Said, names: Names) -> EncoderNetwork:
    width, heads = said.int("hidden_size", 768), said.int("num_attention_heads", 12)
    eps = float(said.get("layer_norm_eps", 1e-12))
    activation, scale = check_activation(said.get("hidden_act", "gelu")), _heads(width, heads)
    # transformers computes 32 buckets, whatever the config says; the table has as many rows as it says.
    if said.int("relative_attention_num_buckets", 32) < 32:
        raise NotDescribed("its relative_attention_num_buckets is below 32")
    buckets = Buckets(names("encoder.relative_attention_bias.weight"), 32, _FARTHEST)
    layers = []
    for i in range(said.int("num_hidden_layers", 12)):
        at = f"encoder.layer.{i}"
        query, key, value, output = (names.linear(f"{at}.attention.attn.{part}") for part in "qkvo")
        feed = FeedForward(names.linear(f"{at}.intermediate.dense"), names.linear(f"{at}.output.dense"), activation)
        layers.append(
            Layer(
                Attention(query, key, value, output, heads, scale, buckets=buckets),
                names.norm(f"{at}.attention.LayerNorm", eps),
                feed,
                names.norm(f"{at}.output.LayerNorm", eps),
            )
        )
    said.has_no_effect("intermediate_size", "pad_token_id")
    return EncoderNetwork(
        words=names("embeddings.word_embeddings.weight"),
        # It counts from 1, whatever its padding id is.
        positions=Positions(names("embeddings.position_embeddings.weight"), 1),
        norm=names.norm("embeddings.LayerNorm", eps),
        layers=tuple(layers),
    )


def _albert(said: Said, names: Names) -> EncoderNetwork:
    width, heads = said.int("hidden_size", 4096), said.int("num_attention_heads", 64)
    eps = float(said.get("layer_norm_eps", 1e-12))
    activation, scale = check_activation(said.get("hidden_act", "gelu_new")), _heads(width, heads)
    count, groups = said.int("num_hidden_layers", 12), said.int("num_hidden_groups", 1)
    layers = []
    for i in range(count):
        for inner in range(said.int("inner_group_num", 1)):
            at = f"encoder.albert_layer_groups.{int(i / (count / groups))}.albert_layers.{inner}"
            parts = ("query", "key", "value", "dense")
            query, key, value, output = (names.linear(f"{at}.attention.{part}") for part in parts)
            feed = FeedForward(names.linear(f"{at}.ffn"), names.linear(f"{at}.ffn_output"), activation)
            layers.append(
                Layer(
                    Attention(query, key, value, output, heads, scale),
                    names.norm(f"{at}.attention.LayerNorm", eps),
                    feed,
                    names.norm(f"{at}.full_layer_layer_norm", eps),
                )
            )
    said.has_no_effect("embedding_size", "intermediate_size", "pad_token_id", "gap_size", "net_structure_type")
    said.has_no_effect("num_memory_blocks", "down_scale_factor", "countto_keep")
    return EncoderNetwork(
        words=names("embeddings.word_embeddings.weight"),
        types=names("embeddings.token_type_embeddings.weight"),
        positions=Positions(names("embeddings.position_embeddings.weight")),
        norm=names.norm("embeddings.LayerNorm", eps),
        project=names.linear("encoder.embedding_hidden_mapping_in"),
        layers=tuple(layers),
    )


def _modernbert(said: Said, names: Names) -> EncoderNetwork:
    width, heads = said.int("hidden_size", 768), said.int("num_attention_heads", 12)
    eps, count = float(said.get("norm_eps", 1e-5)), said.int("num_hidden_layers", 22)
    activation, scale = check_activation(said.get("hidden_activation", "gelu")), _heads(width, heads)
    every = said.int("global_attn_every_n_layers", 3)
    usual = ["sliding_attention" if i % every else "full_attention" for i in range(count)]
    kinds = said.get("layer_types", usual)
    half = said.int("local_attention", 128) // 2
    thetas = {
        "full_attention": _theta(said, "full_attention", "global_rope_theta", 160_000.0),
        "sliding_attention": _theta(said, "sliding_attention", "local_rope_theta", 10_000.0),
    }
    layers = []
    for i, kind in enumerate(kinds):
        at = f"layers.{i}"
        fused, wide = names.linear(f"{at}.attn.Wqkv"), names.linear(f"{at}.mlp.Wi")
        query, key, value = (replace(fused, part=(part, 3)) for part in range(3))
        up, gate = (replace(wide, part=(part, 2)) for part in range(2))
        reach = half if kind == "sliding_attention" else -1
        layers.append(
            Layer(
                Attention(query, key, value, names.linear(f"{at}.attn.Wo"), heads, scale, reach, thetas[kind]),
                names.norm(f"{at}.attn_norm", eps) if i else None,
                FeedForward(up, names.linear(f"{at}.mlp.Wo"), activation, gate),
                names.norm(f"{at}.mlp_norm", eps),
            )
        )
    # Which biases there are is seen by the weights.
    said.has_no_effect("intermediate_size", "pad_token_id", "norm_bias", "attention_bias", "mlp_bias", "decoder_bias")
    said.has_no_effect("classifier_pooling", "classifier_bias", "classifier_activation", "sparse_prediction")
    said.has_no_effect("sparse_pred_ignore_index", "deterministic_flash_attn", "sliding_window", "layer_norm_eps")
    said.has_no_effect("repad_logits_with_grad", "unpad_inputs", "global_attn_every_n_layers")
    return EncoderNetwork(
        words=names("embeddings.tok_embeddings.weight"),
        norm=names.norm("embeddings.norm", eps),
        layers=tuple(layers),
        norms_first=True,
        last_norm=names.norm("final_norm", eps),
        longest=said.int("max_position_embeddings", 8192),
    )


def _theta(said: Said, kind: str, old: str, default: float) -> float:
    """The base of the rotary positions of one kind of layers."""
    if (said.get("rope_scaling", None) or {}).get("rope_type", "default") != "default":
        raise NotDescribed("its positions are scaled (rope_scaling)")
    theta, found = said.get(old, default), (said.get("rope_parameters", None) or {}).get(kind) or {}
    if found.get("rope_type", "default") != "default":
        raise NotDescribed(f"its positions are of the kind {found['rope_type']}")
    return float(found.get("rope_theta", theta))


def _t5(
    said: Said, names: Names, *, count: int = 6, heads: int = 8, feed: str = "relu", each_layer: bool = False
) -> EncoderNetwork:
    heads, eps = said.int("num_heads", heads), float(said.get("layer_norm_epsilon", 1e-6))
    feed_kind = str(said.get("feed_forward_proj", feed))
    gated = feed_kind.startswith("gated-")
    # What T5 calls gelu is the one by tanh, with gates only.
    activation = check_activation("gelu_new" if feed_kind == "gated-gelu" else feed_kind.removeprefix("gated-"))
    buckets = said.int("relative_attention_num_buckets", 32), said.int("relative_attention_max_distance", _FARTHEST)
    layers = []
    for i in range(said.int("num_layers", count)):
        at = f"encoder.block.{i}.layer"
        query, key, value, output = (names.linear(f"{at}.0.SelfAttention.{part}") for part in "qkvo")
        table = names(f"encoder.block.{i if each_layer else 0}.layer.0.SelfAttention.relative_attention_bias.weight")
        dense = f"{at}.1.DenseReluDense"
        up = names.linear(f"{dense}.wi_0" if gated else f"{dense}.wi")
        gate = names.linear(f"{dense}.wi_1") if gated else None
        layers.append(
            Layer(
                Attention(query, key, value, output, heads, 1.0, buckets=Buckets(table, *buckets)),
                names.norm(f"{at}.0.layer_norm", eps, centred=False),
                FeedForward(up, names.linear(f"{dense}.wo"), activation, gate),
                names.norm(f"{at}.1.layer_norm", eps, centred=False),
            )
        )
    said.has_no_effect("d_model", "d_kv", "d_ff", "num_decoder_layers", "pad_token_id", "n_positions")
    said.has_no_effect("dense_act_fn", "is_gated_act", "scale_decoder_outputs", "max_new_tokens")
    return EncoderNetwork(
        words=names("shared.weight" if names.has("shared.weight") else "encoder.embed_tokens.weight"),
        layers=tuple(layers),
        norms_first=True,
        last_norm=names.norm("encoder.final_layer_norm", eps, centred=False),
    )


def _mt5(said: Said, names: Names) -> EncoderNetwork:
    return _t5(said, names, count=8, heads=6, feed="gated-gelu")


def _umt5(said: Said, names: Names) -> EncoderNetwork:
    return _t5(said, names, count=8, heads=6, feed="gated-gelu", each_layer=True)


def _nomic(said: Said, names: Names) -> EncoderNetwork:
    """NomicBERT, with the names of transformers or with those that were published, whose matrices are stored as one."""
    published = names.has("emb_ln.weight")
    width, heads = said.either(("hidden_size", "n_embd"), 768), said.either(("num_attention_heads", "n_head"), 12)
    eps = float(said.either(("layer_norm_eps", "layer_norm_epsilon"), 1e-12))
    activation = str(said.either(("hidden_act", "activation_function"), "silu"))
    activation, scale = check_activation({"swiglu": "silu"}.get(activation, activation)), _heads(width, heads)
    rope = said.get("rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise NotDescribed(f"its positions are of the kind {rope['rope_type']}")
    theta = float(rope.get("rope_theta") or said.either(("rope_theta", "rotary_emb_base"), 1000.0))
    layers = []
    for i in range(int(said.either(("num_hidden_layers", "n_layer"), 12))):
        if published:
            at = f"encoder.layers.{i}"
            fused = names.linear(f"{at}.attn.Wqkv")
            query, key, value = (replace(fused, part=(part, 3)) for part in range(3))
            output, norms = names.linear(f"{at}.attn.out_proj"), ("norm1", "norm2")
            gate, up, down = (names.linear(f"{at}.mlp.{part}") for part in ("fc11", "fc12", "fc2"))
        else:
            at = f"layers.{i}"
            query, key, value, output = (names.linear(f"{at}.self_attn.{part}_proj") for part in "qkvo")
            norms = ("post_attention_layernorm", "post_mlp_layernorm")
            gate, up, down = (names.linear(f"{at}.mlp.{part}_proj") for part in ("up", "gate", "down"))
        layers.append(
            Layer(
                Attention(query, key, value, output, heads, scale, theta=theta),
                names.norm(f"{at}.{norms[0]}", eps),
                FeedForward(up, down, activation, gate),
                names.norm(f"{at}.{norms[1]}", eps),
            )
        )
    said.has_no_effect("intermediate_size", "n_inner", "pad_token_id", "head_dim", "attn_pdrop")
    said.has_no_effect("embd_pdrop", "resid_pdrop", "fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn")
    said.has_no_effect("use_xentropy", "pad_vocab_size_multiple", "max_trained_positions", "qkv_proj_bias")
    said.has_no_effect("mlp_fc1_bias", "mlp_fc2_bias", "dense_seq_output", "default_theta", "rotary_emb_scale_base")
    return EncoderNetwork(
        words=names("embeddings.word_embeddings.weight"),
        types=names("embeddings.token_type_embeddings.weight"),
        norm=names.norm("emb_ln" if published else "embeddings.LayerNorm", eps),
        layers=tuple(layers),
        longest=int(said.either(("max_position_embeddings", "n_positions"), 2048)),
    )


def _check_weights(network: EncoderNetwork, weights: StoredWeights) -> None:
    wanted = network.weights()
    if missing := sorted(wanted - set(weights)):
        raise NotDescribed(f"its weights lack {missing[0]}")
    if unknown := sorted(name for name in set(weights) - wanted if not _UNUSED.search(name)):
        raise NotDescribed(f"its weights have {unknown[0]}, which is not known")


_NOMIC_ONLY: dict[str, tuple[Any, ...]] = {
    "causal": (False,),
    "parallel_block": (False,),
    "parallel_block_tied_norm": (False,),
    "prenorm": (False,),
    "reorder_and_upcast_attn": (False,),
    "rotary_emb_fraction": (1, 1.0),
    "rotary_emb_interleaved": (False,),
    "rotary_scaling_factor": (None,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
    "use_rms_norm": (False, None),
}
_Family = tuple[Callable[[Said, Names], EncoderNetwork], tuple[str, ...], dict[str, tuple[Any, ...]]]
_FAMILIES: dict[str, _Family] = {
    "albert": (_albert, ("albert.",), {}),
    "bert": (_bert, ("bert.",), {}),
    "camembert": (_roberta, ("roberta.", "camembert."), {}),
    "distilbert": (_distilbert, ("distilbert.",), {}),
    "electra": (_electra, ("electra.",), {}),
    "modernbert": (_modernbert, ("model.",), {}),
    "mpnet": (_mpnet, ("mpnet.",), {}),
    "mt5": (_mt5, ("transformer.",), {}),
    "nomic_bert": (_nomic, ("nomic_bert.", "bert."), _NOMIC_ONLY),
    "roberta": (_roberta, ("roberta.",), {}),
    "t5": (_t5, ("transformer.",), {}),
    "umt5": (_umt5, ("transformer.",), {}),
    "xlm-roberta": (_roberta, ("roberta.",), {}),
}
