"""Options of how work is done, declared once. `Execution` of a spec is made of them, too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from shardmill.core.passwords import clean_url, withhold
from shardmill.plan.limits import ErrorLimit, parse_deadline
from shardmill.plan.options import LIMITS, MODEL, PLACE, RESULT, TABLE, EngineOptions, ExecutionOptions, option
from shardmill.plan.values import NAMES, Bytes, Places, Usd


class ChoosingEngine(ExecutionOptions):
    """What places the workers."""

    engine: str = option(
        "local", "local, ssh, slurm, ray, kubernetes, argo or pool.", group=PLACE, metavar="ENGINE", common=True
    )
    engine_options: dict[str, Any] = option(
        {}, "Options of the engine, by name.", group=PLACE, only="python", accepts="Mapping[str, Any]"
    )

    @field_validator("engine_options")
    @classmethod
    def _findable(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Make the path of the hosts file absolute: a run may be resumed from any folder."""
        return {**value, "hosts": str(Path(value["hosts"]).expanduser().absolute())} if value.get("hosts") else value


class Staffing(ExecutionOptions):
    """How many workers there are."""

    workers: int | None = option(
        None,
        "Number of workers; MIN:MAX if they train together, or with --deadline.",
        group=PLACE,
        metavar="N",
        common=True,
        shown="as many as the GPUs can use; one on a CPU",
        accepts="int | str",
        ge=1,
    )
    min_workers: int | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _range(cls, values: Any) -> Any:
        """`workers = "2:8"` is the least and the most workers: on one item together, or for a deadline."""
        if not isinstance(values, dict) or ":" not in str(values.get("workers")):
            return values
        least, _, most = str(values["workers"]).partition(":")
        return {**values, "min_workers": least, "workers": most}

    @model_validator(mode="after")
    def _in_order(self) -> Staffing:
        if (self.min_workers or 1) > (self.workers or sys.maxsize):
            raise ValueError(f"at least {self.min_workers} workers are more than the {self.workers} at most")
        return self


