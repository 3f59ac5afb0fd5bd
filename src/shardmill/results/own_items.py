"""Which items of a part have rows in the part itself, and not in parts of earlier editions.

Design: docs/design/editions.md
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.ledger import Commit, Ledger
from shardmill.sinks.lineage import read_lineage
from shardmill.store.parts import open_own, readable
from shardmill.store.recipes import PART, ROWS, find_recipe


def find_own_items(ledger: Ledger, commit: Commit) -> NDArray[np.int64]:
    """The numbers of these items, in order: they were made in this edition, or copied into it."""
    place = f"{ledger.url}/{commit.part}"
    with readable(place), ledger.store.reader(commit.part) as file:
        lineage = read_lineage(file)
        with open_own(file, place, commit.digest)[0] as own:
            recipe = find_recipe(own)
    if lineage is None:
        return np.zeros(0, np.int64)
    counts = np.diff(lineage.column("rows").combine_chunks().offsets.to_numpy())
    items = np.repeat(np.arange(len(counts)), counts)
    is_own = np.ones(len(items), bool)
    if recipe is not None:
        is_own = np.repeat(recipe.ranges[:, PART] == 0, recipe.ranges[:, ROWS])
    return np.unique(items[is_own]).astype(np.int64)
