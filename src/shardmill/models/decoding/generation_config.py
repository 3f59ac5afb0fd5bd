"""What a model says of its own decoding: which settings are followed, and which are refused by name.

transformers takes them from generation_config.json, or from config.json if there is no such file. Each of its settings
is named here or in `settings`, so that none is ignored silently; a test compares the names with transformers' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.folder import read_json

# Ways to decode that are not implemented, with the values that do not ask for them.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "constraints": (None,),
    "force_words_ids": (None,),
    "token_healing": (None, False),
}
# The same, of those that beams or a temperature replace.
_REFUSED_GREEDY: dict[str, tuple[Any, ...]] = {"dola_layers": (None,), "penalty_alpha": (None, 0, 0.0)}
_REFUSED_BEAMS: dict[str, tuple[Any, ...]] = {"num_beam_groups": (None, 0, 1), "diversity_penalty": (None, 0, 0.0)}
# How many tokens are drawn from: a caller says that, since without a temperature the likeliest token is taken.
SAMPLING = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    "num_return_sequences",
)
# Settings of memory, speed and what `generate` returns. Those that could end an answer early or need one row a batch
# are unset where transformers' own `generate` runs.
UNSET = (
    *("max_time", "prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp", "stop_strings", "token_healing"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
)
WITHOUT_EFFECT = (
    *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size"),
    *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("max_matching_ngram_size", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    *("speculation_type", "compile_config", "disable_compile", "continuous_batching_config", "remove_invalid_values"),
    *("return_dict_in_generate", "_from_model_config", "transformers_version"),
)
REFUSED = (*_REFUSED, *_REFUSED_GREEDY, *_REFUSED_BEAMS)
# A revision of answers. Revision 1, which was not recorded, ignored a model's own stop strings.
_REVISION = "answers 2"


def read_generation(root: Path) -> dict[str, Any]:
    """What a folder says of decoding, as transformers finds it."""
    said = read_json(root / "generation_config.json", missing=None)
    found = read_json(root / "config.json") if said is None else said
    return {name: value for name, value in found.items() if value is not None}


def check_generation(name: str, said: dict[str, Any], options: GenerationOptions) -> None:
    """Refuse a model that is to be decoded in a way that is not implemented."""
    refused = dict(_REFUSED)
    if options.beams > 1:
        refused |= _REFUSED_BEAMS
    elif options.temperature is None:
        refused |= _REFUSED_GREEDY
    for setting, neutral in refused.items():
        # Contrastive search begins with two candidates; transformers ignores the penalty of a single one.
        if said.get(setting) in neutral or (setting == "penalty_alpha" and (said.get("top_k") or 0) < 2):
            continue
        raise ModelError(
            f"{name} sets {setting} to {str(said[setting])[:80]!r} in its generation config; that is not implemented.",
            hint=f"To decode without it, remove {setting} from generation_config.json in a copy of the folder.",
        )


def own_stops(said: dict[str, Any]) -> tuple[str, ...]:
    """The strings that end an answer by the model's own settings."""
    stops = said.get("stop_strings") or ()
    return (stops,) if isinstance(stops, str) else tuple(map(str, stops))


def own_beams(said: dict[str, Any]) -> int:
    """The beams that the model is to be decoded with."""
    return int(said.get("num_beams") or 1)


def own_most_new(said: dict[str, Any]) -> int | None:
    """The most new tokens of an encoder-decoder model by its own settings, which count its decoder's first token."""
    if said.get("max_new_tokens"):
        return int(said["max_new_tokens"])
    return int(said["max_length"]) - 1 if int(said.get("max_length") or 0) > 1 else None


def answer_numerics(said: dict[str, Any]) -> dict[str, str]:
    """A fingerprint's `numerics` for models whose answers an earlier version ended elsewhere; else nothing."""
    return {"numerics": _REVISION} if own_stops(said) else {}
