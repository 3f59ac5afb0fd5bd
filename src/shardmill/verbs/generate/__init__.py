"""A text written for every item."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="generate",
    summary="Answer a prompt for every item of a source.",
    resumes=True,
    examples=(
        'shardmill generate news.jsonl --template "Sum up: {body}" --model ./Qwen3-0.6B --out runs/short',
        'shardmill generate tickets.parquet --template "{subject}: {body}" --schema ticket.json --model ./Qwen3-0.6B '
        "--out runs/t",
        "shardmill generate chats.jsonl --messages chat --model qwen3 --endpoint http://gpu1:8000/v1 --out runs/chats",
    ),
    call='run = shardmill.generate("news.jsonl", template="Sum up: {body}", model="./Qwen3-0.6B", out="runs/short")',
    options="shardmill.verbs.generate.options:GenerateOptions",
    start="shardmill.verbs.generate.start:start",
    task="shardmill.verbs.generate.task:GenerateTask",
    report="shardmill.run.reports.generation:read_generation",
    extras_for="shardmill.verbs.generate.extras:extras_for",
    writes_texts=True,
)
