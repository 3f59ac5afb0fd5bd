"""A folder with an adapter's weights merged into its base model, kept in the user's cache and made once per machine.

Every kernel, and every library that reads a model folder, sees the merged weights.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.core.cache import cache_folder
from shardmill.core.console import Bar
from shardmill.core.errors import ModelError
from shardmill.models.adapters.lora import SETTINGS, WEIGHTS, Lora, digest_adapter, has_modules, read_lora
from shardmill.models.adapters.merging import (
    RIGHT_BASE,
    AdapterFit,
    fit_adapter,
    say_base,
    stores_transposed,
    write_merged,
)
from shardmill.models.fetching import keep_folder
from shardmill.models.fingerprint import digest_folder
from shardmill.models.folder import find_transformer, has_safetensors, read_json
from shardmill.models.networks.stored import read_weights

_COPIED = (".json", ".txt", ".model", ".spm", ".jinja", ".py")
# Raised when the same files lead to other weights.
_REVISION = "1"
# The last layer of a classifier, whose rows are the labels.
_LABELS = ("score.weight", "classifier.weight", "classifier.out_proj.weight")


def merged_folder(base: Path, adapter: Path) -> Path:
    """The folder of a base model with an adapter merged in."""
    lora = read_lora(adapter)
    digests = digest_folder(base)
    parts = {**digests, "adapter": digest_adapter(adapter), "revision": _REVISION}
    version = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder() / "models" / version / base.name
    keep_folder(folder, lambda partial: _write(lora, base, digests["weights"], partial), str(adapter))
    return folder


def _write(lora: Lora, base: Path, weights: str, into: Path) -> None:
    source = find_transformer(base)
    if not has_safetensors(source):
        raise ModelError(
            f"{base.name} has no safetensors weights, into which an adapter could be merged.",
            hint="Pass the model that the adapter was trained on, as safetensors.",
        )
    config = read_json(source / "config.json")
    if config.get("quantization_config"):
        raise ModelError(
            f"{base.name} has quantised weights, into which no adapter can be merged.",
            hint="Pass the base model without quantisation.",
        )
    stored, transposed = read_weights(source), stores_transposed(config)
    fit = fit_adapter(lora, stored, base.name, transposed=transposed)
    if lora.trained_on not in ("", weights):
        raise ModelError(
            f"{lora.name} was trained on other weights than those of {base.name}{say_base(lora)}.", hint=RIGHT_BASE
        )
    _refuse_tied(lora, fit, config, base.name, any(name.endswith("lm_head.weight") for name in stored))
    own_modules = has_modules(lora.folder)
    _copy(source if own_modules else base, into, leave=source)
    if own_modules:
        _copy(lora.folder, into, leave=lora.folder)
    place = into if own_modules else into / source.relative_to(base.absolute())
    place.mkdir(parents=True, exist_ok=True)
    if said := _other_config(lora, fit, config):
        (place / "config.json").write_text(json.dumps({**config, **said}, indent=2))
    with Bar(f"merging {lora.name} into {base.name}") as bar:
        total = sum(4 * int(np.prod(stored.shape(name))) for name in stored)
        done = 0

        def beat(size: int) -> None:
            nonlocal done
            done += size
            bar.count(min(done, total), total, "bytes")

        write_merged(lora, fit, source, place / "model.safetensors", transposed=transposed, beat=beat)


def _copy(origin: Path, into: Path, leave: Path) -> None:
    """Copy what is read beside the weights in `leave`: those of other modules too."""
    into.mkdir(parents=True, exist_ok=True)
    for file in sorted(origin.rglob("*")):
        part = file.relative_to(origin)
        hidden = any(name.startswith(".") for name in part.parts)
        weights = file.suffix == ".safetensors" and file.parent.absolute() != leave.absolute()
        if not file.is_file() or hidden or not (weights or file.suffix in _COPIED):
            continue
        if file.name not in (SETTINGS, WEIGHTS) and not file.name.endswith(".safetensors.index.json"):
            (into / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, into / part)


def _refuse_tied(lora: Lora, fit: AdapterFit, config: Mapping[str, Any], model: str, has_head: bool) -> None:
    """Refuse to adapt words in a model that writes with the same matrix: the adapter meant only one of the two."""
    writes = str((config.get("architectures") or [""])[0]).endswith(("ForCausalLM", "ForConditionalGeneration"))
    if writes and not has_head and any(change.embedding for change in fit.changes.values()):
        raise ModelError(
            f"{lora.name} adapts the input embeddings of {model}, which are its output embeddings as well.",
            hint="Untie them, or merge the adapter with peft (merge_and_unload).",
        )


def _other_config(lora: Lora, fit: AdapterFit, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the adapter makes of the config.json: a classifier, if it brings the head of one."""
    if not (kind := lora.head):
        return {}
    found = str((config.get("architectures") or ["Model"])[0])
    made: dict[str, Any] = {}
    if not found.endswith(kind):
        stem = next((found.partition(end)[0] for end in ("For", "LMHead", "Model") if end in found), found)
        made["architectures"] = [stem + kind]
    heads = {name: change.whole for name, change in lora.changes.items() if change.whole and name.endswith(_LABELS)}
    for key in heads.values():
        labels = lora.stored.shape(key)[0]
        if len(config.get("id2label") or "01") != labels:
            made["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
            made["label2id"] = {f"LABEL_{i}": i for i in range(labels)}
    return made
