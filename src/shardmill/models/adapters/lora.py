"""Reads an adapter's folder, as PEFT writes it, without PEFT: what it does to which weights of its base model."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.fingerprint import digest_folder
from shardmill.models.folder import read_json
from shardmill.models.networks.stored import StoredWeights

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# The digest of the weights that an adapter was trained on, in the metadata of its own: `train --lora` says it.
TRAINED_ON = "trained_on"
_PREFIX = "base_model.model."
_READ = {
    *("peft_type", "base_model_name_or_path", "task_type", "r", "lora_alpha", "use_rslora", "rank_pattern"),
    *("alpha_pattern", "fan_in_fan_out", "init_lora_weights"),
}
# What was trained, and how: the factors that are stored say it.
_WITHOUT_EFFECT = {
    *("auto_mapping", "bias", "corda_config", "ensure_weight_tying", "eva_config", "exclude_modules"),
    *("inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_bias", "lora_dropout"),
    *("megatron_core", "modules_to_save", "peft_version", "qalora_group_size", "revision", "runtime_config"),
    *("target_modules", "use_dora", "peft_method"),
}
# Ways to begin that leave the base model as it is; the others change it.
_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
_FACTOR = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A|lora_embedding_B"
    r"|lora_magnitude_vector)(\.weight)?"
)
_HEADS = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
_MERGE = "Merge it into its base model with peft (merge_and_unload), and pass the folder of that."


@dataclass(frozen=True, slots=True)
class WeightChange:
    """What becomes of one weight: it is replaced, or `scale` times B A is added; DoRA sets the norms of its rows."""

    module: str
    whole: str = ""
    a: str = ""
    b: str = ""
    scale: float = 0.0
    magnitude: str = ""
    embedding: bool = False
    bias: str = ""


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter: the `changes` by the weight's name in the model that it was trained on, called `base`.

    `head` is the end of that model's architecture if it was a classifier; `trained_on` is the digest of its weights, if
    that is known.
    """

    folder: Path
    base: str
    head: str
    fan_in_fan_out: bool
    trained_on: str
    stored: StoredWeights
    changes: Mapping[str, WeightChange] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name


def is_adapter(folder: Path) -> bool:
    return (folder / SETTINGS).is_file()


def has_modules(folder: Path) -> bool:
    """Whether sentence-transformers wrote an adapter, with a tokenizer and a pooling of its own."""
    return (folder / "modules.json").exists()


def digest_adapter(folder: Path) -> str:
    """A digest of an adapter's settings and weights, and of its modules if it has some."""
    total = hashlib.sha256()
    if has_modules(folder):
        total.update(json.dumps(digest_folder(folder), sort_keys=True).encode())
    for name in (SETTINGS, WEIGHTS):
        try:
            with (folder / name).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise _missing(folder, name) from error
    return total.hexdigest()


def read_base(folder: Path) -> str:
    """The name of the model that an adapter was trained on."""
    return str(_settings(folder).get("base_model_name_or_path") or "")


def read_lora(folder: Path) -> Lora:
    """Read an adapter; a ModelError names what cannot be merged."""
    said = _settings(folder)
    _check(folder, said)
    if not (folder / WEIGHTS).is_file():
        raise _missing(folder, WEIGHTS)
    stored = StoredWeights(folder / WEIGHTS)
    changes = _changes(folder, said, stored)
    base = str(said.get("base_model_name_or_path") or "")
    trained_on = stored.metadata.get(TRAINED_ON, "")
    return Lora(folder, base, _head(said), bool(said.get("fan_in_fan_out")), trained_on, stored, changes)


def _head(said: Mapping[str, Any]) -> str:
    """The end of the architecture that a classifier has; "" of any other model."""
    found = str((said.get("auto_mapping") or {}).get("base_model_class") or "")
    return _HEADS.get(str(said.get("task_type")), next((each for each in _HEADS.values() if found.endswith(each)), ""))


def _missing(folder: Path, name: str) -> ModelError:
    pickled = (folder / "adapter_model.bin").exists()
    return ModelError(
        f"{folder.name} has no {name}{' (only adapter_model.bin)' if pickled and name == WEIGHTS else ''}.",
        hint="Save the adapter as safetensors with a newer peft, if you trust the file."
        if pickled
        else f"Pass the folder of an adapter as peft saves it, with {SETTINGS} and {WEIGHTS}.",
    )


