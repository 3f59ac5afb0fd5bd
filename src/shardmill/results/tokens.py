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
from shardmill.sinks.parquet import read_rows_at


def find_tokens(schema: pa.Schema, plan: Plan) -> TokenColumn | None:
    """The column of token vectors that the task made; None if it makes none."""
    return TokenColumn.find(schema, plan.kept)


def read_blocks(ledger: Ledger, plan: Plan, column: TokenColumn, allowed: NDArray[np.bool_] | None) -> Iterator[Block]:
    """The vectors of all rows that are allowed."""
    if allowed is None:
        first = 0
        for batch in read_rows(ledger, plan, [column.name]):
            yield np.arange(first, first + batch.num_rows), *column.read(batch.column(column.name))
            first += batch.num_rows
        return
    before = 0
    for commit in ledger.commits.read_complete(plan):
        here, done = np.flatnonzero(allowed[before : before + commit.rows_in_part]), 0
        for batch in read_rows_at(ledger.store, commit, here, [column.name]) if len(here) else ():
            yield before + here[done : done + batch.num_rows], *column.read(batch.column(column.name))
            done += batch.num_rows
        before += commit.rows_in_part
