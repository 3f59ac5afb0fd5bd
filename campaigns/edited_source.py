"""The source of a simulated run that is refreshed: files that somebody edits, and what each state of them gives."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.plan import Plan
from shardmill.testing import fake_vector

Rows = list[dict[str, Any]]
# What identifies a state of the source: each file with the store's tag for it.
State = tuple[tuple[str, str], ...]


class EditedSource:
    """Files of items. Each edit is there at once, and all states that ever were are remembered."""

    def __init__(self, folder: Path, chance: random.Random, rows: int) -> None:
        self.folder, self._chance = folder, chance
        folder.mkdir()
        half = rows // 3
        every = [self._new(f"k{n}", n) for n in range(rows)]
        self.files: dict[str, Rows] = {"a.jsonl": every[half:], "b.jsonl": every[:half]}
        self.states: dict[State, Rows] = {}
        self._now: State = ()
        self._written: dict[str, tuple[Rows, int]] = {}
        self._edits = 0
        self._write()

    def edit(self) -> str:
        """Change the files in some way; returns the names of the edits."""
        names = self._chance.choices([*EDITS], k=self._chance.choice((1, 1, 2, 4)))
        self.apply(names)
        return " ".join(names)

    def apply(self, names: Sequence[str]) -> None:
        """Make these edits, all at once."""
        for name in names:
            self._edits += 1
            EDITS[name](self)
        self._write()

    def rows_of(self, plan: Plan) -> Rows:
        """The rows of the source in the state that a plan was made from."""
        return self.states[tuple((Path(file.place).name, file.tag) for file in plan.stat.files)]

    @property
    def rows(self) -> Rows:
        """The rows of the source as it is."""
        return self.states[self._now]

    def _write(self) -> None:
        """A file that changes gets a time of its own: a disk's clock may be too coarse for that."""
        for name in self._written.keys() - self.files.keys():
            (self.folder / name).unlink()
        for name, rows in self.files.items():
            before = self._written.get(name)
            if before is None or before[0] != rows:
                time = (1_700_000_000 + self._edits) * 10**9
                (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
                os.utime(self.folder / name, ns=(time, time))
                self._written[name] = (list(rows), time)
        self._written = {name: self._written[name] for name in sorted(self.files)}
        self._now = tuple((name, f"mtime-{time}") for name, (_, time) in self._written.items())
        self.states[self._now] = [row for rows, _ in self._written.values() for row in rows]

    def _new(self, id: str, n: int) -> dict[str, Any]:
        return {"id": id, "text": f"text {n}{' !nan' if self._chance.random() < 0.05 else ''}", "n": n}

    def _some(self) -> Rows:
        return self.files[self._chance.choice(sorted(self.files))]

    def _insert(self) -> None:
        rows = self._some()
        rows.insert(self._chance.randint(0, len(rows)), self._new(f"new{self._edits}", self._chance.randrange(60)))

    def _append(self) -> None:
        self._some().extend(self._new(f"new{self._edits}-{n}", 100 * self._edits + n) for n in range(3))

    def _delete(self) -> None:
        rows = self._some()
        if len(rows) > 4:
            first = self._chance.randrange(len(rows))
            del rows[first : first + self._chance.choice((1, 1, 4))]

    def _change(self) -> None:
        rows = self._some()
        place = self._chance.randrange(len(rows))
        rows[place] = {**rows[place], "text": f"edited {self._chance.randrange(5)}"}

    def _carry(self) -> None:
        """A kept column changes: nothing is to be computed."""
        rows = self._some()
        place = self._chance.randrange(len(rows))
        rows[place] = {**rows[place], "n": -self._edits}

    def _reorder(self) -> None:
        self._some().reverse()

    def _rename(self) -> None:
        name = self._chance.choice(sorted(self.files))
        self.files[f"{self._chance.choice('abc')}{self._edits}.jsonl"] = self.files.pop(name)

    def _split(self) -> None:
        rows = self._some()
        if len(self.files) < 4 and len(rows) > 8:
            place = self._chance.randrange(4, len(rows) - 3)
            self.files[f"s{self._edits}.jsonl"] = rows[place:]
            del rows[place:]


EDITS: dict[str, Callable[[EditedSource], None]] = {
    "insert": EditedSource._insert,
    "append": EditedSource._append,
    "delete": EditedSource._delete,
    "change": EditedSource._change,
    "carry": EditedSource._carry,
    "reorder": EditedSource._reorder,
    "rename": EditedSource._rename,
    "split": EditedSource._split,
}


def compare_rows(table: pa.Table, rows: Rows, dims: int) -> str:
    """How a result differs from what these rows give; "" if it does not."""
    for name in ("id", "n"):
        found, wanted = table.column(name).to_pylist(), [row[name] for row in rows]
        if found != wanted:
            there = [value for value in found if value not in wanted]
            lacks = [value for value in wanted if value not in found]
            return f"{len(found)} rows for {len(wanted)}: {name} has {there} too much and lacks {lacks}"
    for row, vector in zip(rows, table.column("embedding").to_pylist(), strict=True):
        wanted = None if "!nan" in row["text"] else fake_vector(row["text"], dims)
        if (vector is None) != (wanted is None) or not (vector is None or np.array_equal(vector, wanted)):
            return f"row {row['id']} has a wrong vector"
    return ""