def _settings(folder: Path) -> dict[str, Any]:
    if not is_adapter(folder):
        raise _missing(folder, SETTINGS)
    said = read_json(folder / SETTINGS)
    if not isinstance(said, dict):
        raise ModelError(f"{folder / SETTINGS} is no table of names and values.", hint="Fetch the adapter again.")
    return said


def _check(folder: Path, said: Mapping[str, Any]) -> None:
    kind = said.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{folder.name} is an adapter of the kind {kind}; shardmill merges LoRA.", hint=_MERGE)
    begun = said.get("init_lora_weights")
    if begun not in _BEGINNINGS:
        raise ModelError(
            f"{folder.name} was begun with {begun!r}, which changes the base model as well.",
            hint="Save it with peft as a usual LoRA (path_initial_model_for_weight_conversion), or merge it with peft.",
        )
    others = sorted(name for name in said.keys() - _READ - _WITHOUT_EFFECT if said[name])
    if others:
        raise ModelError(f"{folder.name} sets {others[0]}, which shardmill does not support.", hint=_MERGE)


def _changes(folder: Path, said: Mapping[str, Any], stored: StoredWeights) -> dict[str, WeightChange]:
    parts: dict[str, dict[str, str]] = {}
    made: dict[str, WeightChange] = {}
    for key in stored:
        name = key.removeprefix(_PREFIX)
        if found := _FACTOR.fullmatch(name):
            parts.setdefault(found["module"], {})[found["part"]] = key
        elif "lora_" in name or "token_adapter" in name or name == key:
            raise ModelError(f"{folder.name} has weights {key!r}, which shardmill does not know.", hint=_MERGE)
        else:
            plain = name.replace("modules_to_save.", "").replace("base_layer.", "").replace("original_module.", "")
            made[plain] = WeightChange(plain.rpartition(".")[0], whole=key)
    if not parts:
        raise ModelError(f"{folder / WEIGHTS} has no factors of LoRA.", hint="Fetch the adapter again.")
    for module, own in parts.items():
        made |= _change(folder, said, stored, module, own, made)
    return made


def _change(
    folder: Path,
    said: Mapping[str, Any],
    stored: StoredWeights,
    module: str,
    own: Mapping[str, str],
    whole: Mapping[str, WeightChange],
) -> dict[str, WeightChange]:
    embedding = "lora_embedding_A" in own
    names = ("lora_embedding_A", "lora_embedding_B") if embedding else ("lora_A.weight", "lora_B.weight")
    if any(name not in own for name in names):
        raise ModelError(f"{folder.name} has only one factor of {module}.", hint="Fetch the adapter again.")
    a, b = (own[name] for name in names)
    shapes = stored.shape(a), stored.shape(b)
    magnitude = own.get("lora_magnitude_vector", "")
    if any(len(shape) != 2 for shape in shapes) or (embedding and magnitude):
        raise ModelError(f"{folder.name} adapts {module}, which is no linear layer.", hint=_MERGE)
    rank = _by_pattern(folder, said, "rank_pattern", module, said.get("r", 8))
    if not 0 < shapes[0][0] == shapes[1][1] == rank:
        raise ModelError(
            f"{folder.name} contradicts itself: {module} has factors {shapes[0]} and {shapes[1]}, and rank {rank:g}.",
            hint="Its files may be of two adapters: fetch it again.",
        )
    alpha = _by_pattern(folder, said, "alpha_pattern", module, said.get("lora_alpha", 8))
    scale = alpha / (math.sqrt(rank) if said.get("use_rslora") else rank)
    name = f"{module}.weight"
    replaced = whole[name].whole if name in whole else ""
    made = {name: WeightChange(module, replaced, a, b, scale, magnitude, embedding)}
    if "lora_B.bias" in own:
        bias = f"{module}.bias"
        made[bias] = WeightChange(
            module, whole[bias].whole if bias in whole else "", scale=scale, bias=own["lora_B.bias"]
        )
    return made


def _by_pattern(folder: Path, said: Mapping[str, Any], name: str, module: str, usual: Any) -> float:
    """The value of the first pattern that is the end of a module's name, as PEFT reads them."""
    try:
        patterns = dict(said.get(name) or {})
        found = (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
        value = float(next(found, usual))
    except (TypeError, ValueError, re.error) as error:
        raise ModelError(
            f"{folder / SETTINGS} gives {module} no rank or alpha that is a number: {error}.",
            hint="Fetch the adapter again.",
        ) from error
    return value
