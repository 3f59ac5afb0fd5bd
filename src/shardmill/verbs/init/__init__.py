"""Writes a spec file with comments, from flags or from the answers to a few questions."""

from __future__ import annotations

from shardmill.plugins.base import RUNS, Verb

VERB = Verb(
    name="init",
    summary="Write a spec file with comments, from flags or from a few questions.",
    about="On a terminal it asks for what was not given. The other common keys are in the file as comments. Nothing is "
    "overwritten: a folder that has a spec is refused, unless --file names a new one.",
    family=RUNS,
    examples=(
        "shardmill init",
        "shardmill init reviews.jsonl --text reviewText --id reviewerID,asin",
        "shardmill init news.parquet --text body --task summarize --file news.toml",
    ),
    options="shardmill.verbs.init.options:InitOptions",
    start="shardmill.verbs.init.start:start",
)
