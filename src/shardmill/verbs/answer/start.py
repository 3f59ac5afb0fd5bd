"""Starts the verbs for questions: answer a source of them, ask a few, index the passages, measure the answers."""

from __future__ import annotations

from shardmill.core.errors import UsageError
from shardmill.models.retrieval.passages import PassageRecord
from shardmill.plan.spec import SERVER
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.verbs.answer.asking import ask
from shardmill.verbs.answer.evaluation import Evaluation
from shardmill.verbs.answer.rows import Answer


def start_answers(request: Request) -> Run:
    """Answer every question of a source over an embed run or a table."""
    request = request.of_own_task()
    if not request.params.get("over"):
        raise UsageError("No --over was given.", hint="Name the embed run, or the table, with the passages: --over RUN")
    return request.carry_out()


def start_asking(request: Request) -> Answer | list[Answer]:
    """Answer questions over an embed run or a table: the one of a function, or all of a command."""
    options = request.options
    params = {name: value for name, value in request.params.items() if name != "over"}
    params |= {name: request.execution[name] for name in SERVER if name in request.execution}
    quiet = request.quiet or options.as_json
    if "question" in options.model_fields_set:
        return ask(options.over, [options.question], quiet=quiet, **params)[0]
    if not options.questions:
        raise UsageError("No question was given.", hint='For example: shardmill ask runs/wiki "Who built the tower?"')
    return ask(options.over, options.questions, quiet=quiet, **params)


def start_indexing(request: Request) -> PassageRecord:
    """Index the passages of an embed run."""
    options = request.options
    run = Run(options.run, allow_code=options.allow_code)
    return run.index(language=options.language, quiet=request.quiet or options.as_json)


def start_evaluating(request: Request) -> Evaluation:
    """Compare the answers of a run with the right ones."""
    options = request.options
    columns = {"answers": options.answers, "passages": options.passages, "impossible": options.impossible}
    return Run(options.run).evaluate(options.gold, **columns)
