"""The validated description of a run. TOML, keyword arguments and CLI options all end up here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from shardmill.core.dialect import name_option
from shardmill.core.errors import SpecError, nearest
from shardmill.core.functions import describe_call
from shardmill.core.passwords import clean_url
from shardmill.core.permission import KEY_VARIABLE, calls_among, code_among, key_name
from shardmill.plan.execution import (
    Batching,
    Computing,
    Delivering,
    Detaching,
    ErrorLimits,
    Following,
    Indexing,
    Placing,
    Pricing,
    Serving,
    ShardLimits,
    Transacting,
)
from shardmill.plan.limits import ErrorLimit, parse_deadline, parse_duration
from shardmill.plan.options import Options, explain, option
from shardmill.plan.shared import Keeping, ReadingPictures, ReadingTexts, TableKeys, TakingPart, Telling
from shardmill.plan.values import Address, Columns, Places, Usd
from shardmill.plugins import declared, find_verb

__all__ = [
    "SERVER",
    "ErrorLimit",
    "Execution",
    "Spec",
    "TableSpec",
    "Work",
    "make_execution",
    "make_spec",
    "parse_duration",
    "read_spec",
    "settle_server",
    "sort_options",
]


# The options of commands and functions for the keys of [work.to].
_TABLE = {"to": "url", "schema": "preset"} | {
    name: name for name in ("table", "mode", "vector", "metadata", "changed_only", "unknown_products")
}


# Keys that are left out of a run folder if they are unused.
_NEW_KEYS = (
    *("then", "detach", "price_in", "price_out", "deadline", "budget_usd", "endpoint", "key_variable"),
    *("read_ahead", "priority", "min_workers", "into", "root", "usd_per_hour", "acts"),
)
# Precisions of which the vectors differ by more than rounding: part of the work.
ROUNDED = ("int8", "fp8")
# A folder that the library `datasets` saved.
_SAVED = "datasets"
# How the server of a task is reached: settings that the task gets as parameters.
SERVER = ("endpoint", "key_variable")


class TableSpec(TableKeys):
    """A table that the result goes into. The database address does not affect the result.

    `metadata` are the products that reviews refer to, `products` their table; their own run loads them first.
    """

    url: Address = option(..., "postgresql://USER@HOST/DATABASE or embedded:PATH; not part of the plan's id.")
    table: str = option(..., TableKeys.model_fields["table"].description or "", min_length=1)
    language: str = option("english", "Language of the full-text column.", only="file")
    preset: str = option("", "A known schema, as --schema.", only="file")
    products: str = option("", "The table of products that reviews refer to; set by `load`.", only="file")


class Work(ReadingTexts, ReadingPictures, Telling, TakingPart, Keeping):
    """Everything the result depends on. It is hashed into the plan's id; a run never mixes two of them.

    `fields` are columns that the task reads besides the text; the planner adds those that the task names. A task
    without a source has a number of `items`, from 0 on; where all rows of a source are one item, it gets that item so
    many times. They can be raised later, so they are no part of the id. The shards of a `wave`, that many, begin once
    all shards of earlier waves are committed: they build on those results.
    """

    items: int | None = option(
        None,
        "In place of a source: the number of items of a task that needs none. It can be raised later.",
        only="file",
        ge=1,
    )
    group_by: str = option(
        "", "Rows that share a value of this column are one item; `*`: all rows are one.", only="file", metavar="COLUMN"
    )
    fields: Columns = option((), "Columns that the task reads besides the text.", only="file", metavar="COLUMNS")
    task: str = option("embed", "A task's name, or package.module:Class for your own.", only="file", metavar="TASK")
    params: dict[str, Any] = option({}, "Parameters of the task, below.", only="file")
    max_item_bytes: int = option(32 << 20, "A larger line or record is a bad row.", only="file", ge=1 << 10)
    edition: int = option(0, "The number of an edition after the first, set by refresh.", only="file", ge=0)
    wave: int = option(0, "This many shards begin at a time, once all before them are committed.", only="file", ge=0)
    to: TableSpec | None = option(None, "The table that the result goes into, below.", only="file")

    @property
    def counts_alone(self) -> bool:
        """Whether its items are numbers, and nothing is read."""
        return self.items is not None and not self.group_by

    @property
    def code(self) -> tuple[str, ...]:
        """The names of code in it: of the task and of functions that connect to a database; and of a server's key."""
        return (*code_among(self.task, self.source), *self.calls, *self.keys)

    @property
    def calls(self) -> tuple[str, ...]:
        """The names of code in the parameters of a task of ours: a function, or the class of another task."""
        if ":" in self.task:
            return ()
        task = self.params.get("task")
        return (*calls_among(self.params), *((task,) if isinstance(task, str) and ":" in task else ()))

    @property
    def keys(self) -> tuple[str, ...]:
        """The name of the key that is sent to a server, if the task has one."""
        url = self.params.get("endpoint")
        return (key_name(self.params.get("key_variable") or KEY_VARIABLE, url),) if url else ()

    @field_validator("params")
    @classmethod
    def _without_passwords(cls, value: dict[str, Any]) -> dict[str, Any]:
        url = value.get("endpoint")
        return {**value, "endpoint": clean_url(url)} if isinstance(url, str) and url else value


