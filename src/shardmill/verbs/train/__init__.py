"""Fine-tuning of embedding models: pairs, losses, the loop and the folder it leaves.

Design: docs/design/training-and-studies.md
"""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="train",
    summary="Fine-tune an embedding model on pairs of texts.",
    resumes=True,
    examples=(
        "shardmill train pairs.jsonl --columns question,passage --model all-MiniLM-L6-v2 --out runs/tuned",
        "shardmill train triplets.parquet --columns query,right,wrong --batch 512 --epochs 3 --model ./e5 "
        "--out runs/tuned",
        "shardmill train scored.csv --columns first,second --label score --model all-MiniLM-L6-v2 --out runs/tuned",
        "shardmill train --study runs/study --out runs/best",
        "shardmill embed docs.jsonl --text body --model runs/tuned/model --out runs/docs",
    ),
    call='run = shardmill.train("pairs.jsonl", columns="question,passage", model="all-MiniLM-L6-v2", out="runs/tuned")',
    options="shardmill.verbs.train.options:TrainOptions",
    start="shardmill.verbs.train.start:start",
    show="shardmill.verbs.train.show:show_training",
    task="shardmill.verbs.train.task:TrainTask",
    settle="shardmill.verbs.train.settle:settle_train",
    report="shardmill.verbs.train.report:read_training",
    extras=("embed",),
    publishes=True,
    searches=("hard_negatives",),
    tunable=True,
    long_items=True,
)
