"""The options of `peek`."""

from __future__ import annotations

from shardmill.plan.options import MODEL, OTHER, RESULT, SOURCE, CallOptions, option
from shardmill.plan.shared import Printing, Reading, TakingPart
from shardmill.plan.values import NAMES, Names


class Looking(CallOptions):
    """What is shown of the items, and whose tokens are counted."""

    text: str = option(
        "",
        'The text: a field, several ("title,body") or a template ("Translate: {body}").',
        group=SOURCE,
        metavar="FIELD",
        shown="all columns",
        common=True,
    )
    id: Names = option((), "The field or fields that identify an item.", group=RESULT, metavar="FIELDS", accepts=NAMES)
    model: str = option(
        "",
        "Count the tokens of this model: a folder, its URL, or a hub name.",
        group=MODEL,
        metavar="MODEL",
        shown="the default one, if it is installed",
        common=True,
    )
    prompt: str | None = option(
        None, "The name of one of the model's prompts, or a text to put first.", group=MODEL, metavar="PROMPT"
    )
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=MODEL, metavar="N", shown="the model's limit", ge=1
    )
    items: int = option(10, "Items to show.", group=OTHER, metavar="N", common=True, ge=0)


class PeekOptions(Reading, TakingPart, Looking, Printing):
    """What `peek` takes."""
