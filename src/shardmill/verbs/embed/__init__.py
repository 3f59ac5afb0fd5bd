"""A vector for every item."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="embed",
    summary="Embed every item of a source.",
    resumes=True,
    examples=(
        "shardmill embed reviews.jsonl --text reviewText --out runs/reviews",
        'shardmill embed s3://bucket/docs --text "{title}: {body}" --id doc_id --keep price --out s3://bucket/runs/docs',
        "shardmill embed photos.parquet --picture image --model ./clip-vit-base-patch32 --out runs/photos",
        "shardmill embed run:runs/summaries --text output --out runs/vectors",
        "shardmill embed wiki.parquet --text text --out /shared/runs/wiki --engine slurm --partition gpu --workers 16",
    ),
    call='run = shardmill.embed("reviews.jsonl", text="reviewText", out="runs/reviews")',
    options="shardmill.verbs.embed.options:EmbedOptions",
    task="shardmill.verbs.embed.task:EmbedTask",
    settle="shardmill.verbs.embed.settle:settle_embed",
    extras_for="shardmill.verbs.embed.extras:extras_for",
    methods={"search_pictures": "shardmill.run.searching:search_pictures"},
    makes_vectors=True,
    embeds_texts=True,
)
