"""Vectors in fewer bits: a byte a number, by ranges that are fixed once per run, or a bit a number, its sign.

>>> some = np.array([[0.4, -0.25, 0.75, -1.0, 0.1, 0.2, -0.3, 0.4]], np.float32)
>>> Quantiser("binary", 8).encode(some)
array([[173]], dtype=uint8)
>>> wide = Quantiser("int8", 8, Ranges(np.full(8, -1, np.float32), np.full(8, 1, np.float32)))
>>> wide.encode(some)[0, :4]
array([  51,  -32,   95, -127], dtype=int8)

Design: docs/design/kinds-of-models.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SpecError

QuantisedType = Literal["int8", "uint8", "binary"]
QUANTISED: tuple[QuantisedType, ...] = ("int8", "uint8", "binary")
BYTE_TYPES = ("int8", "uint8")

_METADATA = b"shardmill.vectors"
# The lowest byte is left to rows without a vector.
_STEPS = 254
_FIRST = {"int8": -127, "uint8": 1}
# Of the distance between the lowest and the highest number seen, what is added on both sides: fewer are cut off.
_MARGIN = 0.05
# The same for a dimension whose numbers are all alike, as a share of them.
_LEAST_ROOM = 1e-4

Reals = NDArray[np.float32]
Codes = NDArray[Any]


@dataclass(frozen=True)
class Ranges:
    """The lowest and the highest number of each dimension; what lies beyond is stored as the nearest of them."""

    lowest: Reals
    highest: Reals

    @classmethod
    def of(cls, vectors: Reals) -> Ranges:
        """Those of some vectors, and a little more."""
        low, high = vectors.min(axis=0), vectors.max(axis=0)
        least = np.maximum(np.abs(low), np.abs(high)) * np.float32(_LEAST_ROOM) + np.float32(1e-6)
        room = np.maximum((high - low) * np.float32(_MARGIN), least)
        return cls(low - room, high + room)

    @classmethod
    def read(cls, pair: Sequence[Sequence[float]]) -> Ranges:
        lowest, highest = (np.asarray(each, np.float32) for each in pair)
        return cls(lowest, highest)

    def to_json(self) -> list[list[float]]:
        """As a plan has them; six digits are finer than a step."""
        return [[float(f"{number:.6g}") for number in each.tolist()] for each in (self.lowest, self.highest)]


@dataclass(frozen=True)
class Quantiser:
    """How vectors of `dims` numbers become bytes and back. `int8` and `uint8` need `ranges`."""

    dtype: QuantisedType
    dims: int
    ranges: Ranges | None = None

    def describe(self) -> dict[bytes, bytes]:
        """The metadata of a column of such bytes, so that whoever reads the file can make vectors of them."""
        told: dict[str, Any] = {"dtype": self.dtype, "dims": self.dims}
        if self.ranges is not None:
            told["ranges"] = self.ranges.to_json()
        return {_METADATA: json.dumps(told).encode()}

    @classmethod
    def of_field(cls, field: pa.Field) -> Quantiser | None:
        """That of a column, by its metadata; None if it has no such bytes."""
        if not pa.types.is_fixed_size_binary(field.type) or _METADATA not in (field.metadata or {}):
            return None
        told = json.loads(field.metadata[_METADATA])
        return cls(told["dtype"], told["dims"], Ranges.read(told["ranges"]) if "ranges" in told else None)

    @property
    def width(self) -> int:
        """The bytes of a vector."""
        return -(-self.dims // 8) if self.dtype == "binary" else self.dims

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the bytes as NumPy has them."""
        return np.dtype("int8" if self.dtype == "int8" else "uint8")

    @property
    def missing(self) -> int:
        """The byte that stands in all places of a row without a vector, where a row cannot be null."""
        return -128 if self.dtype == "int8" else 0

    def encode(self, vectors: Reals) -> Codes:
        """A row of bytes for each vector. The bit of a number is set if it is above zero, the first one the highest."""
        if self.dtype == "binary":
            return np.packbits(vectors > 0, axis=1)
        lowest, step = self._scale()
        codes = np.clip(np.rint((vectors - lowest) / step), 0, _STEPS) + _FIRST[self.dtype]
        found: Codes = codes.astype(self.stored)
        return found

    def decode(self, codes: Codes) -> Reals:
        """The vectors that rows of bytes stand for; NaN for a row without one. Of bits, 1 and -1."""
        if self.dtype == "binary":
            signs = np.unpackbits(codes.view(np.uint8), axis=1, count=self.dims)
            found = signs.astype(np.float32) * np.float32(2) - np.float32(1)
        else:
            lowest, step = self._scale()
            found = (codes.astype(np.float32) - np.float32(_FIRST[self.dtype])) * step + lowest
        found[(codes == self.missing).all(axis=1)] = np.nan
        return found

    def read(self, value: bytes) -> Codes:
        """The bytes of one stored row as an array."""
        return np.frombuffer(value, self.stored)[None]

    def _scale(self) -> tuple[Reals, Reals]:
        if self.ranges is None:
            raise SpecError(f"dtype {self.dtype} has no ranges.", hint="Planning measures them; else give ranges.")
        return self.ranges.lowest, (self.ranges.highest - self.ranges.lowest) / np.float32(_STEPS)
