"""The editions of a run: the first is the folder of the run itself, each later one is a folder inside it.

An edition is a whole run: a plan, commits and parts of its own. One small record says which one is read, and one in the
folder of each later edition says which edition it is made from.
Design: docs/design/editions.md
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_object, read_record
from shardmill.ledger.commit import Commits
from shardmill.ledger.folder import Folder
from shardmill.store import Store, open_store
from shardmill.store.pruned import PRUNED, pruned

POINTER, FOLDER, ORIGIN = "edition.json", "editions/", "origin.json"
REFRESH, MIGRATE = "refresh", "migrate"
# Who reads an edition may be at it for this long after the next one has come.
GRACE_S = 3600.0
# What stays of an edition that was pruned, and what belongs to the whole run.
_KEPT = (PRUNED, "plan.json", "execution.json", "summary.json", "refreshes.json", ORIGIN, POINTER, FOLDER)
_PLACE = re.compile(r"(?P<run>.+)/editions/(?P<number>[0-9]{6})")


@dataclass(frozen=True, slots=True)
class EditionOrigin:
    """What an edition is made from: the edition whose rows it may take over, what makes it, and what for."""

    base: int
    kind: str
    # Tells migrations to different models apart.
    goal: str = ""
    made_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Edition:
    """An edition that exists. The first has no base; `was_read` if it is or was the current one."""

    number: int
    base: int
    kind: str
    goal: str
    made_at: float
    current: bool
    was_read: bool
    complete: bool
    pruned: bool


class Editions:
    """The editions of the run in a folder, by their numbers from 1."""

    def __init__(self, place: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        found = _PLACE.fullmatch(str(open_store(place).url))
        self._root = open_store(found["run"] if found is not None else place)
        self._clock = clock

    @property
    def run(self) -> str:
        return self._root.url

    def place(self, number: int) -> str:
        return self.run if number == 1 else f"{self.run}/{FOLDER}{number:06d}"

    def open(self, number: int) -> Store:
        return open_store(self.place(number))

    def current(self) -> int:
        """The number of the edition that is read."""
        number: int = self._pointer()[0]["edition"]
        return number

    def switch(self, was: int, number: int) -> bool:
        """Let another edition be read from now on; False if the current one is not `was` any more.

        EditionPruned if it was pruned. One that was never read is refused, too, if the one that it is made from was:
        nobody knew what it needs.
        """
        said, tag = self._pointer()
        was_read = number == 1 or str(number) in said["superseded"]
        if number in said["pruned"] or (not was_read and self.origin(number).base in said["pruned"]):
            raise pruned(self.place(number))
        new = {**said, "edition": number, "superseded": {**said["superseded"], str(was): self._clock()}}
        return said["edition"] == was and self._put_pointer(new, tag)

    def begin(self, base: int, kind: str, goal: str = "") -> int:
        """The number of the edition that is to be made: one that was begun and never read, else a new one.

        Two that begin the same at once get the same number.
        """
        while True:
            highest = self.highest()
            if (found := self._find_begun(base, kind, goal, highest)) is not None:
                return found
            # One that another process has begun since has this number.
            origin = EditionOrigin(base, kind, goal, self._clock())
            self.open(highest + 1).put_if_absent(ORIGIN, json.dumps(asdict(origin)).encode())

    def find_begun(self, base: int, kind: str, goal: str = "") -> int | None:
        """The newest edition that was begun from `base` and never read; None if there is none."""
        return self._find_begun(base, kind, goal, self.highest())

    def _find_begun(self, base: int, kind: str, goal: str, highest: int) -> int | None:
        read = self._read()
        for number in range(highest, base, -1):
            if number not in read:
                origin = self.origin(number)
                is_same = (origin.base, origin.kind, origin.goal) == (base, kind, goal)
                if is_same and self.open(number).head(PRUNED) is None:
                    return number
        return None

    def highest(self) -> int:
        """The highest number that an edition has. Numbers have no gaps, and are never given again."""
        number = self.current()
        while self.open(number + 1).head(ORIGIN) is not None:
            number += 1
        return number

    def origin(self, number: int) -> EditionOrigin:
        """What an edition after the first is made from."""
        place = f"{self.place(number)}/{ORIGIN}"
        try:
            return read_record(EditionOrigin, self.open(number).get(ORIGIN), place)
        except FileNotFoundError:
            raise CorruptState(f"{place} is missing: it says what the edition is made from.") from None

    def is_read(self, number: int) -> bool:
        """Whether an edition is the current one, or was."""
        return number in self._read()

    def all(self, most: int | None = None) -> list[Edition]:
        """All editions that were begun, in order; with `most`, the newest ones."""
        current, read, highest = self.current(), self._read(), self.highest()
        first = 1 if most is None else max(1, highest + 1 - most)
        return [self._describe(number, current, read) for number in range(first, highest + 1)]

    def _describe(self, number: int, current: int, read: Collection[int]) -> Edition:
        store = self.open(number)
        origin = self.origin(number) if number > 1 else EditionOrigin(0, "")
        folder = Folder(store)
        plan, is_pruned = folder.read_plan(), store.head(PRUNED) is not None
        complete = number in read and number > 1
        if not complete and not is_pruned and plan is not None:
            folder.generation = plan.generation
            complete = Commits(folder).is_complete(len(plan.shards))
        return Edition(
            *(number, origin.base, origin.kind, origin.goal, origin.made_at),
            *(number == current, number in read, complete, is_pruned),
        )

    def prunable(self, keep: int, held: Collection[int] = ()) -> list[int]:
        """The editions that are older than the newest `keep` that were read.

        The current one is not among them, nor are those that are `held`, or were begun or superseded within the hour.
        """
        current = self.current()
        others = sorted(self._read() - {current}, reverse=True)[: keep - 1]
        old = (number for number in range(1, min(others, default=current)) if number not in (current, *held))
        return [number for number in old if self.open(number).head("plan.json") is not None and self._is_old(number)]

    def retire(self, numbers: Collection[int]) -> list[int]:
        """Let these editions never be read again, but for the current one; returns all that ever were retired.

        This is decided where the current one is, in the same record. Then a mark is put into the folder of each, by
        which those who still read it are told.
        """
        while True:
            said, tag = self._pointer()
            retired = sorted({*said["pruned"], *numbers} - {said["edition"]})
            if retired == said["pruned"] or self._put_pointer({**said, "pruned": retired}, tag):
                break
        for number in retired:
            self.open(number).put_if_absent(PRUNED, b"{}")
        return retired

    def prune(self, number: int, needed: Collection[str] = ()) -> bool:
        """Delete what a retired edition has, but for the parts that are `needed`, since others have rows there.

        False if there was nothing left.
        """
        store = self.open(number)
        keys = (entry.key for entry in store.list("") if not entry.key.startswith(_KEPT))
        left = [key for key in keys if key not in needed]
        store.delete_all(left)
        return bool(left)

    def _is_old(self, number: int) -> bool:
        at = self._superseded().get(str(number))
        if at is None and number > 1:
            at = self.origin(number).made_at
        return isinstance(at, int | float) and at + GRACE_S <= self._clock()

    def _read(self) -> set[int]:
        """The editions that are or were the current one."""
        return {self.current(), *(int(number) for number in self._superseded() if number.isdecimal())}

    def _superseded(self) -> dict[str, Any]:
        superseded: dict[str, Any] = self._pointer()[0]["superseded"]
        return superseded

    def _pointer(self) -> tuple[dict[str, Any], str]:
        """What the record of the run's editions says, and its tag; without one, the first edition is read."""
        try:
            data, tag = self._root.get_tagged(POINTER)
        except FileNotFoundError:
            return {"edition": 1, "superseded": {}, "pruned": []}, ""
        said = read_object(data, f"{self.run}/{POINTER}")
        number = said.get("edition")
        if type(number) is not int or number < 1:
            raise CorruptState(
                f"{self.run}/{POINTER} is damaged: it names no edition.",
                hint="Delete it: the first edition is read then. `shardmill refresh` makes the next one again.",
            )
        superseded, retired = said.get("superseded"), said.get("pruned")
        known = superseded if isinstance(superseded, dict) else {}
        gone = [n for n in retired if type(n) is int] if isinstance(retired, list) else []
        return {"edition": number, "superseded": known, "pruned": gone}, tag

    def _put_pointer(self, said: dict[str, Any], tag: str) -> bool:
        """Replace the record, if it still has this tag."""
        data = json.dumps(said).encode()
        return self._root.replace_if_same(POINTER, data, tag) if tag else self._root.put_if_absent(POINTER, data)

    def number_of(self, place: str) -> int:
        """The number of the edition in a folder of this run."""
        found = _PLACE.fullmatch(place)
        return int(found["number"]) if found is not None else 1


def open_current(place: str | os.PathLike[str]) -> Store:
    """The folder of the current edition of a run; a folder of an edition itself stays. The first is the run's own."""
    store = open_store(place)
    if found := _PLACE.fullmatch(store.url):
        return open_store(found["run"]) if int(found["number"]) == 1 else store
    editions = Editions(place)
    return store if (number := editions.current()) == 1 else editions.open(number)
