"""Options of what is read and kept, and of a call, declared once. `Work` of a spec is made of them, too."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from shardmill.core.errors import UsageError
from shardmill.plan.execution import (
    Batching,
    Computing,
    Delivering,
    Detaching,
    ErrorLimits,
    Following,
    Limiting,
    NamedEngineOptions,
    Placing,
    ShardLimits,
)
from shardmill.plan.options import (
    ANSWER,
    MODEL,
    OTHER,
    RESULT,
    SOURCE,
    TABLE,
    CallOptions,
    Params,
    TableOptions,
    WorkOptions,
    option,
)
from shardmill.plan.values import NAMES, PLACES, SOURCES, Address, Condition, Names, Place, Places, Share


class Reading(WorkOptions):
    """What is read: all of a source, or what a query selects."""

    source: Places = option(
        (),
        "Files, folders, globs, URLs, - (a pipe), or run:RUN; with --query, a database.",
        metavar="SOURCE",
        argument=True,
        common=True,
        accepts=SOURCES,
        needed=True,
        min_length=1,
    )
    query: str = option(
        "", "The SELECT to read from the database, cut by its first --id column.", group=SOURCE, metavar="SELECT"
    )
    format: str | None = option(
        None,
        "jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets.",
        group=SOURCE,
        metavar="FORMAT",
        shown="by file name",
    )
    config: str = option(
        "",
        "Of a dataset with several configs (subsets), the one to read; all reads every file.",
        group=SOURCE,
        metavar="CONFIG",
    )
    split: str = option(
        "",
        "Of a folder or a dataset with several splits, the one to read; all reads every file.",
        group=SOURCE,
        metavar="SPLIT",
    )


class ReadingTexts(Reading):
    """What is read, and which text of an item the task gets."""

    text: str = option(
        "",
        'The text: a field, several ("title,body") or a template ("{title}: {body}").',
        group=SOURCE,
        metavar="FIELD",
        common=True,
        min_length=1,
    )

    @field_validator("text")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("names no field")
        return value


class ReadingPictures(WorkOptions):
    """What is read where an item is bytes: the column that has them, or the paths of their files below a folder."""

    picture: str = option(
        "",
        "In place of --text: the column of pictures, as bytes, base64, {bytes, path}, or paths below --root.",
        group=SOURCE,
        metavar="COLUMN",
        common=True,
    )
    root: Place = option(
        "",
        "The folder that the paths of --picture are below; no file outside it is read.",
        group=SOURCE,
        metavar="FOLDER",
    )


class TakingPart(WorkOptions):
    """Which items of the source are taken; the others keep their numbers and count as dropped."""

    where: Condition = option(
        "",
        'Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".',
        group=SOURCE,
        metavar="CONDITION",
    )
    take: Share | None = option(
        None,
        "Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.",
        group=SOURCE,
        metavar="SHARE",
        accepts="float | str",
    )
    limit: int | None = option(
        None, "Take the first N items of those that --where and --take leave.", group=SOURCE, metavar="N", ge=1
    )

    @property
    def takes_part(self) -> bool:
        """Whether items between others may be left out."""
        return bool(self.where) or self.take is not None


class Keeping(WorkOptions):
    """Which columns of the source go into the result."""

    id: Names = option(
        (),
        "The field or fields that identify an item; auto: its file and line; hash: its text.",
        group=RESULT,
        metavar="FIELDS",
        common=True,
        accepts=NAMES,
    )
    keep: Names = option(
        (),
        "Columns to carry into the result, also file, url and line; price:double sets a type.",
        group=RESULT,
        metavar="COLUMNS",
        common=True,
        accepts=NAMES,
    )


class AdapterParams(Params):
    """What is merged into the model's weights."""

    adapter: str | None = option(
        None,
        "A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field, as in "
        "adapters/{tenant}, that of each item.",
        group=MODEL,
        metavar="FOLDER",
        min_length=1,
    )


class TranslationParams(Params):
    """The languages of a model that translates."""

    source_language: str = option(
        "",
        "Of a model that translates (NLLB, M2M100, mBART-50): the code of the language of the texts.",
        group=ANSWER,
        metavar="CODE",
        shown="the tokenizer's own",
    )
    target_language: str = option(
        "",
        "Of a model that translates: the code of the language of the answers, such as fra_Latn, fr or fr_XX.",
        group=ANSWER,
        metavar="CODE",
        shown="the model's own, if it has one",
    )


