"""What a host without a shared disk is sent of the edition before: its records, and the parts whose rows may be taken.

It lies there as it does at home, so that workers find rows, take them over and name their parts as they would at home.
Design: docs/design/editions.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardmill.ledger import Commit, Editions, Ledger
from shardmill.plan import Plan, SourceFile
from shardmill.plan.salt import salt_of
from shardmill.sources.unchanged import find_same_files
from shardmill.store import LocalStore, Store
from shardmill.store.parts import open_own, readable
from shardmill.store.recipes import find_recipe


def path_in_run(ledger: Ledger) -> str:
    """Where the folder of an edition is in that of its run, with a slash in front; "" for the first."""
    return ledger.url.removeprefix(Editions(ledger.url).run)


@dataclass(frozen=True, slots=True)
class EarlierEdition:
    """The edition that another one is made from, as far as rows may be taken over from it.

    Of another model or other parameters, no item is the same: then it has no `commits` here, and nobody reads them.
    """

    editions: Editions
    number: int
    base: Ledger
    before: Plan
    new: Plan
    commits: list[Commit]

    def records(self, there: Mapping[int, SourceFile]) -> Iterator[tuple[str, bytes]]:
        """Small files by their path in the run. Of a source file that is as it was, both plans name the copy."""
        place, run = f"{self.editions.place(self.number)}/", f"{self.editions.run}/"
        yield f"{place.removeprefix(run)}origin.json", self.editions.open(self.number).get("origin.json")
        files = [replace(file, index="") for file in self.before.stat.files]
        for now, was in find_same_files(self.before, self.new.work, self.new.stat).items():
            files[was] = replace(there[now], index="")
        plan = replace(self.before, stat=replace(self.before.stat, files=tuple(files)))
        folder = f"{self.base.url}/".removeprefix(run)
        yield f"{folder}plan.json", json.dumps(plan.to_json()).encode()
        for commit in self.commits:
            for key in filter(None, (self.base.commits.key(commit.shard), commit.errors_file)):
                yield f"{folder}{key}", self.base.store.get(key)

    def parts(self) -> dict[str, Path]:
        """The parts of that edition, and those that they have rows in, by their path in the run."""
        found: dict[str, Path] = {}
        for commit in self.commits:
            if commit.part:
                names = [(self.base.store, commit.part), *self._named(commit)]
                for store, key in names:
                    assert isinstance(store, LocalStore)
                    path = store.path(key)
                    found[f"{store.url}/{key}".removeprefix(f"{self.editions.run}/")] = path
        return found

    def _named(self, commit: Commit) -> list[tuple[Store, str]]:
        place = f"{self.base.url}/{commit.part}"
        with readable(place), self.base.store.reader(commit.part) as file:
            recipe = find_recipe(open_own(file, place, commit.digest)[0])
        return [(self.editions.open(part.edition), part.key) for part in (recipe.parts if recipe is not None else ())]


def find_earlier(ledger: Ledger, new: Plan) -> EarlierEdition | None:
    """What an edition is made from; None of a first one, or of a copy of any."""
    editions = Editions(ledger.url)
    number = editions.number_of(ledger.url)
    if not new.work.edition or number == 1:
        return None
    base = Ledger(editions.open(editions.origin(number).base))
    before = base.plan()
    commits = base.commits.read_complete(before)
    return EarlierEdition(editions, number, base, before, new, commits if salt_of(before) == salt_of(new) else [])
