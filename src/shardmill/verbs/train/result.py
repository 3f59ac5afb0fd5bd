"""The folder of a trained model, as `embed --model` and sentence-transformers load it, with a card."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from shardmill.models.adapters.lora import SETTINGS
from shardmill.models.encoder import quiet
from shardmill.models.folder import Dense, LayerNorm, Normalize, read_json
from shardmill.verbs.train.network import Network

_COPIED = (".json", ".txt", ".model", ".spm", ".jinja", ".py")
_MODULES = "sentence_transformers.models."
_WHOLE = "config_sentence_transformers.json"
# The names under which sentence-transformers finds the prompts of a search.
_ROLES = ("query", "document")


def write_model(network: Network, origin: Path, folder: Path, prompts: tuple[str, ...], card: str) -> None:
    """Write the network's weights beside everything else of the folder that it was loaded from.

    `prompts` become those of the model, also empty ones; without any, it keeps its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(origin.rglob("*")):
        part = file.relative_to(origin)
        hidden = any(name.startswith(".") for name in part.parts)
        if file.is_file() and file.suffix in _COPIED and not hidden and not _is_index(file) and not _is_adapter(file):
            (folder / part).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / part)
    model, *layers = network.modules
    where = folder / network.folder.transformer.resolve().relative_to(origin.resolve())
    with quiet():
        saved: Any = model
        saved.save_pretrained(where, safe_serialization=True)
    for step, layer in zip(network.folder.steps, layers, strict=True):
        if isinstance(step, Dense | LayerNorm):
            tensors = {name: value.detach().cpu().contiguous() for name, value in layer.state_dict().items()}
            save_file(tensors, folder / step.weights.resolve().relative_to(origin.resolve()))
    if not (folder / "modules.json").exists():
        _name_modules(network, folder)
    if prompts:
        _store_prompts(folder, prompts)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _is_adapter(file: Path) -> bool:
    """Whether it belongs to an adapter that was trained with the model."""
    return (file.parent / SETTINGS).exists()


def _is_index(file: Path) -> bool:
    """Whether it lists weights that lie in several files; the new ones are listed anew."""
    return file.name.endswith(".safetensors.index.json")


def _name_modules(network: Network, folder: Path) -> None:
    """Say how the vectors of a plain transformers folder are pooled."""
    pooling = {
        "word_embedding_dimension": network.folder.width,
        "pooling_mode": network.folder.pooling.modes[0],
        "include_prompt": network.folder.pooling.include_prompt,
    }
    listed = [("", "Transformer"), ("1_Pooling", "Pooling")]
    listed += [
        (f"{i}_Normalize", "Normalize") for i, s in enumerate(network.folder.steps, 2) if isinstance(s, Normalize)
    ]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": _MODULES + kind} for i, (path, kind) in enumerate(listed)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    for path, _ in listed[1:]:
        (folder / path).mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2))


def _store_prompts(folder: Path, prompts: tuple[str, ...]) -> None:
    """Make the prompts of the first two columns those of queries and documents."""
    said = read_json(folder / _WHOLE, missing={})
    known = said.get("prompts") or {}
    said["prompts"] = {**known, **dict(zip(_ROLES, prompts, strict=False))}
    (folder / _WHOLE).write_text(json.dumps(said, indent=2))
