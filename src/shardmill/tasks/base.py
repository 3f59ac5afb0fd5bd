"""The contract of a task, the work done on every item.

Design: docs/design/tasks.md
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import TaskError
from shardmill.core.hashing import Hashes
from shardmill.core.quantised import Quantiser
from shardmill.ledger import Ledger
from shardmill.plan import BYTES, NUMBER, START, STOP, WINDOW, Plan

__all__ = [
    "START",
    "STOP",
    "WINDOW",
    "Agreement",
    "Combined",
    "Output",
    "Prepared",
    "SourceSample",
    "StreamingTask",
    "Task",
]

# How a row that is computed again agrees with the stored one: `exact`, every value is equal; `close`, vectors by their
# cosine and all else equal; `mostly`, at least half of the rows are equal, and the share is shown; `none`, rows cannot
# be made again, and only counts, ids and the task's own `check_rows` are proved.
Agreement = Literal["exact", "close", "mostly", "none"]

PLAIN_TEXT = "A plain text."

# Source bytes that one worker processes per second, as an order of magnitude; measured rates replace it.
_BYTES_PER_S = {"cpu": 20_000.0, "cuda": 2_000_000.0}


@dataclass(frozen=True, slots=True)
class Prepared:
    """Texts prepared for the device: inputs, their costs in a batch budget, and why a text is bad.

    `inputs` is a sequence, and `run` gets lists of it; or an array or a record batch, and `run` gets such. Each text
    has one input, or any number: then `owners` has the text of each input, in order, and a text that is None or bad has
    no input. `tokens` and `truncated` go into the worker's record.
    """

    inputs: Any
    costs: NDArray[np.int64]
    bad: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    truncated: int = 0
    owners: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """One row per input, in the order of the inputs; `bad` gives the reason why a row is null.

    `tokens_out` are the tokens generated for each row, `tokens_in` those read where only `run` can tell; both may be
    empty. A task whose `rows_vary` gives `counts`: how many of the rows are of each input. A task that sorts its inputs
    may prove that it put their rows back: `given` is `hash_inputs` of the inputs, sorted as the rows were.
    """

    rows: pa.RecordBatch
    bad: dict[int, str] = field(default_factory=dict)
    tokens_out: Sequence[int] = ()
    tokens_in: Sequence[int] = ()
    counts: NDArray[np.int64] | None = None
    given: Hashes | None = None


def number_items(fields: pa.RecordBatch | None, shard: int, first: int, items: int) -> pa.RecordBatch:
    """Fields of `items` items, with a column `shardmill_item`: the number of the shard, and that of the item in it."""
    numbers = pa.array((np.int64(shard) << 32) + np.arange(first, first + items))
    return pa.record_batch({NUMBER: numbers}) if fields is None else fields.append_column(NUMBER, numbers)


def fields_of(task: Task, kept: pa.RecordBatch) -> pa.RecordBatch | None:
    """The task's own columns of items; None if it names none."""
    return kept.select(list(task.fields)) if task.fields else None


def add_bytes(fields: pa.RecordBatch | None, contents: pa.Array | None) -> pa.RecordBatch | None:
    """Fields of items that are bytes, with a column `shardmill_bytes` of them; other items have none."""
    if contents is None:
        return fields
    return pa.record_batch({BYTES: contents}) if fields is None else fields.append_column(BYTES, contents)


class SourceSample(Protocol):
    """What a task sees of the source when it settles parameters.

    Called, it prepares the first rows; `texts` reads at most `count` texts, from places all over the source. If it is
    `quiet`, the user is told nothing.
    """

    @property
    def quiet(self) -> bool: ...
    def __call__(self) -> pa.RecordBatch: ...
    def texts(self, count: int) -> list[str]: ...


class Combined(Protocol):
    """Combines the rows of an item's inputs into one row; they arrive in any order and in several batches."""

    def add(self, items: NDArray[np.int64], rows: pa.RecordBatch) -> None: ...
    def finish(self) -> Output: ...


