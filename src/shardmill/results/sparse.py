"""The sparse vectors of a run, and the index that they are searched by.

Design: docs/design/kinds-of-models.md
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.console import Bar
from shardmill.core.sparse import INDEX, WEIGHT, sparse_dims
from shardmill.ledger import Ledger
from shardmill.models.retrieval.inverted import Block, InvertedIndex, write_inverted
from shardmill.plan import Plan
from shardmill.results.beside import place_beside
from shardmill.results.merge import digest_of, part_schema, read_rows
from shardmill.results.passages import renamed


def find_sparse(schema: pa.Schema, plan: Plan) -> pa.Field | None:
    """The column of sparse vectors that the task made; one that was kept from the source does not count."""
    return next((field for field in schema if field.name not in plan.kept and sparse_dims(field)), None)


def open_inverted(ledger: Ledger, plan: Plan, *, quiet: bool = False, scratch: Path | None = None) -> InvertedIndex:
    """The index of all rows; the first search writes it."""
    field = find_sparse(part_schema(ledger, plan), plan)
    assert field is not None, "check_request refuses such a run"
    commits = ledger.commits.read_complete(plan)
    path = place_beside(ledger, f"sparse-{digest_of(commits)}", scratch)
    if path.exists():
        return InvertedIndex(path)
    total, done = 2 * sum(commit.rows_in_part for commit in commits), 0
    with Bar("indexing the words of all rows", quiet=quiet) as bar, renamed(path) as partial:

        def read() -> Iterator[Block]:
            nonlocal done
            for batch in read_rows(ledger, plan, [field.name]):
                yield _read_block(batch.column(field.name))
                done += batch.num_rows
                bar.count(done, total, "rows")

        write_inverted(read, sparse_dims(field), partial)
    return InvertedIndex(path)


def _read_block(column: pa.ListArray) -> Block:
    """A missing vector has no words."""
    records = column.flatten()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    return records.field(INDEX).to_numpy(), records.field(WEIGHT).to_numpy(), lengths.astype(np.int64)
