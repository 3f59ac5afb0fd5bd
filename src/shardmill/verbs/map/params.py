"""The parameters of the `map` task, and those that fit a map."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from shardmill.plan.options import MAP, SOURCE, CallOptions, Params, option

Method = Literal["umap", "pacmap"]


def _known(value: object) -> object:
    if value not in get_args(Method):
        raise ValueError(f"{value!r} is neither umap nor pacmap")
    return value


class ColumnParams(Params):
    """The columns with vectors and texts."""

    vector: str = option(
        "",
        "The column with the vectors, if there are several.",
        group=SOURCE,
        metavar="COLUMN",
        common=True,
    )
    text: str = option(
        "",
        "The column with the texts.",
        group=SOURCE,
        metavar="COLUMN",
        common=True,
        shown="as the run was embedded",
    )


class MapParams(ColumnParams):
    """The parameters of the task: the folder of the fitted map, and the columns with vectors and texts."""

    fit: str = Field(min_length=1)
    vector: str = Field(min_length=1)


class FitOptions(CallOptions):
    """How a map is fitted: the method, the number of anchors at most, and the seed."""

    method: Annotated[Method, BeforeValidator(_known)] = option(
        "umap", "umap or pacmap.", group=MAP, metavar="METHOD", common=True
    )
    sample: int = option(20_000, "Rows that the map is fitted on.", group=MAP, metavar="N", ge=1)
    seed: int = option(0, "Random seed.", group=MAP, metavar="SEED", shown="0", ge=0)
