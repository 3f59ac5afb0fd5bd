"""Reads the folder of a model that generates, without torch, and says of any other model which task it fits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.decoding.generation_config import read_generation
from shardmill.models.folder import read_transformer_config
from shardmill.models.heads import read_heads
from shardmill.models.kinds import SCORE, fitting_verb, makes_tokens

_CAUSAL = ("ForCausalLM", "LMHeadModel")
# What a model of another kind is, and what it is good for, by the end of its architecture's name.
_OTHERS = {
    "ForQuestionAnswering": ("finds answers in a text", "It is a reader of `shardmill answer`."),
    "ForSequenceClassification": (
        "scores texts",
        "It fits `shardmill classify`, or `shardmill score` and `answer --rerank`.",
    ),
    "ForTokenClassification": ("labels tokens", "It fits `shardmill classify`."),
}
_NUMBERS = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class GenerativeFolder:
    """A whole model: `crossed` if a decoder attends to an encoder, else causal.

    `generation` is what it says of decoding.
    """

    root: Path
    config: dict[str, Any]
    crossed: bool
    parameters: int
    generation: dict[str, Any]

    @property
    def dtype(self) -> str:
        """The type that the weights were trained in, as config.json says."""
        return str(self.config.get("dtype") or self.config.get("torch_dtype") or "float32")


def read_generative(root: Path) -> GenerativeFolder:
    """Read a model folder; a ModelError says what it is, if it does not generate."""
    config = read_transformer_config(root)
    name = (config.get("architectures") or [""])[0]
    if (root / "modules.json").exists() or makes_tokens(root):
        fits = fitting_verb(root)
        raise _refuse(root, name, "scores pairs" if fits == SCORE else "makes vectors", f"It fits `{fits}`.")
    for end, (does, hint) in _OTHERS.items():
        if name.endswith(end):
            raise _refuse(root, name, does, hint)
    crossed = bool(config.get("is_encoder_decoder")) and not name.endswith("EncoderModel")
    if not crossed and name and not name.endswith((*_CAUSAL, "ForConditionalGeneration")):
        raise _refuse(root, name, "is an encoder", "Embed with it: `shardmill embed`.")
    if not crossed and not name:
        raise ModelError(f"{root.name}/config.json does not name its architecture.", hint="Save the model again.")
    stored = (said["shape"] for _, said in read_heads(root) if said["dtype"] in _NUMBERS)
    return GenerativeFolder(root, config, crossed, sum(map(math.prod, stored)), read_generation(root))


def check_size(folder: GenerativeFolder, *, precision: str, free_bytes: int, where: str) -> None:
    """Refuse a model whose weights alone do not fit."""
    needed = folder.parameters * (4 if precision == "float32" else 2)
    if needed > free_bytes:
        raise ModelError(
            f"{folder.root.name} has {folder.parameters / 1e9:,.1f} billion parameters, which take "
            f"{needed / 1e9:,.1f} GB in {precision}; {where} has {free_bytes / 1e9:,.1f} GB free.",
            hint="Choose a smaller model, or a server that spreads it over several GPUs (--endpoint).",
        )


def find_limit(folder: GenerativeFolder, tokenizer_limit: int, max_new_tokens: int) -> int:
    """The longest prompt in tokens."""
    text = {**folder.config, **(folder.config.get("text_config") or {})}
    # T5 counts distances, not positions, so its n_positions limits nothing.
    keys = ("max_position_embeddings",) if folder.crossed else ("max_position_embeddings", "n_positions")
    positions = [int(text[key]) for key in keys if isinstance(text.get(key), int) and text[key] > 0]
    most = min([tokenizer_limit, *positions])
    if folder.crossed:
        if positions and max_new_tokens >= min(positions):
            raise _too_many(folder, max_new_tokens, min(positions))
        return most
    if max_new_tokens >= most:
        raise _too_many(folder, max_new_tokens, most)
    return most - max_new_tokens


def _too_many(folder: GenerativeFolder, wanted: int, most: int) -> ModelError:
    return ModelError(
        f"{folder.root.name} holds {most:,} tokens, and {wanted:,} new ones are asked for.",
        hint="Lower the number of new tokens.",
    )


def _refuse(root: Path, name: str, does: str, hint: str) -> ModelError:
    return ModelError(
        f"{root.name} ({name or 'a sentence-transformers folder'}) {does}; it does not generate.", hint=hint
    )
