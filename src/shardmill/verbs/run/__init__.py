"""Any task over every item, a class of the user's own among them."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="run",
    summary="Run any task over every item of a source.",
    resumes=True,
    examples=(
        "shardmill run --spec job.toml --out runs/job",
        "shardmill run reviews.jsonl --task lengths:CountWords --param lower=true --text reviewText --out runs/lengths",
        "shardmill run reviews.jsonl --task lengths:CountWords --text reviewText --id asin --to embedded:shop "
        "--table words",
    ),
    options="shardmill.verbs.run.options:RunTaskOptions",
    start="shardmill.verbs.run.start:start",
)
