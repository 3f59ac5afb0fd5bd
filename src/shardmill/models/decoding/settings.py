"""The rules of a model's generation_config.json, as far as pages implement them."""

from __future__ import annotations

from typing import Any

from shardmill.models.decoding.choice import Rules
from shardmill.models.decoding.options import GenerationOptions

# Settings that change the choice and that only transformers' own `generate` implements, with their neutral values.
OTHERS: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (None,),
    "encoder_no_repeat_ngram_size": (None, 0),
    "encoder_repetition_penalty": (None, 1.0),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1, 1.0),
    "sequence_bias": (None,),
    "watermarking_config": (None,),
}


def read_rules(config: Any, options: GenerationOptions, *, crossed: bool) -> tuple[Rules, list[str]]:
    """The rules, and the settings that they leave out. How tokens are drawn is for the caller to say."""
    others = [name for name, neutral in OTHERS.items() if getattr(config, name, None) not in neutral]
    first = config.forced_bos_token_id
    if first is not None and not crossed:
        others.append("forced_bos_token_id")
    rules = Rules(
        ends=_many(config.eos_token_id),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        first=first if crossed else None,
        last=min(_many(config.forced_eos_token_id), default=None),
        never=_many(config.suppress_tokens),
        never_first=_many(config.begin_suppress_tokens),
        repetition=float(options.repetition_penalty or config.repetition_penalty or 1.0),
        no_repeat=int(config.no_repeat_ngram_size or 0),
        masked=options.schema is not None,
        min_p=options.min_p,
        scored=options.log_probabilities,
    )
    return rules, others


def least_tokens(config: Any) -> int:
    """The least tokens of prompt and answer together, which is how transformers counts `min_length`."""
    return int(config.min_length or 0)


def least_new(config: Any) -> int:
    """The least new tokens."""
    return int(config.min_new_tokens or 0)


def _many(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)
