"""A config.json that remembers what was read of it: what nobody read may change the vectors, and is refused by name."""

from __future__ import annotations

from typing import Any

from shardmill.models.networks.unknown import NotDescribed

# Keys that change nothing of what an encoder computes: training, names, special tokens, and how texts are generated.
_NO_EFFECT = frozenset(
    [
        "_name_or_path",
        "_commit_hash",
        "_attn_implementation",
        "_attn_implementation_autoset",
        "architectures",
        "attn_implementation",
        "auto_map",
        "directionality",
        "dtype",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_cutoff_factor",
        "initializer_factor",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "language",
        "max_position_embeddings",
        "model_type",
        "name",
        "name_or_path",
        "output_past",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "problem_type",
        "reference_compile",
        "sbert_ce_default_activation_function",
        "sentence_transformers",
        "task_specific_params",
        "tie_encoder_decoder",
        "tie_weights_",
        "tie_word_embeddings",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "transformers.js_config",
        "type_vocab_size",
        "use_bfloat16",
        "use_cache",
        "vocab_size",
        "vocab_size_or_config_json_file",
        "xla_device",
        "num_labels",
        "_num_labels",
        "prefix",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "keys_to_ignore_at_inference",
        "base_model_tp_plan",
        "base_model_pp_plan",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "classifier_dropout_prob",
        "dropout",
        "dropout_rate",
        "embedding_dropout",
        "hidden_dropout_prob",
        "mlp_dropout",
        "qa_dropout",
        "seq_classif_dropout",
        "summary_last_dropout",
        "bos_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "mask_token_id",
        "sep_token_id",
        "unk_token_id",
        "begin_suppress_tokens",
        "suppress_tokens",
        "bad_words_ids",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict_in_generate",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "tf_legacy_loss",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ]
)
# Keys that must have one of these values, if they are there at all.
_ONLY: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False,),
    "position_embedding_type": ("absolute",),
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}


class Said:
    """The keys of a config.json; `get` gives a key, or what transformers takes if it is not there."""

    def __init__(self, config: dict[str, Any], only: dict[str, tuple[Any, ...]]) -> None:
        self._config = config
        self._known = set(_NO_EFFECT)
        for key, values in {**_ONLY, **only}.items():
            if key in config and config[key] not in values:
                raise NotDescribed(f"its config.json has {key}: {config[key]!r}")
            self._known.add(key)

    def get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        value = self._config.get(key, default)
        return default if value is None else value

    def int(self, key: str, default: int) -> int:
        return int(self.get(key, default))

    def either(self, keys: tuple[str, str], default: Any) -> Any:
        """A key that has two names."""
        found = [value for key in keys if (value := self.get(key, None)) is not None]
        return found[0] if found else default

    def has_no_effect(self, *keys: str) -> None:
        self._known.update(keys)

    def check_all_read(self) -> None:
        """Refuse keys that nobody knows."""
        if unknown := sorted(self._config.keys() - self._known):
            raise NotDescribed(f"its config.json has {unknown[0]}, which is not known")
