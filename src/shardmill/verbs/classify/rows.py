"""Probabilities as columns of a result, and how far they are from those computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.models.networks.stored import Reals

LABEL, SCORE, LABELS, SPANS = "label", "score", "labels", "spans"
_SCORED = pa.struct([pa.field(LABEL, pa.string()), pa.field(SCORE, pa.float32())])


class LabelRows:
    """One label per text, and a list of several if that is asked for.

    With a `threshold` a text has all labels that reach it, perhaps none; without, exactly one. The list has at most
    `most` labels, None for no limit, those below the threshold only if it is `whole`.
    """

    def __init__(
        self, names: Sequence[str], *, threshold: float | None, listed: bool, most: int | None, whole: bool = False
    ) -> None:
        self._names, self._threshold = np.array(names, object), threshold
        self._listed, self._most, self._whole = listed or threshold is not None, most, whole
        self._last: Reals = np.zeros((0, len(names)), np.float32)

    @property
    def schema(self) -> pa.Schema:
        fields = [pa.field(LABEL, pa.string()), pa.field(SCORE, pa.float32())]
        return pa.schema([*fields, *([pa.field(LABELS, pa.list_(_SCORED))] if self._listed else [])])

    def make(self, probabilities: Reals, bad: Sequence[int] = ()) -> pa.RecordBatch:
        """One row per row of probabilities, null where it is bad."""
        self._last = probabilities
        has = np.ones(len(probabilities), bool)
        has[list(bad)] = False
        best = np.nan_to_num(probabilities, nan=-1.0).argmax(axis=1)
        scores = probabilities[np.arange(len(best)), best]
        named = has if self._threshold is None else has & (scores >= np.float32(self._threshold))
        columns = [
            pa.array(self._names[best], pa.string(), mask=~named),
            pa.array(scores, pa.float32(), mask=~named),
        ]
        if self._listed:
            columns.append(self._lists(probabilities, has))
        return pa.record_batch(columns, schema=self.schema)

    def _lists(self, probabilities: Reals, has: Any) -> pa.Array:
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : self._most]
        scores = np.take_along_axis(probabilities, order, axis=1)
        kept = np.ones(scores.shape, bool)
        if self._threshold is not None and not self._whole:
            kept = scores >= np.float32(self._threshold)
        kept &= has[:, None]
        offsets = pa.array(np.concatenate([[0], np.cumsum(kept.sum(axis=1))]), pa.int32())
        fields = [pa.array(self._names[order[kept]], pa.string()), pa.array(scores[kept], pa.float32())]
        items = pa.StructArray.from_arrays(fields, fields=list(_SCORED))
        return pa.ListArray.from_arrays(offsets, items, type=pa.list_(_SCORED), mask=pa.array(~has))

    def distance(self, column: str, stored: Any, again: Any) -> float:
        """How far apart two values are, in probability.

        Labels that differ are as far apart as their probabilities in the row that was computed last. One that a stored
        list lacks has at most the probability that would put it there.
        """
        before, now = stored.as_py(), again.as_py()
        if column == SCORE:
            return abs(self._or_threshold(before) - self._or_threshold(now))
        if column == LABEL:
            return 0.0 if before == now else self._flipped(before, now)
        if before is None or now is None:
            return float(before is not now)
        known, seen = ({each[LABEL]: each[SCORE] for each in side} for side in (before, now))
        places = {name: i for i, name in enumerate(self._names)}
        if known.keys() - places.keys():
            return 1.0
        rows = [row for row in self._last if all(float(row[places[name]]) == p for name, p in seen.items())]
        gaps = [abs(p - float(row[places[name]])) for row in rows for name, p in known.items()]
        gaps += [max(0.0, p - self._most_left_out(known)) for name, p in seen.items() if name not in known]
        return max(gaps, default=0.0 if rows else 1.0)

    def _or_threshold(self, score: float | None) -> float:
        return (self._threshold or 0.0) if score is None else score

    def _most_left_out(self, listed: dict[str, float]) -> float:
        """The highest probability that a label outside of a list may have."""
        if self._most is not None and len(listed) == self._most:
            return min(listed.values())
        return 0.0 if self._threshold is None or self._whole else self._threshold

    def _flipped(self, before: str | None, now: str | None) -> float:
        names = list(self._names)
        if before is not None and before not in names:
            return 1.0
        gaps = []
        for row in self._last:
            best = int(row.argmax())
            here = names[best] if self._threshold is None or row[best] >= np.float32(self._threshold) else None
            if here == now:
                old, new = (
                    self._or_threshold(None) if label is None else float(row[names.index(label)])
                    for label in (before, now)
                )
                gaps.append(abs(new - old))
        return max(gaps, default=1.0)


class NumberRows:
    """The number that a regression gives, in the column `score`."""

    schema = pa.schema([pa.field(SCORE, pa.float32())])

    def make(self, numbers: Reals, bad: Sequence[int] = ()) -> pa.RecordBatch:
        missing = np.zeros(len(numbers), bool)
        missing[list(bad)] = True
        return pa.record_batch([pa.array(numbers[:, 0], pa.float32(), mask=missing)], schema=self.schema)

    def distance(self, column: str, stored: Any, again: Any) -> float:
        """The difference, by the larger of the two if that is above 1."""
        before, now = stored.as_py(), again.as_py()
        if before is None or now is None:
            return float(before is not now)
        return float(abs(before - now) / max(1.0, abs(before), abs(now)))
