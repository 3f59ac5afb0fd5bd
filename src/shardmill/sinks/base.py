"""The contract of a sink: rows of one shard are staged, then committed as a whole or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import UsageError
from shardmill.core.hashing import Hashes
from shardmill.ledger import Claim, Commit, Ledger
from shardmill.plan import Plan
from shardmill.store.recipes import Recipe as Recipe

# The record of a failed item, as written to the run's errors.
ErrorRecord = dict[str, Any]

# What is counted of items besides rows and errors: fields of `Finished` and of `Sealed`.
COUNTS = ("inputs", "tokens", "tokens_out", "truncated", "dropped")


@dataclass(frozen=True, slots=True)
class Finished:
    """Consecutive items whose rows were written; items are numbered within their shard.

    `gone` are items that the task gave no row. `describe` makes the error record of an item that the sink refuses.
    Rows of `reused` items were taken over. `item_hashes` are of the items as read; `rows_digest` is of all rows that
    were written for them, and `lineage` has both item by item, None if it is not known.
    """

    first_row: int
    rows: int
    errors: dict[int, ErrorRecord]
    describe: Callable[[int, str], ErrorRecord]
    inputs: int = 0
    tokens: int = 0
    tokens_out: int = 0
    truncated: int = 0
    gone: Sequence[int] = ()
    item_hashes: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    rows_digest: str = ""
    reused: int = 0
    lineage: pa.RecordBatch | None = None

    @property
    def dropped(self) -> int:
        return len(self.gone)


@dataclass(frozen=True, slots=True)
class Sealed:
    """The totals of a shard, including earlier attempts if the sink keeps their rows."""

    rows: int
    lines: int
    part_rows: int
    inputs: int
    tokens: int
    tokens_out: int
    truncated: int
    dropped: int = 0
    errors: list[ErrorRecord] = field(default_factory=list)
    items_digest: str = ""
    rows_digest: str = ""
    reused: int = 0


class Staged(Protocol):
    """The rows of one attempt at one shard. The first `done` items were finished by earlier attempts: skip them.

    `carried` are their counts, if the attempt goes on counting from there instead of learning the totals from `seal`.
    `done_digest` is of these items as they were read then, "" if that is unknown; if they are read differently now,
    `distrust` says what to do, and makes sure that the next attempt does not meet them again where it can. `write` gets
    a recipe for parts of editions alone: it says where its rows, own ones and others, are.
    """

    @property
    def done(self) -> int: ...
    @property
    def carried(self) -> Sealed | None: ...
    @property
    def done_digest(self) -> str: ...
    def distrust(self) -> str: ...
    @property
    def complete(self) -> bool: ...
    def write(self, rows: pa.Table, items: NDArray[np.int64], recipe: Recipe | None = None) -> None: ...
    def finish(self, items: Finished) -> list[ErrorRecord]: ...
    def seal(self, lines: int) -> Sealed | None: ...
    def commit(self, record: Commit) -> bool: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """What is delivered to a store: the rows of a run, with the columns of `schema`.

    `plan` and `generation` name the run. The columns of `key` identify a row, and are empty if nothing does. `vector`
    is the column of vectors that the task made, and `made_by` a digest of the task, its parameters and its model.
    """

    plan: str
    generation: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    vector: str = ""
    made_by: str = ""

    @property
    def dims(self) -> int:
        return int(self.schema.field(self.vector).type.list_size) if self.vector else 0


@dataclass(frozen=True, slots=True)
class Lot:
    """Consecutive shards whose rows are delivered together, with a digest of them; `staged` is what `stage` said.

    One that is not `whole` gives those rows alone that differ from what the store has of another edition.
    """

    number: int
    shards: range
    digest: str
    read: Callable[[], Iterator[pa.RecordBatch]]
    staged: dict[str, Any] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Holding:
    """What a store has of an edition of a run: its first `lots`.

    `turns_to` is the plan of another edition that it is becoming: `done` keys of that are done, of which `alone` were
    left alone. An edition that another one has replaced has lots below 0.
    """

    lots: int = 0
    turns_to: str = ""
    done: int = 0
    alone: int = 0


REPLACED = Holding(-1)


@dataclass(frozen=True, slots=True)
class Replacement:
    """All rows with these `keys` are deleted, and these `rows`, which have such keys, added.

    Of the last `leaving` keys no row stays, so that a store may mark theirs as gone instead. The rows of `alone` other
    keys are left alone.
    """

    keys: pa.RecordBatch
    rows: pa.RecordBatch
    alone: int = 0
    leaving: int = 0


@dataclass(frozen=True, slots=True)
class TurnStep:
    """A step of a store from an `earlier` edition, of which it `holds` something, to the one delivered.

    Of the rows that the store has with `keys`, `decide` makes what is deleted and added. The last step has no keys;
    after it the store has all `lots` of the edition delivered, and before it none.
    """

    earlier: Shipment
    holds: Holding
    turns_to: str
    keys: pa.RecordBatch
    decide: Callable[[Sequence[pa.RecordBatch]], Replacement]
    lots: int | None = None

    def after(self, alone: int) -> Holding:
        """What the store holds of the earlier edition after this step, which left `alone` keys alone."""
        if self.lots is not None:
            return REPLACED
        done = self.holds.done + self.keys.num_rows
        return Holding(self.holds.lots, self.turns_to, done, self.holds.alone + alone)


class WatchedRows:
    """Rows on their way through a library, which tells their own error as one of its own."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            self.error = error
            raise


_FULL = ("no space left", "is full", "not enough space", "maxmemory", "disk quota")
_CLOSED = ("read-only", "readonly", "permission", "privilege", "forbidden", "access denied", "accessdenied")


def is_full(reason: str) -> bool:
    """Whether a store has no room, by what its library says."""
    return any(words in reason.lower() for words in _FULL)


