"""Known bugs, planted to show that the simulation finds them."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from campaigns.simulated_lake import SimulatedDelivery
from shardmill.ledger import Claim, Commit, Editions, KeptName, Ledger, editions
from shardmill.ledger.commit import Commits
from shardmill.ledger.failure import ErrorRecords
from shardmill.ledger.folder import Folder
from shardmill.ledger.ledger import _OWN_NAMES, _SHARED_NAMES
from shardmill.ledger.record import encode
from shardmill.plan import Plan
from shardmill.results.delivery import Courier
from shardmill.run import Run, pruning, refreshing, running
from shardmill.sinks import earlier, keeping
from shardmill.sinks.base import Lot
from shardmill.sinks.parquet import StagedPart
from shardmill.sinks.remembered import count_lots, note
from shardmill.store import LocalStore, ObjectStore
from shardmill.store.recipes import FIRST, ROWS, as_ranges

_retire, _prune = Editions.retire, Editions.prune
_commit, _put_execution = StagedPart.commit, Ledger.put_execution


def commit_by_put(self: Commits, record: Commit) -> bool:
    """The last commit wins instead of the first."""
    self._store.put(self.key(record.shard), encode(record))
    return True


def refusal_believed(self: ObjectStore, key: str, data: bytes) -> bool:
    """A refused write is taken for another's, though it may be one's own whose answer was lost."""
    return False


def key_without_generation(self: Folder, kind: str, shard: int) -> str:
    """A worker of a deleted run commits into the run that follows it."""
    return f"{kind}/{shard:06d}.json"


def shards_without_generation(self: Folder, kind: str, start: int = 0, stop: int | None = None) -> Iterator[int]:
    shards = (int(entry.key[len(kind) + 1 : -len(".json")]) for entry in self.store.list(f"{kind}/"))
    yield from (shard for shard in shards if shard >= start and (stop is None or shard < stop))


def seal_later(self: StagedPart, lines: int) -> None:
    self._flush()
    self._writer.close()


def commit_before_part(self: StagedPart, record: Commit) -> bool:
    """A commit is written before its part is durable."""
    won = _commit(self, record)
    self._file.close()
    return won


def put_errors_later(self: ErrorRecords, claim: Claim, lines: bytes) -> str:
    self.later = lines  # type: ignore[attr-defined]
    return f"errors/{claim.shard:06d}.{claim.attempt}.jsonl"


def commit_before_errors(self: StagedPart, record: Commit) -> bool:
    """A commit is written before the list of its failed rows."""
    if (won := _commit(self, record)) and record.errors_file:
        self._ledger.store.put(record.errors_file, self._ledger.errors.later)  # type: ignore[attr-defined]
    return won


def sweep_at_start(self: Ledger, settings: dict[str, Any]) -> None:
    """A parent sweeps before it begins, while workers of another may be writing parts."""
    self.sweep()
    _put_execution(self, settings)


def delete_without_lock(self: LocalStore, key: str) -> None:
    """A lease is deleted while another process replaces it, and comes back."""
    with contextlib.suppress(FileNotFoundError):
        self.path(key).unlink()


def start_over_in_two_steps(self: Ledger, plan: Plan) -> Plan:
    """Between two plans the folder is no run, and cannot be used again if a late worker leaves something there."""
    for folder in (*_OWN_NAMES, *_SHARED_NAMES, "plan.json"):
        self.store.delete_all([entry.key for entry in self.store.list(folder)])
    return self.create(plan)


def settings_made_up(self: Ledger) -> tuple[Plan, dict[str, Any]]:
    """Whoever comes between a plan and its settings takes the usual ones."""
    return self.plan(), self.execution()


def any_kept(names: Sequence[KeptName], row: int) -> KeptName | None:
    """Kept rows are taken back though rows before them are missing."""
    return max((name for name in names if name.first_row >= row), default=None)


def commit_blindly(self: SimulatedDelivery, first: int, lots: Sequence[Lot]) -> bool:
    """The number of lots is looked at, and something else is committed before the rows are."""
    _, kept = self._look()
    if count_lots(self.shipment, kept) != first:
        return False
    names, new = [lot.staged["file"] for lot in lots], note(self.shipment, first + len(lots))

    def append() -> bool:
        return self._swap(self._lake.tables[self.address].version, new, names)

    return bool(self._ask("PUT", "commits/lake", append))


def cut_anew(self: Courier) -> list[Lot]:
    """Every process cuts lots of its own."""
    stops = [n for n in range(1, len(self._commits)) if hash((self.worker, n)) % 2]
    spans = pairwise([0, *stops, len(self._commits)])
    return [self._lot(number, range(*span)) for number, span in enumerate(spans)]


def nothing_needed(editions: Editions, going: list[int]) -> defaultdict[int, set[str]]:
    """Pruning deletes parts that later editions have rows of."""
    return defaultdict(set)


def retire_without_mark(self: Editions, numbers: Collection[int]) -> list[int]:
    """Who reads an edition that is pruned is not told."""
    said, tag = self._pointer()
    retired = sorted({*said["pruned"], *numbers} - {said["edition"]})
    return retired if self._put_pointer({**said, "pruned": retired}, tag) else []


def retire_nothing(self: Editions, numbers: Collection[int]) -> list[int]:
    """What later editions need is looked up before it is decided which of them go."""
    return sorted(numbers)


def retire_and_prune(self: Editions, number: int, needed: Collection[str] = ()) -> bool:
    return number in _retire(self, [number]) and _prune(self, number, needed)


def seal_nothing(self: Ledger, plan: Plan) -> None:
    """An edition that is read can be started over."""


def switch_blindly(self: Editions, said: dict[str, Any], tag: str) -> bool:
    """The record of the editions is replaced, whatever it says by then."""
    self._root.put(editions.POINTER, json.dumps(said).encode())
    return True


def ranges_off_by_one(*columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ranges of several rows begin one row too early."""
    ranges = as_ranges(*columns)
    late = (ranges[:, ROWS] > 2) & (ranges[:, FIRST] > 0)
    ranges[late, FIRST] -= 1
    return ranges


