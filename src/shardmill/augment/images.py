"""Applies parameters to a batch of images, on the images' device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shardmill.augment.config import STANDARD
from shardmill.core import random as randoms
from shardmill.core.errors import UsageError
from shardmill.core.random.philox import LOW, philox

_PIXELS = "augment/pixels"
_NEUTRAL = {"rotation": 0.0, "brightness": 1.0, "noise": 0.0, "scale": 1.0, "contrast": 1.0}


def apply(
    images: torch.Tensor, params: Any, *, ids: torch.Tensor | None = None, seed: int = 0, epoch: int = 0
) -> torch.Tensor:
    """Apply five parameters to each image of (N, C, H, W): rotation and scale about its centre, brightness as a factor,
    contrast about its mean, and noise of the given deviation.

    `params` are columns or a list of dicts; a missing parameter changes nothing. Noise is counter-based like the
    parameters, so it needs the items' `ids`. Values are not clamped, and gradients flow to images and parameters.

    apply(images, augmentation_tensors(ids, config), ids=ids).clamp(0, 1)
    """
    if images.ndim != 4 or not images.is_floating_point():
        kind = f"{images.dtype} of shape {tuple(images.shape)}"
        raise UsageError(f"Images must be floats of shape (N, C, H, W), not {kind}.", hint="Use .float() / 255.")
    columns = as_tensors(params, images)
    images = _turn(images, columns["rotation"], columns["scale"])
    images = images * _wide(columns["brightness"])
    middle = images.mean(dim=(1, 2, 3), keepdim=True)
    images = (images - middle) * _wide(columns["contrast"]) + middle
    if not bool((columns["noise"] != 0).any()):
        return images
    if ids is None:
        raise UsageError("Noise needs the ids of the items.", hint="Give ids=…, or noise=(0, 0).")
    return images + pixel_noise(ids, images, seed, epoch) * _wide(columns["noise"])


def as_tensors(params: Any, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The five parameters as tensors with the device and dtype of the images."""
    if isinstance(params, Sequence):
        params = {name: [row[name] for row in params] for name in STANDARD if params and name in params[0]}
    if not isinstance(params, Mapping):
        raise UsageError(f"{type(params).__name__} has no parameters.", hint="Give columns, or a list of dicts.")
    columns = {}
    for name in STANDARD:
        column = params.get(name, _NEUTRAL[name])
        if not isinstance(column, torch.Tensor):
            column = torch.from_numpy(np.asarray(column, np.float64))
        column = column.to(images.device, images.dtype)
        if column.ndim == 0:
            column = column.expand(len(images))
        if column.shape != (len(images),):
            raise UsageError(f"{name} has {len(column)} values for {len(images)} images.", hint="Give one per image.")
        columns[name] = column
    return columns


def pixel_noise(ids: torch.Tensor, images: torch.Tensor, seed: int = 0, epoch: int = 0) -> torch.Tensor:
    """Standard normal noise in the shape of the images; it depends only on item, epoch and pixel position."""
    if ids.shape != (len(images),):
        raise UsageError(f"{len(ids)} ids for {len(images)} images.", hint="Give one per image.")
    randoms.check_counter(epoch)
    pixels = images[0].numel() if len(images) else 0
    item = ids.to(device=images.device, dtype=torch.int64)[:, None]
    block = torch.arange(-(-pixels // 4), device=images.device)[None, :]
    zero = torch.zeros_like(item + block)
    key = randoms.make_key(seed, _PIXELS)
    words = philox((zero + (item & LOW), zero + ((item >> 32) & LOW), zero + epoch, zero + block), key)
    draws = torch.stack(words, dim=-1).reshape(len(images), -1)[:, :pixels]
    noise: torch.Tensor = randoms.normal((draws.to(torch.float64) + 0.5) * 2.0**-32)
    return noise.reshape(images.shape).to(images.dtype)


def _wide(column: torch.Tensor) -> torch.Tensor:
    return column[:, None, None, None]


def _turn(images: torch.Tensor, rotation: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rotate counter-clockwise by degrees and enlarge by scale; pixels from outside the image are black."""
    height, width = images.shape[2:]
    angle = torch.deg2rad(rotation)
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    zero = torch.zeros_like(cos)
    # Maps each pixel to its place in the source, in coordinates from -1 to 1 for any shape.
    first = torch.stack([cos, -sin * (height / width), zero], dim=-1)
    second = torch.stack([sin * (width / height), cos, zero], dim=-1)
    grid = torch.nn.functional.affine_grid(torch.stack([first, second], dim=1), list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)
