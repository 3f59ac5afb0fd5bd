"""The validated description of a run. TOML, keyword arguments and CLI options all end up here."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from shardmill.calls import describe_call, settle_call
from shardmill.errors import SpecError, nearest
from shardmill.passwords import clean_url, withhold
from shardmill.permission import KEY_VARIABLE, calls_among, code_among, key_name
from shardmill.spec.limits import ErrorLimit, parse_duration
from shardmill.template import NO_TEXT

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


def _as_tuple(value: Any) -> Any:
    """One name, comma-separated names, or a list of either."""
    if value is None:
        return ()
    if isinstance(value, str | Path):
        value = [value]
    return tuple(part.strip() for v in value for part in str(v).split(",") if part.strip())


def _as_columns(value: Any) -> Any:
    """Comma-separated names, or a list of names as they are: a column of a source may have a comma in its name."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else _as_tuple(value)


def _as_places(value: Any) -> Any:
    """Places without passwords: a spec is stored and shown."""
    return tuple(withhold(str(v)) for v in ([value] if isinstance(value, str | Path) else value))


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Columns = Annotated[tuple[str, ...], BeforeValidator(_as_columns)]
Places = Annotated[tuple[str, ...], BeforeValidator(_as_places)]


# The options of commands and functions for the keys of [work.to].
_TABLE = {"to": "url", "schema": "preset"} | {
    name: name for name in ("table", "mode", "vector", "metadata", "changed_only", "unknown_products")
}


# Keys that are left out of a run folder if they are unused.
_NEW_KEYS = (
    *("then", "detach", "price_in", "price_out", "deadline", "budget_usd", "endpoint", "key_variable"),
    *("read_ahead", "priority", "min_workers"),
)
# How the server of a task is reached: settings that the task gets as parameters.
SERVER = ("endpoint", "key_variable")


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class TableSpec(_Model):
    """A table that the result goes into. The database address does not affect the result.

    `metadata` are the products that reviews refer to; their own run loads them first.
    """

    url: Annotated[str, BeforeValidator(lambda value: withhold(str(value)))]
    table: str = Field(min_length=1)
    mode: Literal["update", "skip", "fail"] = "update"
    vector: Literal["vector", "halfvec"] = "vector"
    language: str = "english"
    preset: str = ""
    metadata: Places = ()
    # The table that reviews refer to, and what to do with a review whose product is not in it.
    products: str = ""
    unknown_products: Literal["quarantine", "null"] = "quarantine"
    changed_only: bool = False


class Work(_Model):
    """Everything the result depends on. It is hashed into the plan's id; a run never mixes two of them.

    `fields` are columns that the task reads besides the text; the planner adds those that the task names. A task
    without a source has a number of `items`, from 0 on; where all rows of a source are one item, it gets that item so
    many times. They can be raised later, so they are no part of the id. The shards of a `wave`, that many, begin once
    all shards of earlier waves are committed: they build on those results.
    """

    source: Places = Field(default=(), min_length=1)
    query: str = ""
    format: Literal["jsonl", "text", "csv", "tsv", "parquet", "arrow", "json", "pickle", "datasets"] | None = None
    text: str = Field(default="", min_length=1)
    items: int | None = Field(default=None, ge=1)
    id: Names = ()
    keep: Names = ()
    group_by: str = ""
    fields: Columns = ()
    task: str = "embed"
    params: dict[str, Any] = {}
    max_item_bytes: int = Field(default=32 << 20, ge=1 << 10)
    wave: int = Field(default=0, ge=0)
    to: TableSpec | None = None

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

    @field_validator("text")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("names no field")
        return value


