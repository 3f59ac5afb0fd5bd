"""Answers as values and as rows of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardmill.tasks.base import START, STOP
from shardmill.verbs.answer.retriever import FoundPassage

# How an answer was found: a reader's span, the best sentence of the best passage, written by a generator to its end or
# cut at its limit; or there is none.
SPAN, SENTENCE, WRITTEN, CUT, NO_ANSWER = "span", "sentence", "written", "length", "no_answer"
OUTPUT = pa.schema(
    [
        pa.field("answer", pa.string()),
        pa.field("score", pa.float32()),
        pa.field(START, pa.int64()),
        pa.field(STOP, pa.int64()),
        pa.field("finish_reason", pa.string()),
        pa.field("passage", pa.string()),
        pa.field("cited", pa.list_(pa.string())),
        pa.field("passages", pa.list_(pa.string())),
        pa.field("passage_scores", pa.list_(pa.float32())),
    ]
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: its text, score and characters in the text of the passage's item, and the passages, best first.

    `why` is one of the reasons above; without an answer, `text` is None. `cited` are the ids of the passages that the
    answer comes from. An answer that is a piece of a document has its `file` and its `page`, if that has pages.
    """

    passages: tuple[FoundPassage, ...]
    why: str = NO_ANSWER
    text: str | None = None
    score: float | None = None
    start: int | None = None
    stop: int | None = None
    passage: str | None = None
    file: str | None = None
    page: int | None = None
    cited: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    fault: str = ""


def make_rows(answers: Sequence[Answer]) -> pa.RecordBatch:
    columns: list[Sequence[Any]] = [
        [a.text for a in answers],
        [_rounded(a.score) for a in answers],
        [a.start for a in answers],
        [a.stop for a in answers],
        [a.why for a in answers],
        [a.passage for a in answers],
        [list(a.cited) for a in answers],
        [[found.passage.id for found in a.passages] for a in answers],
        [[_rounded(found.score) for found in a.passages] for a in answers],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, OUTPUT, strict=True)]
    return pa.record_batch(arrays, schema=OUTPUT)


def check_answers(rows: pa.RecordBatch, most: int) -> str | None:
    """What contradicts itself in stored rows: reasons, answers, ranges and lists of at most `most` passages."""
    for row in rows.to_pylist():
        why, text = row["finish_reason"], row["answer"]
        if why is None:
            continue
        if why not in (SPAN, SENTENCE, WRITTEN, CUT, NO_ANSWER):
            return f"the finish_reason {why!r} is unknown"
        if (text is None) != (why == NO_ANSWER):
            return f"{why} with the answer {text!r}"
        if why in (SPAN, SENTENCE) and row[STOP] - row[START] != len(text):
            return f"the answer {text!r} has the range {row[START]} to {row[STOP]}"
        if not len(row["passages"]) == len(row["passage_scores"]) <= most:
            return f"{len(row['passages'])} passages with {len(row['passage_scores'])} scores"
        if why in (SPAN, SENTENCE) and row["cited"] != [row["passage"]]:
            return f"the answer is in {row['passage']!r}, and {row['cited']!r} is cited"
        if unknown := set(row["cited"]) - set(row["passages"]):
            return f"the answer is in {min(unknown)!r}, which was not found"
    return None


def _rounded(score: float | None) -> float | None:
    """Four digits: the others depend on the batch."""
    return None if score is None else float(f"{score:.4g}")
