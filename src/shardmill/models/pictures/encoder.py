"""Pixels -> vectors with torch. transformers runs the networks; pixels become numbers on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.core.errors import ModelError
from shardmill.models.encoder import load_config, load_weights, memory_guard, quiet
from shardmill.models.pictures.folder import CLIP, DINO, SIGLIP, PictureFolder

# SigLIP has seen texts of exactly this many tokens.
_SIGLIP_TOKENS = 64


class PictureEncoder:
    """A loaded model. Its network of texts stays on the CPU until it is asked for."""

    def __init__(self, folder: PictureFolder, device: str) -> None:
        from transformers import AutoModel

        self._folder, self.device = folder, device
        self._device = torch.device(device)
        with quiet(), memory_guard():
            config = load_config(folder.path, folder.config, {})
            self._model: Any = load_weights(AutoModel, folder.path, config, "sdpa").eval()
            self._vision: Any = self._model.vision_model if folder.reads_texts else self._model
            self._vision.to(self._device)
            if folder.kind == CLIP:
                self._model.visual_projection.to(self._device)
        own = folder.processor
        self._scale = own.scale
        self._mean = torch.tensor(own.mean, device=self._device).view(1, 3, 1, 1)
        self._std = torch.tensor(own.std, device=self._device).view(1, 3, 1, 1)
        self.dtype = torch.float32

    def cast(self, precision: str) -> None:
        """Compute the network of pictures in this precision from now on."""
        dtype: torch.dtype = getattr(torch, precision)
        with memory_guard():
            self._vision.to(dtype)
            if self._folder.kind == CLIP:
                self._model.visual_projection.to(dtype)
        self.dtype = dtype

    def begin(self, pixels: NDArray[np.uint8]) -> Callable[[], NDArray[np.float32]]:
        """Start a batch and return a function that waits for its vectors. A GPU works in the background."""
        with memory_guard(), torch.inference_mode():
            vectors = self._vectors(torch.from_numpy(np.ascontiguousarray(pixels)))
            if self._device.type != "cuda":
                return vectors.numpy
            received = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
            received.copy_(vectors, non_blocking=True)
            done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()

        def fetch() -> NDArray[np.float32]:
            with memory_guard():
                done.synchronize()
            found: NDArray[np.float32] = received.numpy()
            return found

        return fetch

    def _vectors(self, pixels: Tensor) -> Tensor:
        numbers = pixels.to(self._device).permute(0, 3, 1, 2).float() * self._scale
        made = self._vision(pixel_values=((numbers - self._mean) / self._std).to(self.dtype))
        if self._folder.kind == CLIP:
            found = self._model.visual_projection(made.pooler_output)
        elif self._folder.kind in (SIGLIP, DINO):
            found = made.pooler_output
        else:
            found = made.last_hidden_state[:, 0]
        return _to_length_one(found)

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of texts among those of the pictures, in float32."""
        from transformers import AutoTokenizer

        path, is_clip = str(self._folder.path), self._folder.kind == CLIP
        with quiet(), memory_guard(), torch.inference_mode():
            try:
                tokenizer = AutoTokenizer.from_pretrained(path)
            except Exception as error:
                raise ModelError(
                    f"{self._folder.path.name} has no tokenizer that transformers reads: {str(error)[:200]}",
                    hint="Fetch the model again, with all its files. Pictures are found without: --picture FILE",
                ) from error
            limit = int((self._folder.config.get("text_config") or {}).get("max_position_embeddings") or 0)
            limit = limit or (77 if is_clip else _SIGLIP_TOKENS)
            asked = {"padding": "max_length", "max_length": min(limit, _SIGLIP_TOKENS)}
            asked = {"padding": True, "max_length": limit} if is_clip else asked
            tokens = tokenizer(list(texts), truncation=True, return_tensors="pt", **asked)
            # SigLIP was taught to read its padding.
            given = {name: tokens[name] for name in (("input_ids", "attention_mask") if is_clip else ("input_ids",))}
            made = self._model.text_model(**given).pooler_output
            found = self._model.text_projection(made) if is_clip else made
            vectors: NDArray[np.float32] = _to_length_one(found).numpy()
        return vectors


def _to_length_one(vectors: Tensor) -> Tensor:
    vectors = vectors.float()
    of_length_one: Tensor = vectors / vectors.norm(dim=-1, keepdim=True)
    return of_length_one