def read_too_early(ledger: Ledger, *given: Any) -> Run:
    """The new edition is read as soon as it is begun."""
    of_run = Editions(ledger.url)
    of_run.switch(of_run.current(), of_run.number_of(ledger.url))
    return running.finish_run(ledger, *given)


BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "": [],
    "commit-by-put": [(Commits, "add", commit_by_put)],
    "refusal-believed": [(ObjectStore, "_holds", refusal_believed)],
    "one-generation": [(Folder, "key", key_without_generation), (Folder, "shards", shards_without_generation)],
    "commit-before-part": [(StagedPart, "seal", seal_later), (StagedPart, "commit", commit_before_part)],
    "commit-before-errors": [(ErrorRecords, "put", put_errors_later), (StagedPart, "commit", commit_before_errors)],
    "sweep-at-start": [(Ledger, "put_execution", sweep_at_start)],
    "delete-without-lock": [(LocalStore, "delete", delete_without_lock)],
    "settings-made-up": [(Ledger, "settle", settings_made_up)],
    "kept-with-gaps": [(keeping, "next_kept", any_kept)],
    "start-over-in-two-steps": [(Ledger, "start_over", start_over_in_two_steps)],
}

# Those that only a delivery shows.
DELIVERY_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "lots-committed-blindly": [(SimulatedDelivery, "commit", commit_blindly)],
    "lots-cut-anew": [(Courier, "_lots", cut_anew)],
}

# Those that only refreshes show.
REFRESH_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "": [],
    "nothing-needed": [(pruning, "_find_needed", nothing_needed)],
    "retire-one-by-one": [(Editions, "retire", retire_nothing), (Editions, "prune", retire_and_prune)],
    "retire-without-mark": [(Editions, "retire", retire_without_mark)],
    "switch-blindly": [(Editions, "_put_pointer", switch_blindly)],
    "begun-again": [(Ledger, "seal", seal_nothing)],
    "ranges-off-by-one": [(earlier, "as_ranges", ranges_off_by_one)],
    "read-too-early": [(refreshing, "finish_run", read_too_early)],
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug; none if the name is empty."""
    with contextlib.ExitStack() as stack:
        for owner, attribute, wrong in (BUGS | DELIVERY_BUGS | REFRESH_BUGS)[name]:
            stack.enter_context(patch.object(owner, attribute, wrong))
        yield
