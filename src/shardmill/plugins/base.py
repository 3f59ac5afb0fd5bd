"""What comes through the door: declarations of verbs, sources, sinks and engines, ours and those of installed packages.

A declaration imports nothing. It names its parts as "module:attribute", and `part` imports one when it is used. The
common path asks a declaration for what it declares, never for its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

# Families of verbs in `shardmill --help`.
RUNS, LOOKS, USES, MACHINES = "Run a task", "Look at a run", "Use the result", "Machines"


def load_part(place: str) -> Any:
    """Import the attribute that "module:attribute" names, or a module."""
    module, _, name = place.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: its command and function, the task that it runs, and what the common path has to know about it.

    `summary` is a sentence, `about` what its help adds to it, `examples` are command lines. A verb with a `call`, an
    example of it in Python, is a function, too, which returns `returns`.

    Parts are named as "module:attribute". `options` is a model of them (`plan.options`). `start` is a function that
    gets a `Request` and returns what the function returns, by default a run of the verb's task; `show` prints the
    outcome for the command line. `task` is a class with the contract of `tasks.base.Task`. `settle` completes `[work]`
    and `[execution]` before a spec is made of them. `steps` are functions for what follows the last shard, by name;
    each gets the ledger, the plan and whether to be quiet, and returns what the step's record says. `report` reads what
    the verb tells of a run in a report. `briefing` is a class that says what a host without the run folder has to know
    of other shards. `extras_for` is a function of the task's parameters and of whether there is a GPU: it returns
    extras of shardmill that the environment of a worker needs besides `extras`. `methods` are functions behind methods
    of `Run` that only its runs have. `items_below` finds the run whose rows are the items of another, if the verb makes
    both.
    """

    name: str
    summary: str = ""
    about: str = ""
    family: str = RUNS
    examples: tuple[str, ...] = ()
    call: str = ""
    returns: str = "shardmill.run.result:Run"
    options: str = "shardmill.plan.shared:TaskOptions"
    start: str = ""
    show: str = ""
    task: str = ""
    settle: str = ""
    steps: Mapping[str, str] = field(default_factory=dict)
    report: str = ""
    briefing: str = ""
    extras_for: str = ""
    methods: Mapping[str, str] = field(default_factory=dict)
    items_below: str = ""

    extras: tuple[str, ...] = ()
    """Extras of shardmill that the environment of a worker needs."""

    makes_vectors: bool = False
    """Whether the result has a vector for each item, so that it can be searched."""

    embeds_texts: bool = False
    """Whether its vectors are those of `models.embedder` by its parameters, so that other tasks can embed as it did."""

    shows_vectors_of: bool = False
    """Whether the result shows the vectors of the runs that are its source, so that those are searched."""

    folders: tuple[str, ...] = ()
    """Folders inside its run folder that hold runs of their own."""

    publishes: bool = False
    """Whether its task writes more than rows into the run folder, which all its workers must reach."""

    searches: tuple[str, ...] = ()
    """Parameters that name a run or a table, which its workers search."""

    tunable: bool = False
    """Whether trials of a study may be runs of its task."""

    long_items: bool = False
    """Whether an item takes so long that rates of items say nothing."""

    items_are_trials: bool = False
    """Whether an item is a trial of a study."""

    rows_vary: bool = False
    """Whether an item may give several rows, or none."""

    beyond_item: str = ""
    """What a row depends on besides its item, in words, if it does; such a run cannot be refreshed."""

    runs_code: bool = False
    """Whether it calls code of the user, which may fail, or draw other numbers each time."""

    writes_texts: bool = False
    """Whether its rows may be texts that a model wrote, with the reason why each ended."""

    resumes: bool = False
    """Whether the same command resumes an interrupted run."""

    hidden: bool = False
    """Whether it is left out of lists."""

    def part(self, name: str) -> Any:
        """Import one of its parts; None if it has none of that name."""
        place = getattr(self, name)
        return load_part(place) if place else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceKind:
    """A source: files with certain `suffixes`, or what addresses with certain `schemes` name.

    It has one of three parts. The `reader` of a format is a module with the functions of `sources.base.Reader`: they
    cut a file into shards, read a shard, and may say which bytes a shard needs; that of a scheme has the functions of
    `sources.base.PlaceReader`. A `finder` is a function that finds the files of another source at its addresses. A
    `database` is a class with the contract of `sources.sql.base.Database`, which is made with its address; --query
    selects its rows.
    """

    name: str
    suffixes: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    reader: str = ""
    finder: str = ""
    database: str = ""

    folders: tuple[str, ...] = ()
    """Suffixes of folders, on a disk or behind a URL, that are addresses of it without its scheme."""

    unit: Literal["line", "record", "row", "file", "id"] = "row"
    """What an item is: one line, one or more lines, a row without lines, a file, or a number of nothing stored."""

    column: str = ""
    """Its only column, if a whole item is one value; lines of a format without it are JSON."""

    compressible: bool = False
    """Whether its files may be compressed with gzip, zstd, bzip2 or xz."""

    binary: bool = False
    """Whether its files, which may be compressed, are no text. Compressed ones are read from their start."""

    counted_remotely: bool = False
    """Whether rows can be counted without downloading the whole file."""

    located: bool = False
    """Whether its reader gives rows the columns `file`, `url` and `line`, from `FileSource.origins`."""

    reach: Literal["files", "network", "machine"] = "files"
    """How workers on other hosts read it: its files are sent to them, they reach it, or it is on one machine."""

    extras: tuple[str, ...] = ()
    """Extras of shardmill that the environment of a worker needs."""

    bordered: bool = False
    """Whether its texts have pages and headings, where a long text is best cut."""

    magic: bytes = b""
    """What its files begin with."""

    magic_at: int = 0
    """The bytes before `magic`."""

    title: str = ""
    """What messages call a file that begins with `magic`."""

    def part(self, name: str) -> Any:
        """Import one of its parts."""
        return load_part(getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkKind:
    """A store that rows go to: what its addresses begin with, and how they get there.

    Workers write rows to it directly (--to), or the committed parts of a run folder are delivered to it (--into). For
    the first, `writer` is a function of a `sinks.base.SinkContext` that returns a `sinks.base.Sink`, and `table` a
    module with the functions of `sinks.base.ResultTable`, which prepare it and read it back for `verify`; `progress` is
    a function of the address, the table and the plan's id that says for `status` what each worker has written. For the
    second, `delivery` is a class with the contract of `sinks.base.Delivery`; one that `marks_gone` takes addresses that
    end with `?gone=COLUMN`. A sink that reaches one `machine` is refused where workers run on others.
    """

    name: str
    schemes: tuple[str, ...] = ()
    writer: str = ""
    table: str = ""
    progress: str = ""
    delivery: str = ""
    marks_gone: bool = False
    reach: Literal["machine", "network"] = "network"

    extras: tuple[str, ...] = ()
    """Extras of shardmill that the environment of a worker needs."""

    def part(self, name: str) -> Any:
        """Import one of its parts."""
        return load_part(getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """An engine: its class, and what has to be known about it before it is opened.

    `engine` is a class with the contract of `engines.base.Engine`; it takes the execution. `end_workers` ends workers
    that cannot see the run folder or wait in a queue; `is_placed` says whether the workers that the options would place
    are placed already.
    """

    name: str
    engine: str
    end_workers: str = ""
    is_placed: str = ""

    commands: tuple[str, ...] | None = None
    """Options that run commands, or connect to what may: a run folder may not choose them. None: all its options."""

    own_files: tuple[str, ...] = ()
    """Options that name a file which may run commands: it must belong to the user."""

    detachable: bool = False
    """Whether its workers need nobody once they are placed."""

    stays_here: bool = False
    """Whether all its workers run on this machine."""

    sees_editions: bool = True
    """Whether its workers reach the folders of a run's editions, so that it can refresh a run."""

    gpus_by: str = "its scheduler"
    """Who assigns the GPUs to its workers, so that --device cuda:0 is refused; empty if this command does."""

    def part(self, name: str) -> Any:
        """Import one of its parts; None if it has none of that name."""
        place = getattr(self, name)
        return load_part(place) if place else None
