"""How a model's folder says that pictures become pixels: preprocessor_config.json, read as transformers reads it.

The classes that models of these families name differ in their defaults alone. A setting that none of them has is
refused: pixels are part of the result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.pictures.pixels import PictureShape

_FILES = ("preprocessor_config.json", "processor_config.json")
_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_HALF = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])
# What each class does unless told otherwise: the size, whether the middle is cut out, the filter, mean and spread.
_CLASSES: dict[str, tuple[dict[str, int], bool, int, tuple[list[float], list[float]]]] = {
    "CLIP": ({"shortest_edge": 224}, True, 3, _CLIP),
    "Bit": ({"shortest_edge": 224}, True, 3, _CLIP),
    "Siglip": ({"height": 224, "width": 224}, False, 3, _HALF),
    "ViT": ({"height": 224, "width": 224}, False, 2, _HALF),
}
_ENDS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
_READ = {"size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor", "image_processor_type"}
_READ |= {"feature_extractor_type", "do_resize", "do_center_crop", "do_rescale", "do_normalize"}
# Without effect on pixels made by Pillow, one picture at a time, in three colours.
_IDLE = {"do_convert_rgb", "processor_class", "default_to_square", "input_data_format", "data_format", "device"}
_IDLE |= {"return_tensors", "disable_grouping", "image_seq_length", "size_divisor", "pad_size", "_valid_processor_keys"}
_OFF = {"do_pad"}


@dataclass(frozen=True, slots=True)
class Processor:
    """The shape of the pixels, and the numbers by which they become what the model reads: (p · scale - mean) / std."""

    shape: PictureShape
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_processor(folder: Path) -> Processor:
    """The processor of a model's folder; refuses one that is missing or of another kind."""
    said = _read_settings(folder)
    name = str(said.get("image_processor_type") or said.get("feature_extractor_type") or "")
    kind = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)
    if kind not in _CLASSES:
        raise ModelError(
            f"{folder.name} makes pixels by {name or 'a class that it does not name'}.",
            hint=f"Known are those of {', '.join(_CLASSES)}: choose a CLIP, SigLIP, ViT or DINOv2 model.",
        )
    on = {key for key in _OFF if said.get(key)}
    if strange := sorted(on | {key for key, value in said.items() if value is not None} - _READ - _IDLE - _OFF):
        raise ModelError(
            f"{folder.name}: its processor has {strange[0]!r} ({said[strange[0]]!r}), which is not known here.",
            hint="Choose another model.",
        )
    size, crops, resample, (mean, std) = _CLASSES[kind]
    said = {key: value for key, value in said.items() if value is not None}
    if not said.get("do_resize", True):
        raise ModelError(f"{folder.name}: its processor does not resize pictures.", hint="Choose another model.")
    crops = bool(said.get("do_center_crop", crops))
    wide, high, shortest = _read_size(folder, said.get("size", size), square=kind in ("ViT", "Siglip"))
    crop = _read_size(folder, said.get("crop_size", {"height": 224, "width": 224}), square=True) if crops else (0, 0, 0)
    if shortest and not crops:
        raise ModelError(f"{folder.name}: its processor makes pictures of many sizes.", hint="Choose another model.")
    normalizes = bool(said.get("do_normalize", True))
    return Processor(
        PictureShape(wide, high, shortest, crop[0], crop[1], int(said.get("resample", resample))),
        float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0,
        tuple(map(float, said.get("image_mean", mean))) if normalizes else (0.0, 0.0, 0.0),
        tuple(map(float, said.get("image_std", std))) if normalizes else (1.0, 1.0, 1.0),
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(
            f"{folder.name} does not say how pictures become pixels: it has no {_FILES[0]}.",
            hint="Fetch the model again, with all its files.",
        )
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        found = said.get("image_processor", said) if path.name == _FILES[1] else said
        return dict(found)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not a processor's settings: {error}.", hint="Fetch the model again.") from None


def _read_size(folder: Path, said: Any, *, square: bool) -> tuple[int, int, int]:
    """The width and height, or the shorter side."""
    if isinstance(said, int):
        return (said, said, 0) if square else (0, 0, said)
    found = {key: value for key, value in said.items() if value} if isinstance(said, dict) else {}
    if set(found) == {"height", "width"}:
        return int(found["width"]), int(found["height"]), 0
    if set(found) == {"shortest_edge"}:
        return 0, 0, int(found["shortest_edge"])
    raise ModelError(f"{folder.name}: its processor has the size {said!r}.", hint="Choose another model.")
