"""A score for every pair of texts, or for each candidate of a query."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="score",
    summary="Score pairs of texts, or candidates of queries, with a re-ranker.",
    resumes=True,
    examples=(
        "shardmill score pairs.jsonl --query-text query --text passage --model cross-encoder/ms-marco-MiniLM-L6-v2 "
        "--out runs/scores",
        'shardmill score pairs.parquet --query-text question --text "{title}: {body}" --model ./bge-reranker-v2-m3 '
        "--id id --out runs/scores",
        "shardmill score found.jsonl --query-text question --candidates passages --model ./Qwen3-Reranker-0.6B "
        "--out runs/ranked",
    ),
    call='run = shardmill.score("pairs.jsonl", query_text="query", text="passage", model="./reranker", out="runs/s")',
    options="shardmill.verbs.score.options:ScoreOptions",
    start="shardmill.verbs.score.start:start",
    task="shardmill.verbs.score.task:ScoreTask",
    report="shardmill.verbs.score.report:read_scores",
    extras_for="shardmill.verbs.score.extras:extras_for",
)
