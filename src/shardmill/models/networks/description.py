"""What a network is made of: the names of its weights, and the numbers that a family or a config gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix and its bias, "" for none. `part` is (i, n) for the i-th of n matrices that are stored as one."""

    weight: str
    bias: str = ""
    part: tuple[int, int] = (0, 1)


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm; without its mean (`centred`) it is T5's."""

    weight: str
    eps: float
    bias: str = ""
    centred: bool = True


@dataclass(frozen=True, slots=True)
class Buckets:
    """A bias of attention by distance: a table with a row per bucket of distances and a column per head."""

    weight: str
    count: int
    farthest: int


@dataclass(frozen=True, slots=True)
class Attention:
    """`reach` is how many tokens a token sees to each side, -1 for all; `theta` is the base of rotary positions."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    heads: int
    scale: float
    reach: int = -1
    theta: float = 0.0
    buckets: Buckets | None = None


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The matrices after attention: `down(activation(up(x)))`, times `gate(x)` before `down` if there is one."""

    up: Linear
    down: Linear
    activation: str
    gate: Linear | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    attention: Attention
    attention_norm: Norm | None
    feed: FeedForward
    feed_norm: Norm


@dataclass(frozen=True, slots=True)
class Positions:
    """A table with a row per position. With `after`, positions count the ids that are not it, from the next one on."""

    weight: str
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """What a re-ranker or a reader computes of the hidden states: of the first token, of their mean, or of each.

    Each step is a matrix, the activation after it ("" for none) and a norm after that.
    """

    of: str
    steps: tuple[tuple[Linear, str, Norm | None], ...]


@dataclass(frozen=True, slots=True)
class EncoderNetwork:
    """An encoder. `norms_first` are norms before attention and feed, instead of after the sums.

    `longest` is the number of tokens that rotary positions are meant for.
    """

    words: str
    layers: tuple[Layer, ...]
    norm: Norm | None = None
    positions: Positions | None = None
    types: str = ""
    project: Linear | None = None
    norms_first: bool = False
    last_norm: Norm | None = None
    head: Head | None = None
    longest: int = 0

    def weights(self) -> set[str]:
        """The names of all weights that it uses."""
        return {name for name in _names(self) if name}


def _names(part: Any) -> Iterator[str]:
    if isinstance(part, tuple):
        for each in part:
            yield from _names(each)
    elif is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name in _NAMES and isinstance(value, str):
                yield value
            elif not isinstance(value, str):
                yield from _names(value)


_NAMES = {"weight", "bias", "words", "types"}
