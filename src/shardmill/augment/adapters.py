"""Applies the same parameters with kornia or torchvision v2, for pipelines built on them."""

from __future__ import annotations

from typing import Any

import torch

from shardmill.augment.images import as_tensors, pixel_noise
from shardmill.core.extras import missing_package


def apply_with_kornia(
    images: torch.Tensor, params: Any, *, ids: torch.Tensor | None = None, seed: int = 0, epoch: int = 0
) -> torch.Tensor:
    """`apply` with kornia's functions: its interpolation, its contrast (about 0) and its clamping to [0, 1]."""
    try:
        from kornia.enhance import adjust_brightness_accumulative, adjust_contrast
        from kornia.geometry.transform import rotate, scale
    except ImportError as error:
        raise missing_package("kornia") from error
    columns = as_tensors(params, images)
    images = scale(rotate(images, columns["rotation"]), columns["scale"])
    images = adjust_brightness_accumulative(images, columns["brightness"])
    images = adjust_contrast(images, columns["contrast"])
    return _with_noise(images, columns["noise"], ids, seed, epoch)


def apply_with_torchvision(
    images: torch.Tensor, params: Any, *, ids: torch.Tensor | None = None, seed: int = 0, epoch: int = 0
) -> torch.Tensor:
    """`apply` with torchvision's v2 functions, image by image, because they take one angle at a time."""
    try:
        from torchvision.transforms.v2 import InterpolationMode, functional
    except ImportError as error:
        raise missing_package("torchvision") from error
    columns = as_tensors(params, images)
    done = []
    for i, image in enumerate(images):
        value = {name: float(column[i]) for name, column in columns.items()}
        image = functional.affine(
            image,
            angle=-value["rotation"],
            translate=[0, 0],
            scale=value["scale"],
            shear=[0.0, 0.0],
            interpolation=InterpolationMode.BILINEAR,
        )
        image = functional.adjust_brightness(image, value["brightness"])
        done.append(functional.adjust_contrast(image, value["contrast"]))
    return _with_noise(torch.stack(done), columns["noise"], ids, seed, epoch)


def _with_noise(
    images: torch.Tensor, noise: torch.Tensor, ids: torch.Tensor | None, seed: int, epoch: int
) -> torch.Tensor:
    if ids is None:
        return images
    return images + pixel_noise(ids, images, seed, epoch) * noise[:, None, None, None]
