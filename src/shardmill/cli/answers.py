"""Verbs for questions: make a run searchable, ask it, answer a file of questions, and measure the answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import shardmill
from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.specs import read_options
from shardmill.cli.tasks import FAMILY as TASKS
from shardmill.cli.tasks import carry_out
from shardmill.console import count, say
from shardmill.errors import SpecError, UsageError

FAMILY = "Use the result"
_SHOWN_CHARACTERS = 100

Question = Annotated[list[str], o.argument("QUESTION", "The question; each one is answered by itself.")]
Gold = Annotated[str, typer.Option(metavar="FILE", help="A file with the ids of the questions.", show_default=False)]


def add_to(app: typer.Typer) -> None:
    app.command("answer", cls=Verb, rich_help_panel=TASKS, epilog=_ANSWER)(answer)
    app.command("ask", cls=Verb, rich_help_panel=FAMILY, epilog=_ASK)(ask)
    app.command("index", cls=Verb, rich_help_panel=FAMILY, epilog=_INDEX)(index)
    app.command("evaluate", cls=Verb, rich_help_panel=FAMILY, epilog=_EVALUATE)(evaluate)


_ANSWER = """\
shardmill answer questions.jsonl --over runs/wiki --text question --id id --out runs/answers
shardmill answer questions.jsonl --over runs/wiki --text question --reader models/roberta-squad2 --out runs/answers
shardmill answer faq.jsonl --over runs/wiki --text q --generator qwen3 --endpoint http://gpu1:8000/v1 --out runs/faq"""


@takes(*o.READING, *o.FINDING, *o.KEEPING, *o.STORING, *o.PLACING, "detach", "then", *o.LIMITING, *o.PRICING)
def answer(
    out: o.Out = "", spec: o.SpecFile = None, resume: o.Resume = None, as_json: o.AsJson = False, **options: Any
) -> None:
    """Answer every question of a source over an embed run or a table. The same command resumes an interrupted run."""
    from shardmill.tables.asking import make_searchable

    work, execution = read_options(spec, options)
    if (task := work.setdefault("task", "answer")) != "answer":
        raise SpecError(f"{spec}: its task is {task!r}.", hint=f"shardmill run --spec {spec} runs any task.")
    params = work.get("params", {})
    if not params.get("over"):
        raise UsageError("No --over was given.", hint="Name the embed run, or the table, with the passages: --over RUN")
    params["over"] = make_searchable(params["over"], quiet=as_json)
    carry_out(work, execution, out, resume, as_json)


_ASK = """\
shardmill ask runs/wiki "Who built the tower?"
shardmill ask postgresql:///docs/documents "Who built the tower?" --reader models/roberta-squad2"""


@takes(*(name for name in o.FINDING if name != "over"))
def ask(run: o.Result, question: Question, as_json: o.AsJson = False, **options: Any) -> None:
    """Answer questions over an embed run or a table, here and now."""
    from shardmill.tables.asking import ask as ask_over

    given = {name: value for name, value in options.items() if value is not None}
    answers = ask_over(run, question, quiet=as_json, **given)
    if as_json:
        print_json([_as_json(q, a) for q, a in zip(question, answers, strict=True)])
        return
    for text, found in zip(question, answers, strict=True):
        print(text)
        if found.text is None:
            print("  no answer")
        else:
            score = "" if found.score is None else f"{found.score:.3f}  "
            where = ", ".join(found.cited) + (f" [{found.start}:{found.stop}]" if found.start is not None else "")
            print(f"  {score}{' '.join(found.text.split())}  ({where or 'cites no passage'})")
        for each in found.passages[:3]:
            start = " ".join(each.passage.text.split())[:_SHOWN_CHARACTERS]
            print(f"         {each.passage.id}: {start}")


def _as_json(question: str, found: Any) -> dict[str, Any]:
    passages = [{"id": e.passage.id, "score": e.score, "text": e.passage.text} for e in found.passages]
    names = ("score", "start", "stop", "passage", "cited")
    said = {"question": question, "answer": found.text, "finish_reason": found.why}
    return {**said, **{name: getattr(found, name) for name in names}, "passages": passages}


_INDEX = """\
shardmill index runs/wiki"""


def index(run: o.Run, allow_code: o.AllowCode = False, as_json: o.AsJson = False) -> None:
    """Index the passages of an embed run for approximate search, and measure its recall against exact search.

    `ask` and `answer` need it beyond a million rows, and build it then. A kill costs one group of shards.
    """
    made = shardmill.Run(run, allow_code=allow_code).index(quiet=as_json)
    if as_json:
        print_json({"passages": made.rows, "groups": len(made.groups), "recall@10": made.recall})
    else:
        counts = f"{count(made.rows, 'passage')} in {count(len(made.groups), 'group')}"
        say(f"{counts}, recall@10 {made.recall:.4f} against exact search.")


_EVALUATE = """\
shardmill evaluate runs/answers --gold questions.jsonl
shardmill evaluate runs/answers --gold gold.parquet --answers right --passages passage_ids"""


def evaluate(
    run: o.Run,
    gold: Gold,
    answers: Annotated[str, typer.Option(metavar="COLUMN", help="The right answers.")] = "answers",
    passages: Annotated[str, typer.Option(metavar="COLUMN", help="The ids of the right passages.")] = "passage_id",
    impossible: Annotated[
        str, typer.Option(metavar="COLUMN", help="Whether a question has no answer.")
    ] = "is_impossible",
    as_json: o.AsJson = False,
) -> None:
    """Measure answers against the right ones: MRR, recall and nDCG of the passages, exact match and F1 of the texts."""
    found = shardmill.Run(run).evaluate(gold, answers=answers, passages=passages, impossible=impossible)
    if as_json:
        print_json(found.to_json())
        return
    for name, value in found.figures.items():
        print(f"  {name:<28} {value:.4f}")
    said = f"{found.questions:,} questions: {found.ranked:,} with a right passage, {found.read:,} with a right answer"
    say(f"{said}, {found.without_gold:,} without gold, {found.failed:,} failed.")
