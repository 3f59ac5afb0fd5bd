"""The first of all items whose texts are alike: four runs of `apply`, one after another."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="dedup",
    summary="Remove duplicates: keep the first of all items whose texts are alike.",
    resumes=True,
    examples=(
        "shardmill dedup reviews.jsonl --text reviewText --out runs/unique",
        'shardmill dedup docs.parquet --text "{title} {body}" --id doc_id --threshold 0.7 --out runs/unique',
        "shardmill dedup lines.txt --text text --exact --out runs/unique",
    ),
    call='done = shardmill.dedup("reviews.jsonl", text="reviewText", out="runs/unique")',
    returns="shardmill.verbs.dedup.removal:Deduplicated",
    options="shardmill.verbs.dedup.options:DedupOptions",
    start="shardmill.verbs.dedup.start:start",
    show="shardmill.verbs.dedup.show:show",
    extras=("dedup",),
)
