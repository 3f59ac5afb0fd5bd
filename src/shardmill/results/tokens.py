"""The token vectors of a run, in blocks of rows, for a search by MaxSim."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.token_vectors import TokenColumn
from shardmill.ledger import Ledger
from shardmill.models.retrieval.maxsim import Block
from shardmill.plan import Plan
from shardmill.results.merge import read_rows


def find_tokens(schema: pa.Schema, plan: Plan) -> TokenColumn | None:
    """The column of token vectors that the task made; None if it makes none."""
    return TokenColumn.find(schema, plan.kept)


def read_blocks(ledger: Ledger, plan: Plan, column: TokenColumn, allowed: NDArray[np.bool_] | None) -> Iterator[Block]:
    """The vectors of all rows that are allowed."""
    first = 0
    for batch in read_rows(ledger, plan, [column.name]):
        rows, vectors = np.arange(first, first + batch.num_rows), batch.column(column.name)
        if allowed is not None:
            rows = rows[allowed[rows]]
            vectors = vectors.take(pa.array(rows - first))
        yield rows, *column.read(vectors)
        first += batch.num_rows
