"""The weights of a model folder as arrays in float32, mapped from its safetensors files."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError

Reals = NDArray[np.float32]

_TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "F64": np.float64}
_WHOLE: dict[str, Any] = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}


def read_weights(place: Path) -> StoredWeights:
    """The weights of a model folder, or of one file."""
    whole = place if place.is_file() else place / "model.safetensors"
    return StoredWeights(*([whole] if whole.is_file() else sorted(place.glob("model*.safetensors"))))


class StoredWeights(Mapping[str, Reals]):
    """Weights by name. Float32 is read where it lies; other types are converted, each time they are asked for."""

    def __init__(self, *files: Path) -> None:
        self._places: dict[str, tuple[NDArray[np.uint8], dict[str, Any]]] = {}
        self._maps: list[mmap.mmap] = []
        self.metadata: dict[str, str] = {}
        for path in files:
            self._map(path)

    def _map(self, path: Path) -> None:
        try:
            # Copies of pages that are written to: nobody writes, but OpenVINO wants arrays that may be.
            with path.open("rb") as file:
                self._maps.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
            data = np.frombuffer(self._maps[-1], np.uint8)
            start = 8 + int.from_bytes(data[:8].tobytes(), "little")
            head = json.loads(data[8:start].tobytes())
            body = data[start:]
            for name, said in head.items():
                if name == "__metadata__":
                    self.metadata |= said
                else:
                    first, last = said["data_offsets"]
                    if not 0 <= first <= last <= len(body):
                        raise ValueError(f"{name} ends beyond the file")
                    self._places[name] = (body[first:last], said)
        except (OSError, AttributeError, TypeError, ValueError, KeyError, MemoryError) as error:
            raise ModelError(f"{path} cannot be read: {error}.", hint="Fetch the model again.") from error

    def __getitem__(self, name: str) -> Reals:
        kind = self._places[name][1]["dtype"]
        if kind not in _TYPES:
            raise ModelError(
                f"The weights {name} are stored as {kind}, which only torch reads.",
                hint="Choose the model without quantisation.",
            )
        values = self._view(name, _TYPES[kind])
        if kind == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        numbers: Reals = values.astype(np.float32, copy=False)
        return numbers

    def whole_numbers(self, name: str) -> NDArray[Any] | None:
        """An array that is stored as integers, as it is; None for any other."""
        kind = _WHOLE.get(self._places[name][1]["dtype"])
        return None if kind is None else self._view(name, kind)

    def _view(self, name: str, kind: Any) -> NDArray[Any]:
        data, said = self._places[name]
        try:
            # A header of odd length leaves the numbers at an odd address, which not every CPU reads.
            values = data.view(kind) if data.ctypes.data % np.dtype(kind).itemsize == 0 else np.array(data).view(kind)
            shaped: NDArray[Any] = values.reshape(said["shape"])
        except ValueError as error:
            raise ModelError(f"The weights {name} do not have their shape.", hint="Fetch the model again.") from error
        return shaped

    def stored(self, name: str) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """The bytes of an array as they are stored, and what the file says of them."""
        return self._places[name]

    def let_go(self) -> None:
        """Give the memory of the files back. Whoever still holds arrays of them reads those pages again."""
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._places[name][1]["shape"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
