"""A fitted map in a folder: arrays, and one small record that is written last and never replaced."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import CorruptState, UsageError
from shardmill.store import Store, open_store
from shardmill.verbs.map.layout.anchors import Anchors

RECORD = "fit.json"
_ARRAYS = ("vectors", "places", "axes")


@dataclass(frozen=True, slots=True)
class FitRecord:
    """What `fit.json` says: how the map was fitted, on how many of how many vectors, and which arrays it has."""

    method: str
    seed: int
    rows: int
    sampled: int
    anchors: int
    dims: int
    a: float
    b: float
    digest: str
    versions: dict[str, str] = field(default_factory=dict)


def save_fit(place: str, anchors: Anchors, method: str, rows: int, sampled: int, versions: dict[str, str]) -> FitRecord:
    """Write a fitted map; returns the record that holds, which is another's if that came first."""
    store = open_store(place)
    arrays = {name: _encode(getattr(anchors, name)) for name in _ARRAYS}
    digest = hashlib.sha256(b"".join(arrays.values())).hexdigest()[:16]
    for name, data in arrays.items():
        store.put(f"{name}-{digest}.npy", data)
    found = FitRecord(
        method, anchors.seed, rows, sampled, len(anchors.vectors), anchors.dims, anchors.a, anchors.b, digest, versions
    )
    store.put_if_absent(RECORD, json.dumps(asdict(found), indent=1).encode())
    return read_fit(place)


def find_fit(place: str) -> FitRecord | None:
    """The record of a fitted map, if there is one."""
    try:
        said: dict[str, Any] = json.loads(open_store(place).get(RECORD))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(place, error) from error
    try:
        return FitRecord(**said)
    except TypeError as error:
        raise _damaged(place, error) from error


def read_fit(place: str) -> FitRecord:
    """The record of a fitted map; an error says how to make one."""
    found = find_fit(place)
    if found is None:
        raise UsageError(f"{place} has no fitted map.", hint="Make it again: shardmill map RUN --out MAP")
    return found


def load_anchors(place: str) -> Anchors:
    """The anchors of a fitted map."""
    record, store = read_fit(place), open_store(place)
    try:
        vectors, places, axes = (_decode(store, f"{name}-{record.digest}.npy") for name in _ARRAYS)
        fits = vectors.shape == (record.anchors, record.dims) and places.shape == (record.anchors, 2)
        if not fits or [array.dtype.str[1:] for array in (vectors, places, axes)] != ["i2", "f4", "i2"]:
            raise ValueError("another shape")
    except (FileNotFoundError, ValueError, EOFError) as error:
        raise _damaged(place, error) from error
    return Anchors(vectors, places, axes, record.a, record.b, record.seed)


def _encode(array: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _decode(store: Store, key: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(io.BytesIO(store.get(key)), allow_pickle=False)
    return array


def _damaged(place: str, error: Exception) -> CorruptState:
    return CorruptState(
        f"The fitted map in {place} is damaged: {type(error).__name__}.", hint="Delete that folder and run again."
    )
