"""The texts of a map's rows, in order: as the map kept them, or read again from the source of the run it shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shardmill.core import permission
from shardmill.core.errors import ShardmillError, SourceError
from shardmill.ledger import Ledger
from shardmill.plan import RUN, WINDOW, Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.sources import Fields, open_source
from shardmill.verbs.map.task import digest_text, shorten


@dataclass(frozen=True, slots=True)
class TextBatch:
    """The starts of consecutive texts, None where there is none, and what equal texts share."""

    excerpts: list[str | None]
    digests: list[int | None]


class RowTexts:
    """Reads the texts. `missing` says why there are none."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._ledger, self._plan = ledger, plan
        self._below: list[Plan] = []
        self.missing = ""
        if not plan.work.params.get("text"):
            self._below, self.missing = _find_sources(plan)

    def read(self) -> Iterator[TextBatch]:
        """The texts of all rows; SourceError if they can no longer be read."""
        if self.missing:
            return
        if not self._below:
            for batch in read_rows(self._ledger, self._plan, ["excerpt", "text_digest"]):
                yield TextBatch(batch.column("excerpt").to_pylist(), batch.column("text_digest").to_pylist())
            return
        for below in self._below:
            source = open_source(below.stat, Fields.of(below.work), below.work.max_item_bytes)
            for shard in below.shards:
                for items in source.read(shard):
                    taken = items.texts if items.taken is None else items.texts.filter(pa.array(items.taken))
                    texts = taken.to_pylist()
                    yield TextBatch(
                        [None if text is None else shorten(text) for text in texts],
                        [None if text is None else digest_text(text) for text in texts],
                    )

    def read_safely(self, rows: int) -> Iterator[TextBatch]:
        """The texts of `rows` rows; if the source has changed or is gone, `missing` says so and empty ones follow."""
        done = 0
        try:
            for batch in self.read():
                batch = TextBatch(batch.excerpts[: rows - done], batch.digests[: rows - done])
                done += len(batch.excerpts)
                yield batch
            if done < rows and not self.missing:
                raise SourceError("it has fewer items now")
        except (ShardmillError, OSError) as error:
            self.missing = f"The texts cannot be read again from the source: {str(error).partition(chr(10))[0]}"
        while done < rows:
            count = min(8192, rows - done)
            yield TextBatch([None] * count, [None] * count)
            done += count


def _find_sources(plan: Plan) -> tuple[list[Plan], str]:
    """The plans of the runs whose sources have the texts, or why there are none."""
    if not all(place.startswith(RUN) for place in plan.work.source):
        return [], "No column with texts was named: --text COLUMN shows them."
    found = []
    for place in plan.work.source:
        ledger = Ledger(place.removeprefix(RUN))
        try:
            below, _ = ledger.settle()
            windows = WINDOW in part_schema(ledger, below).names
        except (ShardmillError, OSError) as error:
            return [], f"The run that is shown cannot be read: {str(error).partition(chr(10))[0]}"
        if windows or below.work.query or below.work.group_by or not all(map(permission.is_allowed, below.code)):
            return [], f"{place.removeprefix(RUN)} kept no texts: embed with --keep {below.work.text} shows them."
        found.append(below)
    return found, ""


def count_rows(ledger: Ledger, plan: Plan) -> int:
    """The rows of a run's result."""
    return int(np.sum([commit.rows_in_part for commit in ledger.commits.read_complete(plan)]))
