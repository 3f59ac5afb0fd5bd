"""Questions answered over an embed run or a table."""

from __future__ import annotations

from shardmill.plugins.base import USES, Verb

VERB = Verb(
    name="answer",
    summary="Answer every question of a source over an embed run or a table.",
    resumes=True,
    examples=(
        "shardmill answer questions.jsonl --over runs/wiki --text question --id id --out runs/answers",
        "shardmill answer questions.jsonl --over runs/wiki --text question --reader models/roberta-squad2 "
        "--out runs/answers",
        "shardmill answer faq.jsonl --over runs/wiki --text q --generator qwen3 --endpoint http://gpu1:8000/v1 "
        "--out runs/faq",
    ),
    call='run = shardmill.answer("questions.jsonl", over="runs/wiki", text="question", out="runs/answers")',
    options="shardmill.verbs.answer.options:AnswerOptions",
    start="shardmill.verbs.answer.start:start_answers",
    task="shardmill.verbs.answer.task:AnswerTask",
    methods={"evaluate": "shardmill.verbs.answer.evaluation:evaluate"},
    report="shardmill.run.reports.generation:read_generation",
    extras_for="shardmill.verbs.answer.extras:extras_for",
    searches=("over",),
    writes_texts=True,
)

ASK = Verb(
    name="ask",
    summary="Answer questions over an embed run or a table, in this process.",
    family=USES,
    examples=(
        'shardmill ask runs/wiki "Who built the tower?"',
        'shardmill ask postgresql:///docs/documents "Who built the tower?" --reader models/roberta-squad2',
    ),
    call='answer = shardmill.ask("runs/wiki", "Who built the tower?")',
    returns="shardmill.verbs.answer.rows:Answer",
    options="shardmill.verbs.answer.options:AskOptions",
    start="shardmill.verbs.answer.start:start_asking",
    show="shardmill.verbs.answer.show:show_answers",
)

INDEX = Verb(
    name="index",
    summary="Index the passages of an embed run for approximate search.",
    about="It measures the recall against exact search. `ask` and `answer` need an index beyond a million rows, and "
    "build it then. If it is killed, the group of shards in progress is indexed again.",
    family=USES,
    resumes=True,
    examples=("shardmill index runs/wiki",),
    options="shardmill.verbs.answer.options:IndexOptions",
    start="shardmill.verbs.answer.start:start_indexing",
    show="shardmill.verbs.answer.show:show_index",
)

EVALUATE = Verb(
    name="evaluate",
    summary="Measure answers against the right ones.",
    about="It measures MRR, recall and nDCG of the passages, exact match and F1 of the texts.",
    family=USES,
    examples=(
        "shardmill evaluate runs/answers --gold questions.jsonl",
        "shardmill evaluate runs/answers --gold gold.parquet --answers right --passages passage_ids",
    ),
    options="shardmill.verbs.answer.options:EvaluateOptions",
    start="shardmill.verbs.answer.start:start_evaluating",
    show="shardmill.verbs.answer.show:show_evaluation",
)