class Execution(_Model):
    """How the work is done. It may change between resumes without changing the result.

    `places` are the current paths of the source's files, which may have moved since the run was planned; `to_url` is
    the current address of the target database. `engine` places the workers, with its own `engine_options`, which hold
    no secrets. A task whose workers work on one item together begins with `min_workers` of them. `endpoint` is the
    current address of the server that has the model, `key_variable` the environment variable with its key. `then` are
    steps after the last shard: `verify`, and `merge:FILE`. With `detach` the workers are left on their own. `price_in`
    and `price_out` are dollars per million tokens read and made, for work that is paid by them. `deadline` is a time,
    or a duration from the start of the first worker; it and `budget_usd` stop nothing: `status` compares the expected
    end and cost with them. `read_ahead` is the share of the usual amount that a worker holds in memory ahead of its
    device; an engine that sees workers run out of memory lowers it. The workers of a pool do runs of higher `priority`
    first. `index` is built after a load has written all rows; `rebuild_indexes` drops existing indexes first.
    """

    engine: str = "local"
    engine_options: dict[str, Any] = Field(default_factory=dict)
    places: tuple[str, ...] = ()
    to_url: str = ""
    endpoint: str = ""
    key_variable: str = ""
    workers: int | None = Field(default=None, ge=1)
    min_workers: int | None = Field(default=None, ge=1)
    device: Literal["auto", "cpu", "cuda", "all"] = "auto"
    precision: Literal["auto", "float32"] = "auto"
    batch_tokens: int | None = Field(default=None, ge=1)
    batch_rows: int = Field(default=512, ge=1)
    max_errors: str = "1%"
    shard_bytes: int | None = Field(default=None, ge=1)
    lease_s: float = Field(default=60.0, gt=0)
    stuck_s: float = Field(default=900.0, gt=0)
    max_restarts: int = Field(default=3, ge=0)
    read_ahead: float | None = Field(default=None, gt=0, le=1)
    price_in: float | None = Field(default=None, ge=0)
    price_out: float | None = Field(default=None, ge=0)
    deadline: str | None = None
    budget_usd: float | None = Field(default=None, gt=0)
    then: Places = ()
    detach: bool = False
    priority: int = 0
    index: Literal["hnsw", "ivfflat", "none"] = "hnsw"
    rebuild_indexes: bool = False

    def to_settings(self) -> dict[str, Any]:
        """As plain values for the run folder. What version 0.1.0 does not know is left out if it is unused."""
        unused = {name for name in _NEW_KEYS if not getattr(self, name)}
        return self.model_dump(mode="json", exclude=unused)

    @model_validator(mode="before")
    @classmethod
    def _range(cls, values: Any) -> Any:
        """`workers = "2:8"` is the least and the most workers that work on one item together."""
        if not isinstance(values, dict) or ":" not in str(values.get("workers")):
            return values
        least, _, most = str(values["workers"]).partition(":")
        return {**values, "min_workers": least, "workers": most}

    @model_validator(mode="after")
    def _in_order(self) -> Execution:
        if (self.min_workers or 1) > (self.workers or sys.maxsize):
            raise ValueError(f"at least {self.min_workers} workers are more than the {self.workers} at most")
        return self

    @field_validator("engine_options")
    @classmethod
    def _findable(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Make the path of the hosts file absolute: a run may be resumed from any folder."""
        return {**value, "hosts": str(Path(value["hosts"]).expanduser().absolute())} if value.get("hosts") else value

    @field_validator("endpoint")
    @classmethod
    def _without_password(cls, value: str) -> str:
        return clean_url(value) if value else value

    @field_validator("then")
    @classmethod
    def _steps(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Check the steps, and make the path of a file absolute: a worker in any folder may write it."""
        return tuple(_step(each) for each in value)

    @field_validator("deadline", mode="before")
    @classmethod
    def _time(cls, value: Any) -> str | None:
        """A time without a zone is one of this machine; it is stored with its zone."""
        if value is None:
            return None
        try:
            when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            try:
                parse_duration(str(value))
            except ValueError as error:
                raise ValueError(f"{error}, and no time like 2026-12-31T18:00") from None
            return str(value)
        return when.astimezone().isoformat()

    def deadline_at(self, began: float | None) -> float | None:
        """The deadline in seconds since 1970, of a run that began at a time; None if it has none, or has not begun."""
        if self.deadline is None:
            return None
        try:
            return datetime.fromisoformat(self.deadline).timestamp()
        except ValueError:
            return None if began is None else began + parse_duration(self.deadline)

    @field_validator("max_errors", mode="before")
    @classmethod
    def _limit(cls, value: Any) -> str:
        ErrorLimit.parse(str(value))
        return str(value)


def _step(text: str) -> str:
    kind, _, file = text.partition(":")
    if text != "verify" and not (kind == "merge" and file.endswith((".parquet", ".npy"))):
        raise ValueError(f"{text!r} is neither verify nor merge:FILE with a .parquet or .npy file")
    return text if "://" in file or not file else f"merge:{Path(file).expanduser().absolute()}"


class Spec(_Model):
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
    if work.get("task") == "apply":
        work = {**work, "params": settle_call(work.get("params") or {}), "text": work.get("text") or NO_TEXT}
        execution = {"device": "cpu", **(execution or {})}
    work, execution = settle_server(work, execution or {})
    try:
        made = Work(**{k: v for k, v in work.items() if v is not None})
    except ValidationError as error:
        raise _explain(error) from error
    given = [name for name in ("source", "text") if getattr(made, name)]
    if made.counts_alone and given:
        raise SpecError(f"Both items and a {given[0]} are given.", hint="Give items to a task that needs no source.")
    if not made.counts_alone and len(given) < 2:
        raise _missing("text" if given == ["source"] else "source")
    return Spec(work=made, execution=make_execution(execution))


def settle_server(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both tables with the address of the task's server, from whichever has it; such a task needs no GPU.

    >>> settle_server({"task": "generate"}, {"endpoint": "http://gpu1:8000/v1"})[0]["params"]
    {'endpoint': 'http://gpu1:8000/v1'}
    """
    params = work.get("params") or {}
    reached = {name: value for name in SERVER if (value := execution.get(name) or params.get(name))}
    if "endpoint" not in reached:
        return work, execution
    return {**work, "params": {**params, **reached}}, {"device": "cpu", **execution, **reached}


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
            raise SpecError(f"{path}: {name} is no table.", hint=f"Write [{name}] above its keys.")
    return {name: dict(tables.get(name, {})) for name in known}


def _missing(name: str) -> SpecError:
    hint = "Set it on the command line or in [work] of the spec."
    if name == "text":
        hint = "Name the field that holds it: --text FIELD, or text in [work] of the spec."
    return SpecError(f"No {name} was given.", hint=hint)


def _explain(error: ValidationError) -> SpecError:
    found = error.errors()
    # A misspelt key is also a missing one; its name says more.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    where = ".".join(str(p) for p in first["loc"])
    if first["type"] == "missing":
        return _missing(where)
    if first["type"] == "extra_forbidden":
        *place, name = map(str, first["loc"])
        table = ".".join([error.title.lower(), *place])
        models: dict[str, type[_Model]] = {"work": Work, "execution": Execution, "work.to": TableSpec}
        known = models[table].model_fields
        return SpecError(f"[{table}] has no key {name!r}.", hint=nearest(name, [*known]))
    hint = "Give --workers 1 or more. To end the workers of a run: shardmill stop RUN" if where == "workers" else ""
    return SpecError(f"{where}: {first['msg'].removeprefix('Value error, ')} (it is {first['input']!r}).", hint=hint)
