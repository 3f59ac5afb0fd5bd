"""The options of `audit`."""

from __future__ import annotations

from shardmill.plan.options import MODEL, OTHER, SOURCE, CallOptions, option
from shardmill.plan.shared import AllowingCode, Printing, Reading
from shardmill.plan.values import NAMES, Names, Place


class AuditColumns(CallOptions):
    """Where the texts and the vectors are."""

    text: str = option(
        "",
        'The text that was embedded: a field, several ("title,body") or a template ("{title}: {body}").',
        group=SOURCE,
        metavar="FIELD",
        common=True,
    )
    column: str = option(
        "", "The column with the vectors.", group=SOURCE, metavar="COLUMN", common=True, shown="the only one"
    )
    vectors: Place = option(
        "",
        "A .npy file with one vector per row of the source.",
        group=SOURCE,
        metavar="FILE",
        common=True,
        accepts="Place",
    )
    id: Names = option(
        (), "The columns by which a table is read in order.", group=SOURCE, metavar="FIELDS", accepts=NAMES
    )


class AuditModel(CallOptions):
    """What the vectors should be."""

    model: str = option(
        "",
        "The model that should have made them: a folder, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
    )
    prompt: str | None = option(
        None, "The name of one of the model's prompts, or a text to put first.", group=MODEL, metavar="PROMPT"
    )
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=MODEL, metavar="N", shown="the model's limit", ge=1
    )
    dims: int | None = option(
        None, "Dimensions that each vector should have.", group=MODEL, metavar="N", shown="the model's", ge=1
    )


class Auditing(Printing):
    """How much is recomputed, and what is shown."""

    sample: int = option(256, "Rows to recompute; 0 for none.", metavar="N", common=True, ge=0)
    quiet: bool | None = option(
        None, "Whether to show no progress.", group=OTHER, only="python", shown="True, except in a notebook"
    )


class AuditOptions(Reading, AuditColumns, AuditModel, AllowingCode, Auditing):
    """What `audit` takes."""
