"""A sparse vector for every item."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="embed-sparse",
    summary="Embed every item of a source as a sparse vector.",
    about="A row has the words of the model's vocabulary that stand for its text, and their weights (SPLADE).",
    resumes=True,
    examples=(
        "shardmill embed-sparse pages.parquet --text text --model ./splade --keep url --out runs/sparse",
        'shardmill embed-sparse docs.jsonl --text "{title}: {body}" --model ./splade --max-active-dims 256 '
        "--out runs/sparse",
    ),
    call='run = shardmill.embed_sparse("pages.parquet", text="text", model="./splade", out="runs/sparse")',
    options="shardmill.verbs.embed_sparse.options:EmbedSparseOptions",
    task="shardmill.verbs.embed_sparse.task:EmbedSparseTask",
    report="shardmill.verbs.embed_sparse.report:read_sparse",
    extras_for="shardmill.verbs.embed_sparse.extras:extras_for",
)
