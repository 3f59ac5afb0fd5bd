"""The parameters of the `classify` task, which are options of its verb."""

from __future__ import annotations

from shardmill.plan.options import MODEL, RESULT, option
from shardmill.plan.shared import AdapterParams
from shardmill.plan.values import NAMES, Columns

HYPOTHESIS = "This example is {}."


class ClassifyParams(AdapterParams):
    """The model, the labels of a model that has none of its own, and which of them a row has."""

    model: str = option(
        "",
        "A classifier of texts or tokens, or with --labels one trained for entailment (NLI): a folder, its URL "
        "(s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        needed=True,
        min_length=1,
    )
    labels: Columns = option(
        (),
        "Zero-shot: the labels to choose from, separated by commas.",
        group=MODEL,
        metavar="LABELS",
        common=True,
        accepts=NAMES,
    )
    hypothesis: str | None = option(
        None,
        "With --labels: the sentence that says of a text that it has the label {}.",
        group=MODEL,
        metavar="TEXT",
        shown=f'"{HYPOTHESIS}"',
    )
    multi_label: bool = option(False, "With --labels: a text may have several, or none.", group=MODEL)
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=MODEL, metavar="N", shown="the model's limit", ge=1
    )
    threshold: float | None = option(
        None,
        "Where a text may have several labels: the lowest probability of one that it has.",
        group=RESULT,
        metavar="P",
        shown="0.5",
        ge=0,
        le=1,
    )
    top_k: int | None = option(
        None, "Add the column `labels` with the N likeliest labels and their scores.", group=RESULT, metavar="N", ge=1
    )
    all_labels: bool = option(False, "Add the column `labels` with all labels and their scores.", group=RESULT)
