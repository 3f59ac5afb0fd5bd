"""Given texts, such as questions, as named marks on the map: kept beside it, as vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import CorruptState, UsageError
from shardmill.store import open_store
from shardmill.verbs.map.layout.anchors import Anchors
from shardmill.verbs.map.layout.whole import to_whole

_KEY = "marks.json"


@dataclass(frozen=True, slots=True)
class Mark:
    """A text and its vector, by the model of the rows."""

    name: str
    vector: tuple[float, ...]


def write_marks(fitted: str, marks: Sequence[Mark]) -> bool:
    """Keep marks with a fitted map, in place of earlier ones; False if it has the same already."""
    store = open_store(fitted)
    data = json.dumps([{"name": mark.name, "vector": mark.vector} for mark in marks], ensure_ascii=False).encode()
    with suppress(FileNotFoundError):
        if store.get(_KEY) == data:
            return False
    store.put(_KEY, data)
    return True


def place_marks(fitted: str, anchors: Anchors) -> list[tuple[Mark, NDArray[np.float32]]]:
    """The marks of a map and their places."""
    try:
        said = json.loads(open_store(fitted).get(_KEY))
        marks = [Mark(str(each["name"]), tuple(map(float, each["vector"]))) for each in said]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptState(f"{_KEY} is damaged.", hint="Give --mark again.") from error
    wrong = next((mark for mark in marks if len(mark.vector) != anchors.dims), None)
    if wrong is not None:
        raise UsageError(f"A mark has {len(wrong.vector)} dimensions, the map {anchors.dims}.")
    if not marks:
        return []
    whole, usable = to_whole(np.array([mark.vector for mark in marks], np.float32))
    places = anchors.place(whole).places
    return [(mark, place) for mark, place, there in zip(marks, places, usable, strict=True) if there]