def how_to_go_on(reason: str) -> str:
    """The hint for an error of a store, by what its library says."""
    said = reason.lower()
    if is_full(reason):
        return "Free some space and run the same command again: it resumes."
    if any(words in said for words in _CLOSED):
        return "Rows need the right to write there; then run the same command again."
    return "If it can be reached and written, run the same command again: it resumes."


class Delivery(ABC):
    """A store beside the run folder, to which the rows of a run are delivered in lots, each exactly once.

    It is made with its address and what is delivered, and may be made again at any time by another process. The rows
    stay in the run folder, too, so that what it holds can be proved.

    Lots are numbered from 0. Any worker may `stage` one, while others stage other lots, or the same one. A single
    process commits them, in order. It may be paused, and another take its place: so `commit` looks at the number of
    lots that the store has in the same transaction that adds to it.
    """

    # Whether `stage` does work, which the workers then share.
    stages = False
    # Whether it knows how many lots it has. One that does not takes the same row again and again, and has it once.
    counts = True
    # The most lots that are committed together.
    lots_at_once = 256
    # Whether vectors come back bit by bit as they went.
    exact = True

    def __init__(self, address: str, shipment: Shipment) -> None:
        self.address, self.shipment = address, shipment

    @abstractmethod
    def prepare(self) -> None:
        """Create what rows go into, or refuse what is there and does not fit them."""

    @abstractmethod
    def count(self) -> int:
        """How many lots of this run it has."""

    def stage(self, lot: Lot) -> dict[str, Any]:
        """Write the rows of a lot where nobody sees them yet; what is returned is given to `commit` as JSON."""
        return {}

    def is_staged(self, staged: dict[str, Any]) -> bool:
        """Whether what `stage` wrote is still there."""
        return True

    @abstractmethod
    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        """Add lots, from number `first` on: all or none. False if it does not have `first` lots of this run."""

    @abstractmethod
    def scan(self) -> Iterator[pa.RecordBatch]:
        """All rows that it has, of other runs too, with the columns of the schema."""

    @abstractmethod
    def delete(self, keys: pa.RecordBatch) -> None:
        """Delete the rows with these values of the key columns."""

    def replace(self, lots: int, rows: pa.RecordBatch) -> bool:
        """Delete all rows with the keys of these, and add these: all of it in one step, or nothing.

        False if it does not have `lots` lots of this run, or if it was changed meanwhile.
        """
        raise UsageError(
            f"{self.address}: its sink cannot repair rows.", hint="Deliver the run to another place: it is created."
        )

    def count_gone(self) -> int:
        """How many rows it has that are marked as gone, which `scan` leaves out."""
        return 0

    def holdings(self) -> dict[str, tuple[str, Holding]]:
        """What it has of which plans: for each the generation, and how much."""
        return {}

    def turn(self, step: TurnStep) -> bool:
        """Take a step from one edition to another: all of it, or nothing.

        False if it does not hold what the step begins with, or if it was changed meanwhile.
        """
        raise UsageError(
            f"{self.address}: its sink cannot bring rows up to another edition.",
            hint="Deliver the run to another place: it is created.",
        )

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        """Complete the store after the last of all lots: build indexes, delete what dead attempts left.

        Returns a line for each thing that was done.
        """
        return []

    def show_as(self, name: str) -> None:
        """Let readers find what was delivered under another name: a view or an alias, which changes in one step."""
        raise UsageError(
            f"{self.address}: its kind of store has no views and no aliases.",
            hint="Leave --as out; tables of databases, Qdrant and Milvus have them.",
        )

    def close(self) -> None:  # noqa: B027
        """Let go of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a worker opens a sink with: the run, the columns of the rows, and how the worker works.

    Rows have the columns `kept` from the source and those that the task makes: `output`. Of these, `written` go into a
    table, after the digest of what a row is made from. `numerics` say how the worker computes, and `salt` what all rows
    depend on besides their items. With `rows_vary`, an item may have several rows, or none.
    """

    ledger: Ledger
    plan: Plan
    kept: pa.Schema
    output: pa.Schema
    written: pa.Schema
    numerics: Mapping[str, str] = field(default_factory=dict)
    salt: bytes = b""
    rows_vary: bool = False
    batch_rows: int = 512
    worker: str = ""
    on_step: Callable[[str, int], None] = lambda step, shard: None
    stopped: Callable[[], bool] = lambda: False


class ResultTable(Protocol):
    """The functions of a module that prepares, completes and reads back what workers write to directly.

    `schema` has the columns that are kept from the source and those that the task makes.
    """

    def prepare(self, plan: Plan, schema: pa.Schema, *, fresh: bool = False) -> object:
        """Create it, or refuse one that exists and does not fit; `fresh` forgets what was written before."""

    def finish(self, plan: Plan, schema: pa.Schema, *, kind: str, quiet: bool = False) -> list[str]:
        """Build the indexes of this kind after the last shard; returns one line per index built."""

    def check_table(self, plan: Plan, schema: pa.Schema, commits: dict[int, Commit]) -> Iterator[tuple[str, bool, str]]:
        """Compare its rows with the commits; yields the name of each check, whether it passed, and what was seen."""

    def count_without_result(self, plan: Plan, schema: pa.Schema) -> int:
        """The rows that were written without a result."""

    def read_results(self, plan: Plan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The columns that the task made, of all rows, in any order."""


class Sink(Protocol):
    """Where rows go. `salt` is part of the digest of what a row is made from, by which `unchanged` finds rows."""

    salt: bytes

    def begin(self, claim: Claim) -> Staged: ...
    def unchanged(self, kept: pa.RecordBatch) -> frozenset[int]: ...
    def close(self) -> None: ...
