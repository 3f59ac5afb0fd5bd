"""Labels for every item."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="classify",
    summary="Label every item of a source with a classifier.",
    about="The model decides what a row has: a label and its score, several labels, spans of the text, or a number.",
    resumes=True,
    examples=(
        "shardmill classify pages.parquet --text text --model ./language-id --keep url --out runs/languages",
        "shardmill classify posts.jsonl --text body --model ./toxicity --threshold 0.3 --out runs/toxic",
        "shardmill classify news.jsonl --text article --model ./ner --out runs/names",
        'shardmill classify mail.jsonl --text body --model ./deberta-mnli --labels "invoice,complaint,other" '
        "--out runs/mail",
    ),
    call='run = shardmill.classify("pages.parquet", text="text", model="./language-id", out="runs/languages")',
    options="shardmill.verbs.classify.options:ClassifyOptions",
    task="shardmill.verbs.classify.task:ClassifyTask",
    report="shardmill.verbs.classify.report:read_classes",
    extras_for="shardmill.verbs.classify.extras:extras_for",
)
