"""Whole shards of the edition before, whose files are as they were: they are taken over without being read.

Design: docs/design/editions.md
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.ledger import Commit, Ledger
from shardmill.plan import ITEM, Plan
from shardmill.sinks.lineage import read_lineage
from shardmill.store.parts import open_own, readable
from shardmill.store.recipes import PART, PartName, Recipe, find_recipe

# Finds the shards of a plan whose items are those of a shard of the plan before, with the number of that one.
FindUnchanged = Callable[[Plan, Plan], Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class WholeShard:
    """A shard whose rows stay where they are: its commit in the edition before, and what the new part says.

    `errors` are the records of its items without a usable text; the rows of `reused` items are taken over.
    """

    commit: Commit
    recipe: Recipe
    lineage: pa.Table
    reused: int
    errors: list[dict[str, Any]]


class WholeShards:
    """The shards of a plan that are `unchanged` since the edition `base`, of the plan `before`."""

    def __init__(
        self,
        base: Ledger,
        edition: int,
        before: Plan,
        new: Plan,
        commits: Mapping[int, Commit],
        unchanged: FindUnchanged,
    ) -> None:
        self._base, self._edition, self._before, self._new = base, edition, before, new
        found = unchanged(before, new) if commits else {}
        self._commits = {shard: commits[was] for shard, was in found.items() if is_final(commits[was])}

    def find(self, shard: int, stored: pa.Schema) -> WholeShard | None:
        """A shard, for a part with the schema `stored`; None if it has to be read."""
        if (commit := self._commits.get(shard)) is None:
            return None
        place = f"{self._base.url}/{commit.part}"
        with readable(place), self._base.store.reader(commit.part) as file:
            lineage = read_lineage(file)
            with open_own(file, place, commit.digest)[0] as own:
                recipe, schema, rows = find_recipe(own), own.schema_arrow, own.metadata.num_rows
        if lineage is None or not schema.equals(stored):
            return None
        ranges = np.array([[0, 0, rows, 0]], np.int64) if recipe is None else recipe.ranges.copy()
        ranges[:, PART] += 1
        own_name = PartName(self._edition, commit.part, commit.digest, commit.part_bytes / max(1, rows))
        parts = (own_name, *(recipe.parts if recipe is not None else ()))
        return WholeShard(
            commit,
            Recipe(parts, ranges, ITEM if ITEM in stored.names else "").named(),
            lineage,
            len(lineage) - lineage.column("made_from").null_count,
            self._errors(shard, commit),
        )

    def _errors(self, shard: int, commit: Commit) -> list[dict[str, Any]]:
        """The records of a shard, which may have another number now, and its files other names."""
        was, now = self._before.shards[commit.shard], self._new.shards[shard]
        pairs = ((was.file + n, now.file + n) for n in range(now.files))
        names = {self._before.stat.files[a].name: self._new.stat.files[b].name for a, b in pairs}
        records = self._base.errors.read(commit)
        return [{**each, "shard": shard, "file": names.get(each["file"], each["file"])} for each in records]


def is_final(commit: Commit) -> bool:
    """Whether no item of a shard has to be tried again, and all is known that a commit says of items."""
    is_known = bool(commit.part and commit.rows_in_part and commit.items_digest and commit.rows_digest)
    return is_known and commit.errors == commit.unreadable
