"""Items embedded into a table of PostgreSQL.

Design: docs/design/postgres.md
"""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="load",
    summary="Embed every item of a source and load it into PostgreSQL.",
    about="The indexes are built after the last row.",
    resumes=True,
    examples=(
        "shardmill load corpus.parquet --text body --id doc_id --to postgresql:///docs --table documents",
        "shardmill load reviews.jsonl --metadata meta.jsonl --to embedded:shop --schema amazon-reviews-2023",
        "shardmill load --from runs/reviews --to lance:s3://bucket/reviews.lance",
    ),
    call='run = shardmill.load("docs.parquet", text="body", id="doc_id", to="postgresql:///docs", table="documents")',
    options="shardmill.verbs.load.options:LoadOptions",
    start="shardmill.verbs.load.start:start",
    show="shardmill.verbs.load.show:show",
    extras=("postgres",),
)
