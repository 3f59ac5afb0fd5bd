"""Tiny networks of every family, each with the options that published models use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


@dataclass(frozen=True)
class Case:
    """A config class and a model class of transformers, by their names, and the options of the config."""

    config: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] = field(default_factory=lambda: SMALL)

    def make(self, folder: Path, dtype: str = "float32") -> Any:
        """The model with random weights, saved; all of them are drawn, so that no bias is zero and no norm is one."""
        import torch
        import transformers

        torch.manual_seed(7)
        config = getattr(transformers, self.config)(**{**self.small, **self.options})
        model = getattr(transformers, self.model)(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        return model.float()


_T5 = {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}
_DISTILBERT = {"vocab_size": 120, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48}
_DISTILBERT["max_position_embeddings"] = 64

CASES = {
    "bert": Case("BertConfig", "BertModel"),
    "bert by tanh": Case("BertConfig", "BertModel", {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
    "bert with relu": Case("BertConfig", "BertModel", {"hidden_act": "relu", "type_vocab_size": 1}),
    "bert for words": Case("BertConfig", "BertForMaskedLM"),
    "roberta": Case("RobertaConfig", "RobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "roberta with another padding": Case("RobertaConfig", "RobertaModel", {"pad_token_id": 5}),
    "xlm-roberta": Case("XLMRobertaConfig", "XLMRobertaModel", {"layer_norm_eps": 1e-5, "type_vocab_size": 1}),
    "camembert": Case("CamembertConfig", "CamembertModel"),
    "distilbert": Case("DistilBertConfig", "DistilBertModel", small=_DISTILBERT),
    "distilbert with sines": Case(
        "DistilBertConfig", "DistilBertModel", {"sinusoidal_pos_embds": True, "activation": "relu"}, _DISTILBERT
    ),
    "mpnet": Case("MPNetConfig", "MPNetModel"),
    "electra": Case("ElectraConfig", "ElectraModel", {"embedding_size": 16}),
    "electra of one width": Case("ElectraConfig", "ElectraModel", {"embedding_size": 32}),
    "albert": Case("AlbertConfig", "AlbertModel", {"embedding_size": 16}),
    "albert in groups": Case(
        "AlbertConfig",
        "AlbertModel",
        {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "modernbert": Case("ModernBertConfig", "ModernBertModel", {"local_attention": 8, "pad_token_id": 0}),
    "modernbert with biases": Case(
        "ModernBertConfig",
        "ModernBertModel",
        {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "local_attention": 16, "pad_token_id": 0},
    ),
    "modernbert, whole": Case(
        "ModernBertConfig", "ModernBertModel", {"layer_types": ["full_attention"] * 3, "pad_token_id": 0}
    ),
    "t5": Case("T5Config", "T5EncoderModel", small=_T5),
    "t5 with gates": Case("T5Config", "T5EncoderModel", {"feed_forward_proj": "gated-gelu"}, _T5),
    "t5 with few buckets": Case(
        "T5Config",
        "T5EncoderModel",
        {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "feed_forward_proj": "gated-silu"},
        _T5,
    ),
    "t5, whole": Case("T5Config", "T5Model", small=_T5),
    "mt5": Case("MT5Config", "MT5EncoderModel", small=_T5),
    "umt5": Case("UMT5Config", "UMT5EncoderModel", small=_T5),
    "nomic": Case("NomicBertConfig", "NomicBertModel"),
}
