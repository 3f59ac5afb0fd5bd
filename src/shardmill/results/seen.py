"""What was seen in parts: the totals on which the checks decide."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardmill.ledger import Commit
from shardmill.results.bad import BadRows


@dataclass(slots=True)
class SeenInParts:
    """Totals of a part, or of many: `sound` are the commits whose part was read to its end.

    `silent_rows` have neither a result nor an error; of `needless_errors` the item has a vector all the same.
    `dropped`, of one part only, are the items without a row, if the task names them in a file.
    """

    rows: int = 0
    windowed_items: int = 0
    wrong_windows: int = 0
    numbered_items: int = 0
    wrong_items: int = 0
    ids: int = 0
    no_id: int = 0
    null_rows: int = 0
    silent_rows: int = 0
    needless_errors: int = 0
    not_finite: int = 0
    wrong_digest: int = 0
    wrong_rows: int = 0
    vector_bytes: int = 0
    errors: int = 0
    least_norm: float = float("inf")
    most_norm: float = 0.0
    dims: frozenset[int] = frozenset()
    unreadable: str = ""
    unsound: str = ""
    unreadable_errors: str = ""
    sound: list[Commit] = field(default_factory=list)
    bad: BadRows = field(default_factory=BadRows)
    dropped: NDArray[np.int64] | None = None

    def add(self, other: SeenInParts) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.least_norm = min(self.least_norm, other.least_norm)
        self.most_norm = max(self.most_norm, other.most_norm)
        self.dims |= other.dims
        self.unreadable = self.unreadable or other.unreadable
        self.unsound = self.unsound or other.unsound
        self.unreadable_errors = self.unreadable_errors or other.unreadable_errors
        self.sound += other.sound
        self.bad.add(other.bad)


_SUMS = tuple(name for name, kind in SeenInParts.__annotations__.items() if kind == "int")