class TableRows(TableOptions):
    """The table, and what happens to rows that it has."""

    table: str = option(
        "", "The table: name or schema.name. Created if missing.", group=TABLE, metavar="TABLE", common=True
    )
    mode: Literal["update", "skip", "fail"] = option(
        "update", "If the key already exists: update, skip or fail.", group=TABLE, metavar="MODE"
    )
    changed_only: bool = option(False, "Make only rows that are new, or made from something new.", group=TABLE)


class Storing(TableRows):
    """The table that the result goes into, and where it is."""

    to: Address = option(
        "", "postgresql://USER@HOST/DATABASE or embedded:PATH.", group=TABLE, metavar="URL", key="url", common=True
    )


class TableColumns(TableOptions):
    """The columns of the table, and the products that its rows refer to."""

    vector: Literal["vector", "halfvec"] = option(
        "vector", "Type of the vectors: vector or halfvec.", group=TABLE, metavar="TYPE"
    )
    metadata: Places = option(
        (),
        "With --schema: files of products, which are loaded first; repeatable.",
        group=TABLE,
        metavar="FILE",
        accepts=PLACES,
        repeats=True,
    )
    unknown_products: Literal["quarantine", "null"] = option(
        "quarantine",
        "What happens to reviews of products that --metadata lacks: quarantine, or null.",
        group=TABLE,
        metavar="HOW",
    )


class TableLayout(TableColumns):
    """The same, with a known schema."""

    schema_: str = option(
        "",
        "A known schema: amazon-reviews-2023 or amazon-reviews-2014.",
        group=TABLE,
        metavar="SCHEMA",
        key="preset",
        common=True,
    )


class TableKeys(TableRows, TableColumns):
    """Keys of `[work.to]` that are options, too."""


class Printing(CallOptions):
    """What a command prints."""

    as_json: bool = option(False, "Print JSON to stdout.", flags=("--json",), only="command")


class Trusting(CallOptions):
    """Permission to run what a folder or table names."""

    allow_code: bool = option(False, "Import code that the run or table names, and run its commands.")


class OfRun(CallOptions):
    """A run, by its folder."""

    run: Place = option(..., "The run folder: a path or a URL.", metavar="RUN", argument=True)


class Resuming(Printing):
    """What a call does with a run that exists."""

    resume: bool = option(False, "Only resume an existing run.", group=OTHER, only="command")
    fresh: bool = option(False, "Delete an existing run and start over.", group=OTHER, common=True)
    quiet: bool | None = option(
        None, "Whether to show no progress.", group=OTHER, only="python", shown="True, except in a notebook"
    )


class Telling(WorkOptions):
    """What tells which items have changed. The result does not depend on it."""

    changed_since: str = option(
        "",
        "Of a query: a column that gets another value with each change of a row (updated_at); a refresh then reads the "
        "rest of changed rows alone.",
        group=SOURCE,
        metavar="COLUMN",
    )
    follow: bool = option(
        False,
        "Of local files of lines that only grow: read whole lines, and at a refresh those that were added.",
        group=SOURCE,
    )


class AskingForRefresh(CallOptions):
    """Whether a run that exists is refreshed."""

    refresh: bool = option(False, "Refresh an existing run: compute only what is new or changed.", group=OTHER)


class Renewing(Telling, AskingForRefresh):
    """What a call does with a run whose source has changed."""


def refuse_several(**given: bool) -> None:
    """Each does something else with a run that exists."""
    flags = [f"--{name}" for name, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise UsageError(f"Both {flags[0]} and {flags[1]} are given.", hint="Give one of them.")


class IntoFolder(CallOptions):
    """Where the run folder is."""

    out: Place = option(
        "",
        "The run folder, created if missing: a path or a URL.",
        group=RESULT,
        metavar="RUN",
        common=True,
        accepts="Place",
    )


class FromSpec(CallOptions):
    """A file with the tables of a spec."""

    spec: str = option("", "A TOML file with [work] and [execution].", group=OTHER, metavar="FILE", only="command")


class Starting(IntoFolder, Resuming):
    """What a call does with a run folder."""


class Calling(Starting, FromSpec):
    """The same, with a spec."""


class RunOptions(
    Placing,
    NamedEngineOptions,
    Detaching,
    Following,
    Delivering,
    ErrorLimits,
    Limiting,
    Computing,
    Batching,
    ShardLimits,
    Calling,
):
    """Options of every verb that runs a task over the items of a source."""


class TaskOptions(ReadingTexts, TakingPart, Keeping, RunOptions, Renewing):
    """Options of a verb that has none of its own."""


class AllowingCode(CallOptions):
    """Permission to run code that comes with a model."""

    allow_code: bool = option(False, "Run the code that comes with the model, if it has some.", group=MODEL)
