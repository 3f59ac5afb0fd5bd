"""Which rows are wrong, by the check that found them: the first of each, with their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# How many rows a check names; it counts all.
MOST_NAMED = 100

BadRow = dict[str, Any]


class BadRows:
    """Names rows by shard, by the number of their item in it, and by id."""

    def __init__(self) -> None:
        self._by_check: dict[str, list[BadRow]] = {}

    def of(self, check: str) -> tuple[BadRow, ...]:
        return tuple(self._by_check.get(check, ()))

    def add(self, other: BadRows) -> None:
        for check, rows in other._by_check.items():
            own = self._by_check.setdefault(check, [])
            own += rows[: MOST_NAMED - len(own)]

    def name(
        self,
        check: str,
        shard: int,
        batch: pa.RecordBatch,
        items: NDArray[np.int64],
        wrong: NDArray[np.bool_],
        ids: Sequence[str],
    ) -> int:
        """Name the rows of a batch that are `wrong`, and count them; `items` has the item of each row."""
        if not wrong.any():
            return 0
        places = np.flatnonzero(wrong)
        own = self._by_check.setdefault(check, [])
        for place in places[: MOST_NAMED - len(own)].tolist():
            id = {name: batch.column(name)[place].as_py() for name in ids}
            own.append({"shard": shard, "row": int(items[place]), **({"id": id} if id else {})})
        return len(places)
