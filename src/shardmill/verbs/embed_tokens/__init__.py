"""A vector for every token of every item."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="embed-tokens",
    summary="Embed every item of a source as a vector per token.",
    about="A row has as many vectors as its text has tokens (ColBERT). `search` compares them by MaxSim.",
    resumes=True,
    examples=(
        "shardmill embed-tokens pages.parquet --text text --model ./colbert --keep url --out runs/tokens",
        'shardmill search runs/tokens "battery dies after an hour"',
    ),
    call='run = shardmill.embed_tokens("pages.parquet", text="text", model="./colbert", out="runs/tokens")',
    options="shardmill.verbs.embed_tokens.options:EmbedTokensOptions",
    task="shardmill.verbs.embed_tokens.task:EmbedTokensTask",
    report="shardmill.verbs.embed_tokens.report:read_token_counts",
    extras_for="shardmill.verbs.embed_tokens.extras:extras_for",
)
