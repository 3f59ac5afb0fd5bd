"""What a task cannot prepare costs the item, not the worker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardmill.ledger import Claim
from shardmill.sources import ItemBatch
from shardmill.tasks.base import Prepared
from shardmill.testing import FakeTask
from shardmill.worker.block import cut_batch
from shardmill.worker.preparing import prepare


class Hungry(FakeTask):
    """It has no memory for one text, alone or beside others."""

    item_bytes = 4 << 20

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        if "huge" in texts:
            raise MemoryError("Unable to allocate 1 TiB")
        return super().prepare(texts, fields)


def test_a_lack_of_memory_costs_the_item() -> None:
    made = prepare(Hungry(), ["a", "b", "huge", "c", "d"])
    assert made.bad == {2: "MemoryError: Unable to allocate 1 TiB"}
    assert len(made.inputs) == len(made.costs) == 5


def test_items_that_need_memory_come_few_at_a_time() -> None:
    texts = pa.array([str(i) for i in range(5)])
    batch = ItemBatch(texts, pa.record_batch({"id": np.arange(5)}), range(1, 6), 5)
    sizes = [len(each.batch) for each in cut_batch(batch, Claim(0, ""), 0, None, Hungry(), 0.0)]
    assert sizes == [2, 2, 1]
