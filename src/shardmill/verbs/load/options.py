"""The options of `load`: those of `embed`, and those of the table."""

from __future__ import annotations

from shardmill.plan.execution import ComputingVectors, Indexing, Transacting
from shardmill.plan.options import RESULT, SOURCE, TABLE, CallOptions, option
from shardmill.plan.shared import (
    AllowingCode,
    IntoFolder,
    Keeping,
    ReadingTexts,
    RunOptions,
    Storing,
    TableLayout,
    TakingPart,
)
from shardmill.plan.values import Address, Place
from shardmill.verbs.embed.params import EmbedParams


class TextToLoad(ReadingTexts):
    """The text, which a known schema may name."""

    text: str = option(
        "",
        'The text to embed: a field, several ("title,body") or a template ("{title}: {body}").',
        group=SOURCE,
        metavar="FIELD",
        shown="what the --schema embeds",
        common=True,
        min_length=1,
    )


class LoadedTable(Storing):
    """The table, whose database has to be named."""

    to: Address = option(
        "",
        "postgresql://USER@HOST/DATABASE or embedded:PATH; with --from, any store: lance:PLACE, duckdb:FILE, ….",
        group=TABLE,
        metavar="URL",
        key="url",
        common=True,
        needed=True,
    )


class FinishedRun(CallOptions):
    """A run that is there already."""

    from_run: Place = option(
        "",
        "Deliver the rows of this finished run as they are; as a source, run:RUN is embedded again.",
        group=SOURCE,
        metavar="RUN",
        flags=("--from",),
        common=True,
    )
    repair: bool = option(
        False,
        "With --from: also replace the rows that the store has lost, or that were changed or doubled there.",
        group=SOURCE,
    )

    shown_as: str = option(
        "",
        "With --from: the name that readers use, a view or an alias (Qdrant, Milvus), which changes in one step.",
        group=SOURCE,
        metavar="NAME",
        flags=("--as",),
    )


class FolderOfLoad(IntoFolder):
    """The folder of a load, which may be named by its table."""

    out: Place = option(
        "",
        "The run folder: a path or a URL.",
        group=RESULT,
        metavar="RUN",
        shown="runs/TABLE",
        common=True,
        accepts="Place",
    )


class LoadOptions(  # type: ignore[misc]
    ComputingVectors,
    TextToLoad,
    FinishedRun,
    TakingPart,
    LoadedTable,
    TableLayout,
    Indexing,
    EmbedParams,
    AllowingCode,
    Keeping,
    FolderOfLoad,
    RunOptions,
    Transacting,
):
    """What `load` takes."""
