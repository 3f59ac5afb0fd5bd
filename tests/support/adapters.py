"""LoRA adapters with random factors, in folders as PEFT writes them, and models they are merged into by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.libraries import needed

torch = needed("torch")
_SAFETENSORS = needed("safetensors.torch")
load_file, save_file = _SAFETENSORS.load_file, _SAFETENSORS.save_file

RANK = 4


def write_adapter(
    folder: Path,
    base: Path,
    modules: Mapping[str, str],
    *,
    rank: int = RANK,
    more: Mapping[str, Any] | None = None,
    seed: int = 3,
    **settings: Any,
) -> Path:
    """One for `modules`: their names in the adapter, and those of their weights in the base model; `more` tensors."""
    weights = load_file(base / "model.safetensors")
    draw = torch.Generator().manual_seed(seed)
    tensors = dict(more or {})
    for module, stored in modules.items():
        out, into = weights[f"{stored}.weight"].shape
        if settings.get("fan_in_fan_out"):
            out, into = into, out
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, into, generator=draw) * 0.3
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(out, rank, generator=draw) * 0.3
    said = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": rank, "lora_alpha": 8, "bias": "none"}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**said, **settings}))
    return folder


def write_merged(
    folder: Path,
    base: Path,
    adapter: Path,
    modules: Mapping[str, str],
    scale: float = 8 / RANK,
    *,
    turned: bool = False,
) -> Path:
    """The base model with W + scale B A for each of the modules."""
    shutil.copytree(base, folder)
    weights, factors = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for module, stored in modules.items():
        a, b = (factors[f"base_model.model.{module}.lora_{part}.weight"].double() for part in "AB")
        delta = scale * (b @ a)
        name = f"{stored}.weight"
        weights[name] = (weights[name].double() + (delta.T if turned else delta)).float()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def linear(base: Path, *ends: str) -> list[str]:
    """The modules of a base model whose names have one of these ends."""
    names = [name.removesuffix(".weight") for name in load_file(base / "model.safetensors") if name.endswith(".weight")]
    return [name for name in names if name.endswith(ends)]


def same(*modules: str, before: str = "") -> dict[str, str]:
    """The same names in the adapter, `before` before them, and in the base model."""
    return {f"{before}{name}": name for name in modules}
