"""Summaries of items, and of groups of them."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="summarize",
    summary="Summarize every item of a source, or every group of items.",
    resumes=True,
    examples=(
        "shardmill summarize news.jsonl --text article --id id --out runs/news",
        "shardmill summarize news.jsonl --text article --sentences 2 --reference highlights --out runs/news "
        "--then verify",
        "shardmill summarize news.jsonl --text article --group-by topic --out runs/topics",
        "shardmill summarize news.jsonl --text article --model ./bart-large-cnn --max-tokens 142 --out runs/written",
    ),
    call='run = shardmill.summarize("news.jsonl", text="article", out="runs/news")',
    options="shardmill.verbs.summarize.options:SummarizeOptions",
    start="shardmill.verbs.summarize.start:start",
    task="shardmill.verbs.summarize.task:SummarizeTask",
    report="shardmill.run.reports.generation:read_generation",
    items_below="shardmill.verbs.summarize.groups:find_items",
    extras_for="shardmill.verbs.summarize.extras:extras_for",
    writes_texts=True,
)
