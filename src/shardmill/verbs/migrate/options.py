"""The options of `migrate`."""

from __future__ import annotations

from typing import Literal

from shardmill.plan.execution import (
    Computing,
    ErrorLimits,
    Following,
    NamedEngineOptions,
    Placing,
    ShardLimits,
)
from shardmill.plan.options import HELD_OUT, MODEL, OTHER, RESULT, CallOptions, option
from shardmill.plan.shared import AdapterParams, OfRun, Printing, Trusting


class NewParams(AdapterParams):
    """The parameters that change; the others stay. With another model, prompt, length and dimensions are its own."""

    model: str | None = option(
        None,
        "The new model: a sentence-transformers folder, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        shown="the run's",
        min_length=1,
    )
    prompt: str | None = option(
        None, "The name of one of the model's prompts, or a text to put first.", group=MODEL, metavar="PROMPT"
    )
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=MODEL, metavar="N", shown="the model's limit", ge=1
    )
    window_tokens: int | None = option(
        None, "Cut texts into windows of N tokens.", group=MODEL, metavar="N", shown="the run's", ge=1
    )
    overlap: int | None = option(
        None, "Tokens that a window shares with the one before it.", group=MODEL, metavar="N", shown="the run's", ge=0
    )
    windows: Literal["each", "mean"] | None = option(
        None, "each (one row per window) or mean (one per item).", group=MODEL, metavar="HOW", shown="the run's"
    )
    dims: int | None = option(
        None, "Keep the first N dimensions (Matryoshka models).", group=RESULT, metavar="N", common=True, ge=1
    )
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"] | None = option(
        None,
        "Type of the stored numbers: float32, float16, int8 or uint8 (a byte each), or binary (a bit each).",
        group=RESULT,
        metavar="TYPE",
        common=True,
        shown="the run's",
    )


class Migrating(CallOptions):
    """What both models are compared on, and what happens then."""

    queries: str = option(
        "",
        "A file of your own queries, in any format of a source; without it, texts of the run are queries.",
        group=HELD_OUT,
        metavar="FILE",
        common=True,
    )
    query_text: str = option("query", "The column of the queries.", group=HELD_OUT, metavar="COLUMN")
    gold: str = option(
        "",
        "The column with the id, or a list of ids, of the right items.",
        group=HELD_OUT,
        metavar="COLUMN",
        shown="gold, if the file has it",
    )
    sample: int = option(
        200, "Without --queries: how many texts of the run are queries; 0 for none.", group=HELD_OUT, metavar="N", ge=0
    )
    compare_only: bool = option(
        False, "Leave the old edition the one that is read; the same command without it switches.", common=True
    )
    dry_run: bool = option(
        False, "Tell what would be computed, with its time and price; write nothing.", group=OTHER, common=True
    )


class MigrateOptions(
    OfRun,
    NewParams,
    Migrating,
    Trusting,
    Printing,
    Placing,
    NamedEngineOptions,
    Following,
    ErrorLimits,
    Computing,
    ShardLimits,
):
    """What `migrate` takes."""
