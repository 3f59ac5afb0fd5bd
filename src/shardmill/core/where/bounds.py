"""Whether a condition can be true for any of some rows, of which only bounds are known.

What a condition can be is a set of truths: true, false and None for unknown. It may be too large, never too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

from shardmill.core.where.condition import (
    FLIPPED,
    And,
    Compare,
    Condition,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Named,
    Not,
    Or,
    Value,
)

Truth = bool | None
Truths = frozenset[Truth]

_ANY: Truths = frozenset((True, False, None))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the values in a column that are not null; without them, all of its values are.

    With `others`, there may be values between no bounds: NaN, or texts that cannot be read and count as null.
    """

    least: int | float | str | None
    most: int | float | str | None
    nulls: bool
    others: bool


def can_hold(condition: Condition, columns: Mapping[str, Bounds]) -> bool:
    """Whether it can be true for a row with such columns; nothing is known of a column that is missing here."""
    return True in _truths(condition, columns)


def _truths(condition: Condition, columns: Mapping[str, Bounds]) -> Truths:
    match condition:
        case And(parts) | Or(parts):
            join = _and if isinstance(condition, And) else _or
            found = _truths(parts[0], columns)
            for part in parts[1:]:
                found = frozenset(join(a, b) for a, b in product(found, _truths(part, columns)))
            return found
        case Not(part):
            return frozenset(None if truth is None else not truth for truth in _truths(part, columns))
        case IsNull(Named(name)) if name in columns:
            return _of_null(columns[name])
        case IsNull(Literal(value)):
            return frozenset([value is None])
        case IsTrue(Literal(value)):
            return frozenset([None if value is None else bool(value)])
        case Compare(sign, Named(name), Literal(value)) if name in columns:
            return _of_comparison(sign, columns[name], value)
        case Compare(sign, Literal(value), Named(name)) if name in columns:
            return _of_comparison(FLIPPED[sign], columns[name], value)
        case IsNull() | IsTrue() | Like() | Compare():
            return _ANY


def _and(a: Truth, b: Truth) -> Truth:
    return False if a is False or b is False else None if a is None or b is None else True


def _or(a: Truth, b: Truth) -> Truth:
    return True if a or b else None if a is None or b is None else False


def _of_null(column: Bounds) -> Truths:
    if column.least is None:
        return frozenset([True])
    if isinstance(column.least, str) and column.others:
        return frozenset((True, False))
    return frozenset((True, False)) if column.nulls else frozenset([False])


def _of_comparison(sign: str, column: Bounds, value: Value) -> Truths:
    least, most = column.least, column.most
    if value is None or least is None or most is None:
        return frozenset([None])
    if isinstance(value, bool) or isinstance(value, str) != isinstance(least, str):
        return _ANY
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (least, most)):
        return _ANY
    is_true, is_false = _POSSIBLE[sign](least, most, value)
    found: set[Truth] = {True} if is_true else set()
    # A NaN is different from all numbers, and compares false with them in every other way.
    if is_false or (column.others and not isinstance(least, str)):
        found.add(False)
    if column.nulls or (column.others and isinstance(least, str)):
        found.add(None)
    return frozenset(found)


# Whether a comparison can be true, and false, for a value between two bounds, which need not be values themselves.
_POSSIBLE: dict[str, Callable[..., tuple[bool, bool]]] = {
    "=": lambda least, most, value: (least <= value <= most, True),
    "!=": lambda least, most, value: (True, least <= value <= most),
    "<": lambda least, most, value: (least < value, most >= value),
    "<=": lambda least, most, value: (least <= value, most > value),
    ">": lambda least, most, value: (most > value, least <= value),
    ">=": lambda least, most, value: (most >= value, least < value),
}
