"""Folders of models of pictures: CLIP, SigLIP, ViT and DINOv2, by their config.json."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.folder import read_json
from shardmill.models.pictures.processor import Processor, read_processor

CLIP, SIGLIP, VIT, DINO = "clip", "siglip", "vit", "dinov2"
# Models with a second network that puts texts among the pictures.
WITH_TEXTS = (CLIP, SIGLIP)


@dataclass(frozen=True)
class PictureFolder:
    """A folder whose model makes vectors of pictures."""

    path: Path
    config: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.config["model_type"])

    @property
    def reads_texts(self) -> bool:
        """Whether texts have vectors among those of pictures."""
        return self.kind in WITH_TEXTS

    @cached_property
    def processor(self) -> Processor:
        return read_processor(self.path)

    @property
    def _vision(self) -> dict[str, Any]:
        return dict(self.config.get("vision_config") or {}) if self.reads_texts else self.config

    @property
    def width(self) -> int:
        """The number of dimensions of a vector."""
        if self.kind == CLIP:
            return int(self.config.get("projection_dim") or 512)
        return int(self._vision.get("hidden_size") or 768)

    @property
    def patches(self) -> int:
        """The tokens that the model makes of a picture, which are what it costs."""
        patch = int(self._vision.get("patch_size") or (14 if self.kind == DINO else 32 if self.kind == CLIP else 16))
        width, height = self.processor.shape.size
        return max(1, width // patch) * max(1, height // patch) + 1


def read_picture_folder(path: Path) -> PictureFolder:
    """Read a folder; refuses models that make no vectors of pictures."""
    config: dict[str, Any] = read_json(path / "config.json", missing={})
    found = config.get("model_type")
    if found not in (CLIP, SIGLIP, VIT, DINO):
        raise ModelError(
            f"{path.name} makes no vectors of pictures: its model type is {found or 'not named in config.json'}.",
            hint="Pass a CLIP, SigLIP, ViT or DINOv2 model with --model.",
        )
    return PictureFolder(path, config)
