"""Why transformers could not load a model folder, and what to do about it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models.code import may_run_code, names_of_code
from shardmill.models.folder import read_json

# What transformers needs to read weights that were quantised by each method, by the names of the modules.
_PACKAGES = {
    "gptq": ("optimum", "gptqmodel"),
    "awq": ("gptqmodel", "accelerate"),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "fp8": ("accelerate",),
    "mxfp4": ("accelerate", "kernels"),
    "compressed-tensors": ("compressed_tensors",),
}
_NAMES = {"bitsandbytes": "bitsandbytes", "compressed-tensors": "compressed"}


def explain_loading(folder: Path, error: Exception) -> ModelError | MissingExtra:
    """The error for a folder that transformers did not load."""
    config: dict[str, Any] = read_json(folder / "config.json", missing={})
    method = _quantised_by(config)
    if missing := [name for name in _PACKAGES.get(method, ()) if importlib.util.find_spec(name) is None]:
        pip = " ".join(name.replace("_", "-") for name in missing)
        return MissingExtra(
            f"{folder.name} has {_NAMES.get(method, method.upper())} weights, and {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed.",
            hint=f"Install with: pip install {pip}. Or choose the model without quantisation.",
        )
    if names_of_code(folder) and not may_run_code(folder) and "trust_remote_code" in str(error):
        return ModelError(
            f"{folder.name} comes with code of its own, which this task does not run.",
            hint=f"Choose a model whose architecture transformers has; {config.get('model_type')!r} is not one.",
        )
    reason = str(error).strip().splitlines() or [type(error).__name__]
    if "Unrecognized configuration class" in reason[0]:
        return ModelError(
            f"{folder.name} ({config.get('model_type')}) is of a kind that does not fit this task.",
            hint="Choose another model: transformers has no such head for its architecture.",
        )
    hint = "Fetch it again, or upgrade transformers."
    if method:
        hint = f"Its weights are quantised ({method}): choose the model without quantisation."
    return ModelError(f"{folder.name} cannot be loaded: {reason[0][:200]}", hint=hint)


def is_quantised(folder: Path) -> bool:
    return bool(_quantised_by(read_json(folder / "config.json", missing={})))


def _quantised_by(config: dict[str, Any]) -> str:
    said = config.get("quantization_config") or config.get("compression_config") or {}
    method = str(said.get("quant_method") or "").lower()
    # Older folders of bitsandbytes name no method.
    return method or ("bitsandbytes" if said.get("load_in_4bit") or said.get("load_in_8bit") else "")