class Execution(
    Placing,
    Detaching,
    Following,
    Delivering,
    ErrorLimits,
    ShardLimits,
    Computing,
    Batching,
    Transacting,
    Indexing,
    Serving,
    Pricing,
):
    """How the work is done. It may change between resumes without changing the result.

    `places` are the current paths of the source's files, which may have moved since the run was planned; `to_url` is
    the current address of the target database, `root` the current folder of pictures. `engine` places the workers, with
    its own `engine_options`, which hold no secrets. A task whose workers work on one item together begins with
    `min_workers` of them. `endpoint` is the current address of the server that has the model, `key_variable` the
    environment variable with its key. `then` are
    steps after the last shard: `verify`, and `merge:FILE`. With `detach` the workers are left on their own. `price_in`
    and `price_out` are dollars per million tokens read and made, for work that is paid by them. `deadline` is a time,
    or a duration from the start of the first worker. The number of workers follows it and `budget_usd`, at
    `usd_per_hour` for a device, if the run `acts` on them: those that earlier versions started do not. `read_ahead` is
    the share of the usual amount that a worker holds in memory ahead of its device; an engine that sees workers run out
    of memory lowers it. The workers of a pool do runs of higher `priority` first. `index` is built after a load has
    written all rows; `rebuild_indexes` drops existing indexes first.
    """

    places: Places = ()
    to_url: str = ""
    root: str = ""
    lease_s: float = option(60.0, "Seconds that a worker's claim on a shard lasts without renewal.", only="file", gt=0)
    stuck_s: float = option(
        900.0, "Seconds without a finished batch after which a worker ends itself and is replaced.", only="file", gt=0
    )
    max_restarts: int = option(
        3, "Restarts in a row of a worker that gets nothing done; then the run has failed.", only="file", ge=0
    )
    read_ahead: float | None = option(
        None, "Share of the usual amount that a worker holds in memory ahead of its device.", only="file", gt=0, le=1
    )
    deadline: str | None = option(
        None,
        "When the run is to be done: 2026-12-31T18:00, or 2h from the first worker's start.",
        only="file",
    )
    budget_usd: Usd | None = option(None, "What it may cost, in dollars: the run stops before.", only="file", gt=0)
    usd_per_hour: float | None = option(
        None, "Dollars per device and hour, where the catalogue's price is not yours.", only="file", ge=0
    )
    acts: bool = Field(default=False)

    def to_settings(self) -> dict[str, Any]:
        """As plain values for the run folder. What version 0.1.0 does not know is left out if it is unused."""
        unused = {name for name in _NEW_KEYS if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=unused)

    @field_validator("deadline", mode="before")
    @classmethod
    def _time(cls, value: Any) -> str | None:
        """A time without a zone is one of this machine; it is stored with its zone."""
        return None if value is None else parse_deadline(value)

    def deadline_at(self, began: float | None) -> float | None:
        """The deadline in seconds since 1970, of a run that began at a time; None if it has none, or has not begun."""
        if self.deadline is None:
            return None
        try:
            return datetime.fromisoformat(self.deadline).timestamp()
        except ValueError:
            return None if began is None else began + parse_duration(self.deadline)


