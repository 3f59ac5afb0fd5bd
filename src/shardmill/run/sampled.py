"""The source as a task sees it when it settles parameters: its first rows, or some texts from all over it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa

from shardmill.core.errors import SpecError
from shardmill.plan import Shard
from shardmill.sources import Source
from shardmill.tasks.base import Task, add_bytes, fields_of, number_items

_FIRST_ROWS, _FIRST_BYTES = 64, 16 << 20
# Places of the source that texts are taken from.
_PLACES = 32


@dataclass(frozen=True, slots=True)
class SampledSource:
    """Called, it gives the first rows as the task prepares them."""

    source: Source
    task: Task
    size_bytes: int
    quiet: bool = True

    def __call__(self) -> pa.RecordBatch:
        task = self.task
        for shard in self.source.shards(_FIRST_BYTES):
            for batch in self.source.read(shard):
                texts = batch.texts.to_pylist()
                left = range(len(batch)) if batch.taken is None else batch.taken.nonzero()[0].tolist()
                if good := [row for row in left if texts[row] is not None][:_FIRST_ROWS]:
                    fields = fields_of(task, batch.kept)
                    fields = number_items(fields, 0, 0, len(batch)) if task.numbers_items else fields
                    fields = add_bytes(fields, batch.contents)
                    rows: pa.RecordBatch = task.prepare(texts, fields).inputs.take(good)
                    return rows
        raise SpecError("The source has no rows to tell the columns of the result by.", hint="Name them: columns=…")

    def texts(self, count: int) -> list[str]:
        """At most `count` texts, about as many from each of several places, from the first to the last."""
        shards = self.source.shards(max(1, -(-self.size_bytes // _PLACES)))
        last, most = len(shards) - 1, min(_PLACES, len(shards))
        places = [self._read(shards[i * last // max(1, most - 1)]) for i in range(most)]
        found: list[str] = []
        for some in (-(-count // max(1, len(places))), count):
            for place in places:
                found += islice(place, min(some, count - len(found)))
        return found

    def _read(self, shard: Shard) -> Iterator[str]:
        for batch in self.source.read(shard):
            taken = batch.texts if batch.taken is None else batch.texts.filter(pa.array(batch.taken))
            yield from taken.drop_null().to_pylist()
