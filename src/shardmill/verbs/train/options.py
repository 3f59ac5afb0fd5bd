"""The options of `train`."""

from __future__ import annotations

from shardmill.plan.execution import Computing, Detaching, ErrorLimits, Following, NamedEngineOptions, Placing
from shardmill.plan.options import PAIRS, CallOptions, option
from shardmill.plan.shared import AllowingCode, Calling, Reading
from shardmill.verbs.train.params import EvaluationParams, LearningParams, PairParams


class Pairing(CallOptions):
    """Where pairs and parameters come from, on the command line."""

    prompt: tuple[str, ...] = option(
        (),
        "A prompt before the texts of a column; repeatable.",
        group=PAIRS,
        metavar="COLUMN=TEXT",
        only="command",
        repeats=True,
    )
    study: str = option(
        "",
        "A study of train: its pairs, and the parameters of its best trial.",
        group=PAIRS,
        metavar="RUN",
        only="command",
        common=True,
    )


class TrainRun(Placing, NamedEngineOptions, Detaching, Following, ErrorLimits, Computing, Calling):
    """Options of a run whose source is one item."""


class TrainOptions(Reading, PairParams, Pairing, LearningParams, EvaluationParams, AllowingCode, TrainRun):
    """What `train` takes."""
