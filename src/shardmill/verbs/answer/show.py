"""Prints what the verbs for questions found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardmill.core.console import count, print_json, say
from shardmill.models.retrieval.passages import Passage, PassageRecord, find_rules
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.verbs.answer.evaluation import Evaluation
from shardmill.verbs.answer.rows import Answer

_SHOWN_PASSAGES = 3
_SHOWN_CHARACTERS = 100


def show_answers(request: Request, answers: Sequence[Answer]) -> None:
    """Print each question, its answer, and the first passages."""
    asked = list(zip(request.options.questions, answers, strict=True))
    if request.options.as_json:
        print_json([_as_json(question, found) for question, found in asked])
        return
    for question, found in asked:
        print(question)
        if found.text is None:
            print("  no answer")
        else:
            score = "" if found.score is None else f"{found.score:.3f}  "
            where = _cite(found) + (f" [{found.start}:{found.stop}]" if found.start is not None else "")
            print(f"  {score}{' '.join(found.text.split())}  ({where or 'cites no passage'})")
        for each in found.passages[:_SHOWN_PASSAGES]:
            start = " ".join(each.passage.text.split())[:_SHOWN_CHARACTERS]
            print(f"         {each.passage.cite()}: {start}")


def _cite(found: Answer) -> str:
    known = {each.passage.id: each.passage for each in found.passages}
    return ", ".join(known[name].cite(found.page if name == found.passage else None) for name in found.cited)


def _as_json(question: str, found: Answer) -> dict[str, Any]:
    passages = [
        {"id": e.passage.id, **_place(e.passage), "score": e.score, "text": e.passage.text} for e in found.passages
    ]
    names = ("score", "start", "stop", "passage", "cited")
    said = {"question": question, "answer": found.text, "finish_reason": found.why}
    return {**said, **{name: getattr(found, name) for name in names}, **_place(found), "passages": passages}


def _place(found: Answer | Passage) -> dict[str, Any]:
    """The file and the page of a document."""
    return {name: value for name in ("file", "page") if (value := getattr(found, name)) is not None}


def show_index(request: Request, made: PassageRecord) -> None:
    """Print how many passages are indexed, the recall, and the language of the words."""
    rules = find_rules(Run(request.options.run).ledger.store, made)
    if request.options.as_json:
        counted = {"passages": made.rows, "groups": len(made.groups), "recall@10": made.recall}
        print_json({**counted, "language": rules.language, "stems": rules.stems})
        return
    counts = f"{count(made.rows, 'passage')} in {count(len(made.groups), 'group')}"
    words = f" Words: {rules.say()}." if rules.say() else ""
    say(f"{counts}, recall@10 {made.recall:.4f} against exact search.{words}")


def show_evaluation(request: Request, found: Evaluation) -> None:
    """Print the figures, and how many questions they are from."""
    if request.options.as_json:
        print_json(found.to_json())
        return
    for name, value in found.figures.items():
        print(f"  {name:<28} {value:.4f}")
    said = f"{found.questions:,} questions: {found.ranked:,} with a right passage, {found.read:,} with a right answer"
    say(f"{said}, {found.without_gold:,} without gold, {found.failed:,} failed.")
