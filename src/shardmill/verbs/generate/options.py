"""The options of `generate`."""

from __future__ import annotations

from typing import Any

from shardmill.plan.execution import Pricing, Serving
from shardmill.plan.options import PROMPT, CallOptions, option
from shardmill.plan.shared import Keeping, Reading, Renewing, RunOptions, Storing, TakingPart
from shardmill.verbs.generate.params import ModelParams


class Prompting(CallOptions):
    """The prompt of an item."""

    template: str = option(
        "", 'The prompt of an item: "Translate into French: {body}".', group=PROMPT, metavar="TEXT", common=True
    )
    messages: str = option(
        "", "The column with a conversation, in place of a template.", group=PROMPT, metavar="COLUMN", common=True
    )
    schema_: Any = option(
        None,
        "A JSON schema that the answers must fit.",
        group=PROMPT,
        metavar="FILE",
        accepts="Mapping[str, Any] | Place",
    )
    template_arguments: Any = option(
        None,
        "Arguments of the model's chat template, as JSON: '{\"enable_thinking\": false}'.",
        group=PROMPT,
        metavar="JSON",
        accepts="Mapping[str, Any] | str",
    )


class GenerateOptions(
    Reading, TakingPart, Prompting, ModelParams, Serving, Storing, Keeping, RunOptions, Renewing, Pricing
):
    """What `generate` takes."""