class Task(ABC):
    """The work done on every item. A task is made from its parameters (plain JSON) and opened once in each worker.

    A subclass must define `output`, `batch_budget` and the four abstract methods; the rest has defaults.
    An attribute may be set on the class, in `__init__` or in `open`, or be a property; `output` is read before `open`.
    `shardmill.tasks.open_task` gives the same defaults to a class that does not inherit but defines these members.
    """

    output: pa.Schema
    """The columns it adds. With a column `window`, each input yields one row, and the worker fills that column."""

    batch_budget: int
    """The maximum cost of one batch; read after `open`."""

    @abstractmethod
    def fingerprint(self) -> dict[str, str]:
        """What must not change between resumes: the model, the version."""

    @abstractmethod
    def open(self, device: Device) -> None:
        """Load the model; called once in each worker, before `prepare` and `run`."""

    @abstractmethod
    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Prepare texts, on another thread while the device works. None is an item without a usable text.

        `fields` has the task's own columns, a row per text; it is given only to a task that names some in `fields`. Of
        items that are bytes, it also has those, in the column `shardmill_bytes`, and the text is their digest.
        """

    @abstractmethod
    def run(self, inputs: Sequence[Any]) -> Output:
        """Run one batch on the device; always called from one thread.

        Raises DeviceOutOfMemory if the batch does not fit, DeviceLost if this process can no longer use the device, and
        anything else if one of its rows cannot be processed.
        """

    fields: Sequence[str] = ()
    """Columns of the source that `prepare` gets besides the text."""

    numbers_items: bool = False
    """Whether `prepare` gets, besides its fields, a column of numbers that grow along the run's items."""

    item_bytes: int = 0
    """Memory that an item needs once it is prepared, if it is more than that of its text: few then wait at a time."""

    rows_vary: bool = False
    """Whether an input may give several rows or none, as `Output.counts` says; such a task has one input per text."""

    streams: bool = False
    """Whether the worker calls `stream` instead of batches of `run`: rows end at different times."""

    one_shard: bool = False
    """Whether a worker holds one shard at a time, and nobody repeats a shard beside a slow holder."""

    serves_runs: bool = False
    """Whether a worker of a pool may open it once for several runs with the same parameters, one after another."""

    takes_adapters: bool = False
    """Whether its parameter `adapter` may be that of each item: `open_task` then makes a task for each adapter."""

    max_errors: str = ""
    """How many rows may fail, as `--max-errors` says it, if the user does not say; "" for the usual 1 %."""

    few_rows: int = 1000
    """A share of failed rows is taken of at least this many rows."""

    def check_installed(self, kind: str) -> None:  # noqa: B027
        """Raise MissingExtra or ModelError if it cannot run here on `cpu` or `cuda`; called before a run is planned."""

    def join(self, ledger: Ledger, plan: Plan) -> None:  # noqa: B027
        """Get the run that it works on, for a task that builds on results of earlier shards; called before `open`."""

    def close(self) -> None:  # noqa: B027
        """Free the device; called at most once, after the last `run`."""

    def probe(self) -> None:
        """Check that the device works, after rows failed or killed workers; by default a plain text runs."""
        self.run(self.prepare([PLAIN_TEXT]).inputs)

    padded: bool = True
    """Whether a batch costs its longest input times the number of inputs; if not, it costs the sum of its inputs."""

    unit_norm: bool = False
    """Whether the vectors it makes have length one, which `verify` then checks."""

    null_rows_are_answers: bool = False
    """Whether a row with null in all its columns is an answer; if not, `verify` wants an error for each such row."""

    dropped_file: str = ""
    """A Parquet file of the run folder whose column `dropped` has the number of each item without a row, in the source.

    It is written once all shards are committed, and `verify` compares it with the parts.
    """

    plan_notes: Sequence[str] = ()
    """Sentences that the user is told when a run is planned."""

    notes: Sequence[str] = ()
    """Sentences for the worker's record about how the rows were computed."""

    model_code: Sequence[str] = ()
    """The names of code that comes with its model, which the user may allow (`--allow-code`); read before `open`."""

    numerics: Mapping[str, str] = MappingProxyType({})
    """`kernel` and `precision` that compute the rows, for the commits; read after `open`."""

    rounded: str = ""
    """The precision that the work asks for, such as int8: no worker computes its rows in another; "" for none."""

    device_clock: Mapping[str, float] | None = None
    """`busy_s` and `idle_s` of the GPU, for the worker's record."""

    folder: Any = None
    """The folder of its model, from which memory and speed are estimated; None if it has none."""

    quantiser: Quantiser | None = None
    """How the vectors that it makes are stored in fewer bits; None if they are stored as numbers."""

    embed_query: Callable[[str], NDArray[np.float32]] | None = None
    """A method that returns the vector of a search query; None if the result has no vectors to search."""

    embed_picture: Callable[[bytes], NDArray[np.float32]] | None = None
    """The same for a picture that is searched for, as the bytes of its file; None if items are no pictures."""

    sparse_query: Callable[[str], tuple[NDArray[np.int32], NDArray[np.float32]]] | None = None
    """Of sparse vectors, the words of a query, by number and each once, and their weights."""

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch on the device and return a function that waits for its output; by default that calls `run`.

        A task that overrides this keeps the device busy while the next batch is prepared.
        """
        return lambda: self.run(inputs)

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        """Pull inputs, each with a number, and give rows as they are finished, in any order and in groups.

        None means that no input is ready now; the iterator waits by itself if the task has nothing under way. Inputs
        come across the edges of blocks and shards, and those under way cost at most `batch_budget` together. Raises
        what `run` raises: finished rows stay, and those under way are run again, fewer at a time. A task that waits
        long for others gives an empty group now and then, so that the worker can stop.
        """
        raise TaskError("The task sets `streams` and has no stream.", hint="Define it, or inherit StreamingTask.")

    def combine(self, items: int) -> Combined | None:
        """Return an object that combines rows into one per item, for `items` items; None if each input is a row."""
        return None

    settles: Sequence[str] = ()
    """Names of parameters that `settle` gives if they are missing. A missing `fields` is all columns of the source."""

    def follow_model(self) -> dict[str, Any]:
        """Parameters by the model's own settings, which a new plan fixes unless they are given.

        A plan that was made without one of them is continued without it.
        """
        return {}

    border_param: str = ""
    """A parameter that is set for texts with pages and headings, if the task cuts them and can do so there."""

    page_param: str = ""
    """A parameter that is set if `page` is kept of documents, for a task whose rows can tell it: it then makes it."""

    def settle(self, source: SourceSample) -> dict[str, Any]:
        """Parameters that the plan fixes before any worker begins, by what it sees of the source."""
        return {}

    def gpu_bytes(self, precise: bool) -> int | None:
        """The GPU memory to load the model in float32 or faster, for few items; None if it uses no GPU."""
        return None

    def bytes_per_s(self, kind: str) -> float:
        """Source bytes that one worker processes per second on a kind of device, `cpu` or `cuda`.

        An order of magnitude is enough: shards are sized by it until a run has measured the rate.
        """
        return _BYTES_PER_S[kind]

    def agreement(self, precision: str) -> Agreement:
        """How rows that were computed in this precision agree with the same rows computed again in float32."""
        return "close"

    def for_reference(self) -> Task:
        """The task that computes rows again to compare them: itself, unless its rows are less exact than they could be.

        Its columns have the same names, and `distance` is asked of this one.
        """
        return self

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        """How far a stored value is from the same one computed again, 0 only if they are equal.

        None is the usual way: the cosine of vectors, and equality of all else. A task whose numbers move with rounding
        and are no vectors, such as scores, tells it, and how far apart they may be in `most_distant`.
        """
        return None

    def most_distant(self, precision: str) -> float | None:
        """The largest `distance` from float32 that a row computed in this precision may have; None if it has none."""
        return None

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        """What is wrong with stored rows of the task's columns, in words; None if nothing is. `verify` asks."""
        return None

    def measure(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """Figures of a whole result, for the report of `verify`."""
        return {}

    @property
    def written(self) -> pa.Schema:
        """The columns that sinks get: those it adds, and the number of the row of its item if there may be several."""
        own = self.output
        return own.append(pa.field(WINDOW, pa.int32())) if self.rows_vary else own

    def workers_per_gpu(self, cores: int) -> int:
        """The number of workers that share one GPU, given the number of CPU cores per GPU."""
        return 1


class StreamingTask(Task):
    """A task whose rows end at different times. A subclass defines `stream` instead of `run`."""

    streams = True
    padded = False

    @abstractmethod
    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]: ...

    def run(self, inputs: Sequence[Any]) -> Output:
        """Stream exactly these inputs; used for few rows, and for rows that must run apart from others."""
        order: list[int] = []
        groups: list[Output] = []
        for numbers, output in self.stream(iter(list(enumerate(inputs)))):
            order += numbers
            groups.append(output)
        rows = pa.concat_batches([group.rows for group in groups]) if groups else self.output.empty_table()
        firsts = np.cumsum([0, *(group.rows.num_rows for group in groups)])
        bad = {
            order[first + i]: why for first, each in zip(firsts, groups, strict=False) for i, why in each.bad.items()
        }
        where = np.argsort(np.array(order, np.int64), kind="stable")
        tokens_in, tokens_out = (
            [counts[i] for i in where] if (counts := [n for each in groups for n in getattr(each, name)]) else ()
            for name in ("tokens_in", "tokens_out")
        )
        return Output(rows.take(pa.array(where)), bad, tokens_out, tokens_in)