class OnDevices(ExecutionOptions):
    """What the workers compute on."""

    device: str = option(
        "auto",
        "auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores).",
        group=PLACE,
        metavar="DEVICE",
        common=True,
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        from shardmill.core.devices import parse_device

        parse_device(value)
        return value


class Prioritizing(ExecutionOptions):
    """Which run of a pool comes first."""

    priority: int = option(0, "With --engine pool: higher runs first.", group=PLACE, metavar="N")


class Placing(ChoosingEngine, Staffing, OnDevices, Prioritizing):
    """Where the workers run."""


class PlacingOnCpu(Placing):
    """Where the workers run, of a verb that uses no GPU unless one is named."""

    device: str = option(
        "cpu",
        "cpu, cuda, cuda:0, cuda:0,2, auto, or all (all GPUs plus one CPU worker on the spare cores).",
        group=PLACE,
        metavar="DEVICE",
        common=True,
    )


class SettingOptions(EngineOptions):
    """Options of an engine that have no flag of their own."""

    set_: tuple[str, ...] = option(
        (),
        "Another option of the engine; repeatable.",
        group=PLACE,
        metavar="KEY=VALUE",
        flags=("--set",),
        only="command",
        repeats=True,
    )


class NamedEngineOptions(SettingOptions):
    """Options of engines that have a flag of their own."""

    hosts: str = option("", "The hosts file, cluster.toml.", group=PLACE, metavar="FILE", engine="ssh")
    partition: str = option("", "The partition to queue in.", group=PLACE, metavar="NAME", engine="slurm")
    address: str = option("", "The cluster; auto finds the current one.", group=PLACE, metavar="ADDRESS", engine="ray")
    image: str = option(
        "", "The image of the pods, with shardmill in it.", group=PLACE, metavar="IMAGE", engine="kubernetes"
    )


class Detaching(ExecutionOptions):
    """Leaving the workers on their own."""

    detach: bool = option(False, "Return once the workers are placed; they finish the run on their own.", group=PLACE)


class Following(ExecutionOptions):
    """What follows the last shard."""

    then: Places = option(
        (),
        "After the last shard: verify, or merge:FILE.parquet; repeatable.",
        group=RESULT,
        metavar="STEP",
        accepts=NAMES,
        repeats=True,
    )

    @field_validator("then")
    @classmethod
    def _steps(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Check the steps, and make the path of a file absolute: a worker in any folder may write it."""
        return tuple(_step(each) for each in value)


# What `merge` writes, by the end of a name. A step may be done twice, and a dataset of Lance is not replaced.
WRITTEN = (
    *(".parquet", ".npy", ".arrow", ".feather", ".faiss"),
    *(suffix + packed for suffix in (".jsonl", ".csv", ".tsv") for packed in ("", ".gz", ".zst")),
)


def _step(text: str) -> str:
    kind, _, file = text.partition(":")
    if text != "verify" and not (kind == "merge" and file.endswith(WRITTEN)):
        raise ValueError(f"{text!r} is neither verify nor merge:FILE with a .parquet, .npy, .jsonl, … file")
    return text if "://" in file or not file else f"merge:{Path(file).expanduser().absolute()}"


class Delivering(ExecutionOptions):
    """Stores that the rows of the finished run are delivered to, too. They do not affect the result."""

    into: Places = option(
        (),
        "Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.",
        group=RESULT,
        metavar="ADDRESS",
        accepts=NAMES,
        repeats=True,
    )

    @field_validator("into", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        """Runs of earlier versions have one address, or an empty text."""
        return tuple(filter(None, [value])) if isinstance(value, str) else value

    @field_validator("into")
    @classmethod
    def _found_from_anywhere(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(absolute_address, value))


# Sinks whose addresses are names in a catalogue, not paths.
_BY_NAME = ("iceberg",)


def absolute_address(address: str) -> str:
    """Make a path in an address absolute: a worker in any folder may write there. Passwords are kept apart."""
    scheme, colon, place = withhold(address).partition(":")
    if not colon or place.startswith("/") or "://" in address or scheme in _BY_NAME:
        return withhold(address)
    return f"{scheme}:{Path(place).expanduser().absolute()}"


class ErrorLimits(ExecutionOptions):
    """How many rows may fail."""

    max_errors: str = option("1%", "Rows that may fail: 1% or a number.", group=LIMITS, metavar="LIMIT", common=True)

    @field_validator("max_errors", mode="before")
    @classmethod
    def _limit(cls, value: Any) -> str:
        ErrorLimit.parse(str(value))
        return str(value)


class Limiting(ExecutionOptions):
    """When a run is to end, and what it may cost: the number of its workers follows."""

    deadline: str | None = option(
        None,
        "When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers follows.",
        group=LIMITS,
        metavar="TIME",
    )
    budget: Usd | None = option(
        None,
        "What it may cost: 40USD. Before that it stops in good order, and can be resumed.",
        group=LIMITS,
        metavar="MONEY",
        key="budget_usd",
        accepts="float | str",
        gt=0,
    )
    price: float | None = option(
        None,
        "Dollars per device and hour, for --budget.",
        group=LIMITS,
        metavar="USD",
        key="usd_per_hour",
        shown="the catalogue's",
        ge=0,
    )

    @field_validator("deadline")
    @classmethod
    def _when(cls, value: str | None) -> str | None:
        return None if value is None else parse_deadline(value)


class ShardLimits(ExecutionOptions):
    """How the source is cut."""

    shard_bytes: Bytes | None = option(
        None,
        "Bytes of source per shard: 64MB.",
        group=LIMITS,
        metavar="SIZE",
        shown="about 90 s of work",
        accepts="int | str",
        ge=1,
    )


class Computing(ExecutionOptions):
    """How exactly a worker computes."""

    precision: Literal["auto", "float32"] = option(
        "auto", "auto, or float32 for exact arithmetic at less speed.", group=LIMITS, metavar="PRECISION"
    )


class ComputingVectors(Computing):
    """The same, and a precision that gives another result: `settle_precision` makes it a part of the work."""

    precision: Literal["auto", "float32", "int8", "fp8"] = option(  # type: ignore[assignment]
        "auto",
        "auto, float32 (exact, slower), int8 (CPUs with VNNI, AMX or i8mm) or fp8 (GPUs from Hopper on). The last two "
        "give other vectors, so another run.",
        group=LIMITS,
        metavar="PRECISION",
    )


class Batching(ExecutionOptions):
    """How much a worker computes at a time."""

    batch_tokens: int | None = option(
        None, "Tokens per batch, including padding.", group=LIMITS, metavar="N", shown="by memory", ge=1
    )


class Transacting(ExecutionOptions):
    """How rows go into a table."""

    batch_rows: int = option(512, "Items per transaction.", group=LIMITS, metavar="N", ge=1)


class Indexing(ExecutionOptions):
    """What is built after a load."""

    index: Literal["hnsw", "ivfflat", "none"] = option(
        "hnsw", "Built after the load: hnsw, ivfflat or none.", group=TABLE, metavar="INDEX"
    )
    rebuild_indexes: bool = option(False, "Drop existing indexes and build them after the load.", group=TABLE)


class Serving(ExecutionOptions):
    """The server that has the model. Where it is does not affect the result."""

    endpoint: str = option(
        "", "An OpenAI-compatible server that has the model: http://host:8000/v1.", group=MODEL, metavar="URL"
    )
    key_variable: str = option(
        "",
        "The environment variable with the server's key.",
        group=MODEL,
        metavar="NAME",
        shown="OPENAI_API_KEY",
    )

    @field_validator("endpoint")
    @classmethod
    def _without_password(cls, value: str) -> str:
        return clean_url(value) if value else value


class Pricing(ExecutionOptions):
    """What a server takes for tokens."""

    price_in: float | None = option(
        None, "Price of a million tokens read, for `cost`.", group=LIMITS, metavar="USD", ge=0
    )
    price_out: float | None = option(
        None, "Price of a million tokens made, for `cost`.", group=LIMITS, metavar="USD", ge=0
    )
