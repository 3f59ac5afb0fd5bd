"""Compares the answers of a run with the right ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from shardmill.core.errors import SourceError, UsageError
from shardmill.core.evaluation.ranking import ndcg, recall, reciprocal_rank
from shardmill.core.evaluation.squad import exact_match, f1
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import read_rows
from shardmill.sources import Fields, discover, open_source

_DEPTHS = (1, 5, 10)
_AT = 10
_WHOLE_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class GoldFields:
    """The gold file's columns: the right answers, the passages that hold them, and whether there is no answer."""

    answers: str = "answers"
    passages: str = "passage_id"
    impossible: str = "is_impossible"


@dataclass(frozen=True, slots=True)
class GoldAnswer:
    """What is right for one question; None where the gold file does not say."""

    answers: tuple[str, ...] | None
    passages: tuple[str, ...] | None


@dataclass(slots=True)
class Evaluation:
    """Figures by name, each the mean over the questions it is defined for, and how many questions there were."""

    questions: int = 0
    without_gold: int = 0
    failed: int = 0
    ranked: int = 0
    read: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        counts = {name: getattr(self, name) for name in ("questions", "without_gold", "failed", "ranked", "read")}
        return {**counts, **self.figures}


def evaluate(ledger: Ledger, plan: Plan, gold: str, *, answers: str, passages: str, impossible: str) -> Evaluation:
    """Compare a run of the answer task with a gold file, by the id of each question.

    A question that failed counts as one without passages and answer; one that the gold file lacks counts for nothing.
    """
    if not plan.work.id:
        raise UsageError(
            f"{ledger.url} has no ids to find its questions in the gold file by.",
            hint="Answer the questions again, with --id FIELD.",
        )
    right = dict(_read_gold(gold, plan.work.id, GoldFields(answers, passages, impossible)))
    seen, sums = Evaluation(), _Sums()
    columns = [*plan.work.id, "answer", "finish_reason", "passages"]
    for batch in read_rows(ledger, plan, columns):
        for row in batch.to_pylist():
            seen.questions += 1
            seen.failed += row["finish_reason"] is None
            due = right.get(tuple(str(row[name]) for name in plan.work.id))
            if due is None:
                seen.without_gold += 1
                continue
            if due.passages:
                seen.ranked += 1
                sums.add(_rank_figures(row["passages"] or [], due.passages))
            if due.answers is not None:
                seen.read += 1
                sums.add(_text_figures(row["answer"] or "", due.answers))
    if seen.questions == seen.without_gold:
        raise UsageError(
            f"{gold} has none of the {seen.questions:,} questions of {ledger.url}.",
            hint=f"Both need the same ids in {', '.join(plan.work.id)}.",
        )
    seen.figures = sums.means()
    return seen


def _rank_figures(ranked: Sequence[str], passages: Sequence[str]) -> dict[str, float]:
    grades = dict.fromkeys(passages, 1)
    depths = {f"recall@{k}": recall(ranked, grades, k) for k in _DEPTHS}
    return {f"MRR@{_AT}": reciprocal_rank(ranked, grades, _AT), f"nDCG@{_AT}": ndcg(ranked, grades, _AT), **depths}


def _text_figures(answer: str, right: Sequence[str]) -> dict[str, float]:
    both = {"exact match": exact_match(answer, right), "F1": f1(answer, right)}
    kind = "answerable" if any(each.strip() for each in right) else "without answer"
    return {**both, **{f"{name}, {kind}": value for name, value in both.items()}}


class _Sums:
    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self._values.setdefault(name, []).append(value)

    def means(self) -> dict[str, float]:
        return {name: round(sum(values) / len(values), 4) for name, values in self._values.items()}


def _read_gold(place: str, id: Sequence[str], names: GoldFields) -> Iterator[tuple[tuple[str, ...], GoldAnswer]]:
    """Read a file of any format that a source may have; columns that it lacks say nothing."""
    discover([place], Fields(_template(id), tuple(id)))
    wanted = (names.answers, names.passages, names.impossible)
    kept = _columns_there(place, tuple(id), wanted)
    if names.answers not in kept and names.passages not in kept:
        raise UsageError(
            f"{place} has neither right answers nor right passages: no column {names.answers!r} or {names.passages!r}.",
            hint="Name its columns: --answers COLUMN --passages COLUMN",
        )
    fields = Fields(_template(id), tuple(id), kept)
    stat = discover([place], fields)
    source = open_source(stat, fields)
    for shard in source.shards(_WHOLE_BYTES):
        for batch in source.read(shard):
            for row in batch.kept.to_pylist():
                answers = None if names.answers not in kept else _as_texts(row[names.answers])
                if row.get(names.impossible):
                    answers = ()
                passages = None if names.passages not in kept else _as_texts(row[names.passages])
                yield tuple(str(row[name]) for name in id), GoldAnswer(answers, passages)


def _columns_there(place: str, id: tuple[str, ...], wanted: Sequence[str]) -> tuple[str, ...]:
    """Those of the wanted columns that the file has."""
    there = []
    for name in wanted:
        with suppress(SourceError):
            discover([place], Fields(_template(id), id, (name,)))
            there.append(name)
    return tuple(there)


def _template(id: Sequence[str]) -> str:
    """An id may be a number, which is text only in a template."""
    return f"{{{id[0]}}}"


def _as_texts(value: Any) -> tuple[str, ...]:
    """One text, several, or SQuAD's `{"text": […]}`. A source of lines keeps lists and objects as JSON."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        value = value.get("text", [])
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)