class Spec(Options):
    """`[work]` and `[execution]` of one run."""

    work: Work
    execution: Execution = Execution()


def sort_options(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sort the options of commands and functions into `[work]` and `[execution]`.

    Options that are None are left out. Options that belong to neither the source, a table nor the execution are
    parameters of the task.

    >>> sort_options({"source": "a.jsonl", "text": "body", "dims": 256, "workers": 2, "engine": None})
    ({'source': 'a.jsonl', 'text': 'body', 'params': {'dims': 256}}, {'workers': 2})
    """
    given = {name: value for name, value in values.items() if value is not None and value != []}
    work = {name: given.pop(name) for name in Work.model_fields if name in given and name not in ("params", "to")}
    execution = {name: given.pop(name) for name in Execution.model_fields if name in given}
    to = {_TABLE[name]: given.pop(name) for name in _TABLE if name in given}
    params = {**given.pop("params", {}), **given}
    return {**work, "params": params, **({"to": to} if to else {})}, execution


def make_spec(work: dict[str, Any], execution: dict[str, Any] | None = None) -> Spec:
    """Build a spec from plain values; None means the default. The task may be a function: `shardmill.task`."""
    if callable(work.get("task")):
        work = {**work, "task": "apply", "params": {**describe_call(work["task"]), **work.get("params", {})}}
    if (settle := find_verb(str(work.get("task") or "embed")).part("settle")) is not None:
        work, execution = settle(work, execution or {})
    work, execution = settle_precision(*settle_server(work, execution or {}))
    try:
        made = Work(**{k: v for k, v in work.items() if v is not None})
    except ValidationError as error:
        raise _explain(error) from error
    if made.format and made.format not in (known := [*(k.name for k in declared("sources") if not k.schemes), _SAVED]):
        raise SpecError(
            f"format: {made.format!r} is not a supported format.",
            hint=f"{nearest(made.format, known)} Packages bring others: shardmill plugins",
        )
    given = [name for name in ("source", "text") if getattr(made, name)]
    if made.counts_alone and given:
        raise SpecError(f"Both items and a {given[0]} are given.", hint="Give items to a task that needs no source.")
    if not made.counts_alone and len(given) < 2:
        raise _missing("text" if given == ["source"] else "source")
    _check_part(made)
    check_telling(made)
    _check_pictures(made)
    return Spec(work=made, execution=make_execution(execution))


def _check_part(work: Work) -> None:
    """Refuse to take a part of items that are no rows of the source."""
    given = next((name for name in ("where", "take", "limit") if getattr(work, name) not in ("", None)), None)
    if given and work.counts_alone:
        raise SpecError(f"{name_option(given)} has no meaning for a task without a source.", hint="Give fewer items.")
    if given and work.group_by:
        raise SpecError(
            f"{name_option(given)} cannot be used with group_by.",
            hint="Run a task over a part of the rows first, then group the rows of that run.",
        )


def check_telling(work: Work) -> None:
    """Refuse what tells of changes where it cannot: no row is known again by its id, or all columns are needed."""
    if work.follow and work.query:
        raise SpecError(f"{name_option('follow')} is for files.", hint=f"Of tables: {name_option('changed_since')}")
    if not work.changed_since:
        return
    flag = name_option("changed_since")
    if not (work.query and work.id):
        missing = "query" if not work.query else "id"
        raise SpecError(
            f"{flag} has no meaning without {name_option(missing)}.",
            hint="It is for tables, whose rows are known again by their id. Files are compared by themselves.",
        )
    given = next((n for n in ("where", "take", "limit", "group_by", "to") if getattr(work, n) not in ("", None)), "")
    if given:
        hint = "Put the condition into the query." if given in ("where", "take", "limit") else "Leave out one of them."
        raise SpecError(f"{flag} cannot be used with {name_option(given)}.", hint=hint)


def _check_pictures(work: Work) -> None:
    """Refuse pictures of groups, and a folder below which nothing is named."""
    if work.picture and work.group_by:
        raise SpecError(f"{name_option('picture')} cannot be used with group_by.", hint="A group is made of texts.")
    if work.root and not work.picture:
        raise SpecError("No column of pictures is given.", hint="Name it: --picture COLUMN")
    if "://" in work.root:
        raise SpecError(f"--root {work.root}: not a folder.", hint="Name a folder that every worker sees.")


def settle_server(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both tables with the address of the task's server, from whichever has it; such a task needs no GPU.

    >>> settle_server({"task": "generate"}, {"endpoint": "http://gpu1:8000/v1"})[0]["params"]
    {'endpoint': 'http://gpu1:8000/v1'}
    """
    params = work.get("params") or {}
    if not isinstance(params, dict):
        return work, execution
    reached = {name: value for name in SERVER if (value := execution.get(name) or params.get(name))}
    if "endpoint" not in reached:
        return work, execution
    return {**work, "params": {**params, **reached}}, {"device": "cpu", **execution, **reached}


def settle_precision(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both tables with a precision where it belongs: one that makes another result is a parameter of the task.

    >>> settle_precision({"task": "embed"}, {"precision": "int8", "workers": 2})
    ({'task': 'embed', 'params': {'precision': 'int8'}}, {'workers': 2})
    """
    if execution.get("precision") not in ROUNDED or not isinstance(work.get("params") or {}, dict):
        return work, execution
    others = {name: value for name, value in execution.items() if name != "precision"}
    return {**work, "params": {**(work.get("params") or {}), "precision": execution["precision"]}}, others


def make_execution(values: dict[str, Any]) -> Execution:
    """Build the `[execution]` of a spec from plain values; None means the default."""
    try:
        return Execution(**{k: v for k, v in values.items() if v is not None})
    except ValidationError as error:
        raise _explain(error) from error


def read_spec(path: Path, known: Sequence[str] = ("work", "execution")) -> dict[str, dict[str, Any]]:
    """The tables of a TOML spec, to be completed by options."""
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        raise SpecError(f"{path}: no such file.") from error
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}.") from error
    except ValueError as error:
        raise SpecError(f"{path}: {error}.") from error
    return parse_tables(text, str(path), known)


def parse_tables(text: str, path: str, known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables of a TOML text that was read from a path or a URL."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: {error}.") from error
    unknown = sorted(set(tables) - {*known})
    if unknown:
        named = " and ".join(f"[{name}]" for name in known)
        raise SpecError(
            f"{path}: unknown table [{unknown[0]}].",
            hint=f"It has {named}. {nearest(unknown[0], [*known])}".rstrip(),
        )
    for name in known:
        if not isinstance(tables.get(name, {}), dict):
            raise SpecError(f"{path}: {name} is not a table.", hint=f"Write [{name}] above its keys.")
    return {name: dict(tables.get(name, {})) for name in known}


def _missing(name: str) -> SpecError:
    hint = "Set it on the command line or in [work] of the spec."
    if name == "text":
        hint = "Name the field that holds it: --text FIELD (of documents: --text text), or text in [work] of the spec."
    return SpecError(f"No {name} was given.", hint=hint)


def _explain(error: ValidationError) -> SpecError:
    table = error.title.lower()
    first = next((each for each in error.errors() if each["type"] == "extra_forbidden"), error.errors()[0])
    if first["type"] == "missing":
        return _missing(".".join(map(str, first["loc"])))
    if first["type"] == "extra_forbidden":
        *place, name = map(str, first["loc"])
        table = ".".join([table, *place])
        models: dict[str, type[Options]] = {"work": Work, "execution": Execution, "work.to": TableSpec}
        hint = nearest(name, [*models[table].model_fields])
        if table == "work" and "mean" not in hint:
            hint = f"Parameters of the task, such as model, stand below [work.params]. {hint}"
        return SpecError(f"[{table}] has no key {name!r}.", hint=hint)
    made = explain(error, lambda name: name, [])
    if first["loc"] == ("workers",):
        made.hint = "Give --workers 1 or more. To end the workers of a run: shardmill stop RUN"
    return made
