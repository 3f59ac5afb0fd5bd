"""The options of `map`."""

from __future__ import annotations

from shardmill.plan.execution import (
    Batching,
    Computing,
    Detaching,
    ErrorLimits,
    Following,
    NamedEngineOptions,
    Placing,
    ShardLimits,
)
from shardmill.plan.options import MAP, RESULT, CallOptions, option
from shardmill.plan.shared import Keeping, Reading, Resuming
from shardmill.plan.values import Place
from shardmill.verbs.map.params import ColumnParams, FitOptions


class Marking(CallOptions):
    """What else is on the map."""

    mark: str = option(
        "",
        "Texts to show as marks, one per line, such as questions.",
        group=MAP,
        metavar="FILE",
        only="command",
        common=True,
    )
    marks: tuple[str, ...] = option(
        (), "Texts to show as marks, such as questions.", group=MAP, only="python", accepts="Sequence[str]"
    )
    points: Place = option(
        "",
        "Other items to place on the same map: a file to embed, or run:RUN.",
        group=MAP,
        metavar="SOURCE",
        common=True,
    )


class IntoMap(CallOptions):
    """Where the map is."""

    out: Place = option(
        "",
        "The folder of the map, created if missing.",
        group=RESULT,
        metavar="MAP",
        common=True,
        accepts="Place",
        needed=True,
    )


class MapRun(
    Placing, NamedEngineOptions, Detaching, Following, ErrorLimits, Computing, Batching, ShardLimits, IntoMap, Resuming
):
    """Options of the run that places the vectors."""


class MapOptions(Reading, ColumnParams, Marking, FitOptions, Keeping, MapRun):
    """What `map` takes."""
