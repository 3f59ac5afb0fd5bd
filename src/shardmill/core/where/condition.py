"""A condition as a tree. Its values are three: true, false and unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# A number, a text, true or false, or None for null.
Value = int | float | str | bool | None

# What an operator becomes if both sides change places.
FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Named:
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value


Operand = Named | Literal


@dataclass(frozen=True, slots=True)
class Compare:
    """`operator` is one of = != < <= > >=."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: Operand


@dataclass(frozen=True, slots=True)
class Like:
    """`pattern` is a regular expression of the whole text."""

    operand: Operand
    pattern: str


@dataclass(frozen=True, slots=True)
class IsTrue:
    """A column of true and false, or one of these words, as a condition."""

    operand: Operand


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


Condition = Compare | IsNull | Like | IsTrue | Not | And | Or


def columns_of(condition: Condition) -> tuple[str, ...]:
    """The names of its columns, each once, in order."""
    return tuple(dict.fromkeys(_names(condition)))


def _names(condition: Condition) -> Iterator[str]:
    match condition:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _names(part)
        case Not(part):
            yield from _names(part)
        case Compare(_, left, right):
            yield from (each.name for each in (left, right) if isinstance(each, Named))
        case IsNull(operand) | IsTrue(operand) | Like(operand, _):
            if isinstance(operand, Named):
                yield operand.name
