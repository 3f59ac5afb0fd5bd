"""The options of `answer`, `ask`, `index` and `evaluate`."""

from __future__ import annotations

from shardmill.plan.execution import Pricing, Serving
from shardmill.plan.options import OTHER, CallOptions, option
from shardmill.plan.shared import Keeping, OfRun, Printing, ReadingTexts, Renewing, RunOptions, Storing, TakingPart
from shardmill.plan.values import Place
from shardmill.verbs.answer.params import FindingParams


class AnswerOptions(ReadingTexts, TakingPart, FindingParams, Serving, Storing, Keeping, RunOptions, Renewing, Pricing):
    """What `answer` takes."""


class Asking(FindingParams):
    """Where the passages are."""

    over: Place = option(
        ...,
        "The embed run with the passages, or a table: postgresql://HOST/DATABASE/TABLE.",
        metavar="RUN",
        argument=True,
        accepts="Place",
        needed=True,
        min_length=1,
    )


class Questions(CallOptions):
    """What is asked: several questions on the command line, one in Python."""

    questions: tuple[str, ...] = option(
        (), "The question; each one is answered by itself.", metavar="QUESTION", argument=True, only="command"
    )
    question: str = option("", "The question.", only="python", positional=True, needed=True)


class AskOptions(Asking, Questions, Serving, Printing):
    """What `ask` takes."""


class IndexOptions(OfRun, Printing):
    """What `index` takes."""

    language: str = option(
        "",
        "The language of the texts, by which they are cut into words: de or german; mul for several.",
        group=OTHER,
        metavar="LANGUAGE",
        shown="told from a sample",
        common=True,
    )
    allow_code: bool = option(False, "Import code that the run names, and run its commands.", group=OTHER, common=True)


class EvaluateOptions(OfRun, Printing):
    """What `evaluate` takes."""

    gold: Place = option(
        ..., "A file with the ids of the questions and what is right.", group=OTHER, metavar="FILE", common=True
    )
    answers: str = option("answers", "The column with the right answers.", group=OTHER, metavar="COLUMN", common=True)
    passages: str = option(
        "passage_id", "The column with the ids of the right passages.", group=OTHER, metavar="COLUMN", common=True
    )
    impossible: str = option(
        "is_impossible",
        "The column that says whether a question has no answer.",
        group=OTHER,
        metavar="COLUMN",
        common=True,
    )
