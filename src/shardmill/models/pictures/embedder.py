"""Pictures in, vectors out. It has the parts of `TextEmbedder` that a task of vectors asks for.

embedder = PictureEmbedder("./clip-vit-base-patch32")
embedder.open(Device("cpu", "cpu", threads=4))
vectors = embedder.begin(embedder.decode([content])[0])()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.core.extras import missing_package
from shardmill.models.code import names_of_code
from shardmill.models.golden import agree
from shardmill.models.installed import check_torch
from shardmill.models.location import Location, find_model
from shardmill.models.pictures.decoder import PictureDecoder, check_pillow
from shardmill.models.pictures.folder import PictureFolder, read_picture_folder

if TYPE_CHECKING:
    from shardmill.models.pictures.encoder import PictureEncoder

# Pictures in a batch, by the kind of device.
_BATCH = {"cpu": 16, "cuda": 128}
_HALVES = ("float16", "bfloat16")
_GOLDEN = 4


class PictureEmbedder:
    """A model of pictures, opened once in each worker; `dims` keeps the first dimensions."""

    rounded = ""
    padded = False
    normalizes = True
    device_clock: dict[str, float] | None = None

    def __init__(self, model: str, *, dims: int | None, max_pixels: int) -> None:
        self._name, self._dims, self._max_pixels = model, dims, max_pixels
        self.batch_budget = 1
        self._encoder: PictureEncoder | None = None
        self._precision, self._choice = "", ""

    @cached_property
    def location(self) -> Location:
        return find_model(self._name)

    @cached_property
    def folder(self) -> PictureFolder:
        return read_picture_folder(self.location.path)

    @cached_property
    def _decoder(self) -> PictureDecoder:
        return PictureDecoder(self.folder.processor.shape, self._max_pixels)

    @property
    def dims(self) -> int:
        """The number of dimensions of a vector."""
        there = self.folder.width
        if self._dims is not None and self._dims > there:
            raise ModelError(
                f"{self.location.name} has {there} dimensions, not {self._dims}.", hint=f"Choose {there} or fewer."
            )
        return self._dims or there

    @property
    def item_bytes(self) -> int:
        """The memory that the pixels of a picture need."""
        width, height = self.folder.processor.shape.size
        return width * height * 3

    @property
    def model_code(self) -> tuple[str, ...]:
        return names_of_code(self.location.path)

    def fingerprint(self) -> dict[str, str]:
        """What the vectors depend on: the weights, the configuration, and what resizes pictures."""
        _ = self.folder.processor
        return {"model": self.location.name, **self.location.digests(), "pixels": "pillow"}

    def check_installed(self, kind: str) -> None:
        check_pillow()
        check_torch()

    @property
    def plan_notes(self) -> list[str]:
        return []

    @property
    def notes(self) -> list[str]:
        return [f"Kernel: {self._choice}."] if self._choice else []

    @property
    def numerics(self) -> dict[str, str]:
        """What computes the vectors, and its precision, for the commits."""
        if self._encoder is None:
            return {}
        import PIL

        return {"kernel": f"torch, pixels by Pillow {PIL.__version__}", "precision": self._precision}

    def gpu_bytes(self, precise: bool) -> int | None:
        weights = sum(file.stat().st_size for file in self.location.path.glob("*.safetensors"))
        return weights * 2

    def workers_per_gpu(self, cores: int) -> int:
        return 1

    def open(self, device: Device) -> None:
        """Load the model. On a GPU it computes in half precision if known pixels have the same vectors in float32."""
        try:
            from shardmill.models.encoder import first_run
            from shardmill.models.pictures.encoder import PictureEncoder
        except ImportError as error:
            raise missing_package(error.name or "torch", "embed") from error
        check_pillow()
        encoder = PictureEncoder(self.folder, device.kind)
        golden = self.golden(_GOLDEN)
        with first_run(self.location.name):
            expected = encoder.begin(golden)()
        if expected.shape[1] != self.folder.width or not np.isfinite(expected).all():
            raise ModelError(
                f"{self.location.name} gives vectors of {expected.shape[1]} numbers, some of them NaN or infinite, or "
                f"not {self.folder.width} as its config.json says.",
                hint="Its weights do not belong to its config.json: fetch the model again.",
            )
        self._precision, self._choice = "float32", "float32"
        if device.kind == "cuda" and not (device.precise or device.reference):
            encoder = self._choose_half(encoder, golden, expected)
        self._encoder = encoder
        self.batch_budget = _BATCH[device.kind] * self.folder.patches

    def _choose_half(
        self, encoder: PictureEncoder, golden: NDArray[np.uint8], expected: NDArray[np.float32]
    ) -> PictureEncoder:
        """The encoder in the first half precision whose vectors agree with those of float32, else in float32."""
        from shardmill.models.pictures.encoder import PictureEncoder

        for name in _HALVES:
            encoder.cast(name)
            if agree(encoder.begin(golden)(), expected, name):
                self._precision = self._choice = name
                return encoder
            # Numbers that were rounded stay so.
            encoder = PictureEncoder(self.folder, encoder.device)
        self._choice = "float32, since no half precision agreed with it"
        return encoder

    def golden(self, count: int) -> NDArray[np.uint8]:
        """Pixels of as many pictures that are the same everywhere: a slope, stripes, and noise."""
        width, height = self.folder.processor.shape.size
        y, x = np.mgrid[0:height, 0:width]
        noise = np.random.Generator(np.random.Philox(39)).integers(
            0, 256, (max(0, count - 2), height, width, 3), np.uint8
        )
        slope = np.stack([x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), (x + y) % 256], -1)
        stripes = np.repeat(((x // 8 + y // 8) % 2 * 255)[..., None], 3, -1)
        return np.concatenate([np.stack([slope, stripes]).astype(np.uint8), noise])[:count]

    def close(self) -> None:
        """Free the device, and end the processes that decode."""
        self._encoder = None
        if "_decoder" in self.__dict__:
            self.__dict__.pop("_decoder").close()
        if "torch" in sys.modules:
            from shardmill.models.encoder import free_memory

            free_memory()

    def decode(self, contents: Sequence[bytes | None]) -> tuple[NDArray[np.uint8], dict[int, str]]:
        """The pixels of pictures, and why one has none."""
        return self._decoder.decode(contents)

    def begin(self, pixels: NDArray[np.uint8]) -> Callable[[], NDArray[np.float32]]:
        """Start a batch of pixels and return a function that waits for its vectors."""
        if self._encoder is None:
            raise RuntimeError("call open() before run()")
        if not len(pixels):
            return lambda: np.empty((0, self.dims), np.float32)
        fetch = self._encoder.begin(pixels)
        return lambda: self._shorten(fetch())

    def _shorten(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.dims == vectors.shape[1]:
            return vectors
        vectors = np.ascontiguousarray(vectors[:, : self.dims])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of texts among those of pictures."""
        if not self.folder.reads_texts:
            raise ModelError(
                f"{self.location.name} knows pictures alone, no words.",
                hint="Search by a picture: --picture FILE. CLIP and SigLIP models find pictures by words.",
            )
        if self._encoder is None:
            raise RuntimeError("call open() before embed_queries()")
        return self._shorten(self._encoder.embed_texts(texts))
