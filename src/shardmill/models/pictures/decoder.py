"""Pictures -> pixels, in the helper processes that documents have: a decoder that dies costs its picture."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from shardmill.core.extras import missing_package
from shardmill.core.helpers import HelperLost, Helpers, helper_count
from shardmill.core.pool import in_order
from shardmill.models.pictures.pixels import BadPicture, PictureShape, describe

# What one picture may take.
_SECONDS, _MEMORY_BYTES = 60.0, 3 << 30


class PictureDecoder:
    """Decodes pictures on all cores; it has processes from the first picture on."""

    def __init__(
        self, shape: PictureShape, max_pixels: int, *, seconds: float = _SECONDS, memory_bytes: int = _MEMORY_BYTES
    ) -> None:
        self._shape = shape
        self._helpers = Helpers(
            "shardmill.models.pictures.pixels:make_decoder",
            (shape, max_pixels),
            helper_count(),
            seconds=seconds,
            memory_bytes=memory_bytes,
        )
        weakref.finalize(self, self._helpers.close)

    def close(self) -> None:
        self._helpers.close()

    def decode(self, contents: Sequence[bytes | None]) -> tuple[NDArray[np.uint8], dict[int, str]]:
        """The pixels of each picture, and why one has none; those of what is None or bad are black."""
        width, height = self._shape.size
        made = np.zeros((len(contents), height, width, 3), np.uint8)
        bad: dict[int, str] = {}
        for row, found in enumerate(in_order(self._try, contents)):
            if isinstance(found, str):
                bad[row] = found
            elif found is not None:
                made[row] = np.frombuffer(found, np.uint8).reshape(height, width, 3)
        return made, bad

    def _try(self, content: bytes | None) -> bytes | str | None:
        if content is None:
            return None
        try:
            pixels: bytes = self._helpers.call(content)
            return pixels
        except BadPicture as bad:
            return str(bad)
        except HelperLost as lost:
            return f"{describe(content)}, which cannot be decoded: the process that decoded it {lost.why}"


def check_pillow() -> None:
    """Refuse pictures where nothing decodes them."""
    if find_spec("PIL") is None:
        raise missing_package("Pillow")
