"""A function of the user's, called with every item."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="apply",
    summary="Call a function with every item of a source, in batches.",
    about="The function may also be a class, which is made once per worker.",
    resumes=True,
    examples=(
        "shardmill apply reviews.jsonl --call words.py:count --id asin --out runs/words",
        "shardmill apply s3://bucket/docs --call acme.clean:Cleaner --param lower=true --column body "
        "--out s3://bucket/runs/clean",
        "shardmill apply images.parquet --call ocr.py:Reader --batch 32 --device cuda --out runs/ocr",
    ),
    call='run = shardmill.apply("reviews.jsonl", count_words, out="runs/words")',
    options="shardmill.verbs.apply.options:ApplyOptions",
    start="shardmill.verbs.apply.start:start",
    task="shardmill.verbs.apply.task:ApplyTask",
    settle="shardmill.verbs.apply.settle:settle_apply",
    runs_code=True,
    rows_vary=True,
)
