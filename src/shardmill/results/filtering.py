"""Which rows of a result meet a condition on its id and kept columns: `search --where`.

Design: docs/design/documents-memory-and-parts.md
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.arrowtypes import type_text
from shardmill.core.console import Bar
from shardmill.core.errors import UsageError, nearest
from shardmill.core.where.condition import Condition, columns_of
from shardmill.core.where.evaluation import check_types, holds
from shardmill.core.where.parsing import parse_condition
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.documents import is_of_documents
from shardmill.results.merge import part_schema
from shardmill.sources.documents.document import PAGE
from shardmill.sources.statistics import GroupFilter
from shardmill.sources.taking import is_spelled
from shardmill.store.parts import open_part, readable

_READ_ROWS = 65_536

Mask = NDArray[np.bool_]


def check_where(ledger: Ledger, plan: Plan, where: str) -> tuple[Condition, pa.Schema]:
    """The condition and the columns that it names; one that the result cannot be judged by is refused."""
    try:
        condition = parse_condition(where)
    except ValueError as error:
        raise UsageError(f"--where {error}.", hint='Write it like "overall <= 2 AND title IS NOT NULL".') from None
    schema = part_schema(ledger, plan)
    # The page of a document is kept as a column of the task's.
    kept = [field.name for field in schema if field.name in plan.kept or (field.name == PAGE and is_of_documents(plan))]
    for name in columns_of(condition):
        if name not in kept:
            there = nearest(name, kept) if kept else "It kept no column."
            raise UsageError(
                f"--where: the run did not keep {name!r}.", hint=f"{there} To have it, embed again with --keep {name}"
            )
    columns = pa.schema([schema.field(name) for name in columns_of(condition)])
    check_types(condition, columns, spelled=is_spelled(plan.stat))
    return condition, columns


def find_rows(ledger: Ledger, plan: Plan, where: str, *, quiet: bool = False) -> Mask:
    """For each row of the result whether the condition holds; row groups that cannot have such a row are not read."""
    condition, columns = check_where(ledger, plan, where)
    types, spelled = {field.name: type_text(field.type) for field in columns}, is_spelled(plan.stat)
    commits = ledger.commits.read_complete(plan)
    found = np.zeros(sum(commit.rows_in_part for commit in commits), bool)
    if not types:
        found[:] = holds(condition, pa.record_batch({"any": [0]}))[0].as_py() is True
        return found
    done = 0
    with Bar("filtering", quiet=quiet) as bar:
        for commit in commits:
            place = f"{ledger.store.url}/{commit.part}"
            with readable(place), ledger.store.reader(commit.part) as file:
                opened, _ = open_part(file, place, commit.digest)
                groups = GroupFilter(where, types, opened)
                for group in range(opened.metadata.num_row_groups):
                    if groups.can_hold(group):
                        _judge(condition, opened.iter_batches(_READ_ROWS, [group], [*types]), found[done:], spelled)
                    done += opened.metadata.row_group(group).num_rows
            bar.count(done, len(found), "rows")
    return found


def _judge(condition: Condition, batches: Iterator[pa.RecordBatch], found: Mask, spelled: bool) -> None:
    done = 0
    for batch in batches:
        truths = holds(condition, batch, spelled=spelled).fill_null(False)
        found[done : done + len(truths)] = truths.to_numpy(zero_copy_only=False)
        done += len(truths)
