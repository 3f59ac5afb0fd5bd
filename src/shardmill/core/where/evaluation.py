"""Finds the rows of an Arrow batch for which a condition holds, with the three values of SQL.

A comparison of numbers is exact, whatever their types; NaN is equal to nothing, and neither less nor greater. Texts
are compared by their code points.
"""

from __future__ import annotations

import datetime
import decimal
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.errors import SourceError
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

NUMBER, TEXT, BOOLEAN, DATE, TIME = "a number", "text", "true or false", "a date", "a time"

_COMPARE: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_PYTHON = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMERIC = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*$"
_WHOLE = r"^\s*[+-]?[0-9]{1,18}\s*$"


def holds(condition: Condition, rows: pa.RecordBatch, *, spelled: bool = False) -> pa.BooleanArray:
    """For each row true, false, or null for unknown.

    With `spelled`, numbers are written as texts, as in a CSV: a text that is compared with a number is read as one, and
    is null if it is none.
    """
    found = _Batch(rows, spelled).truth(condition)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def check_types(condition: Condition, schema: pa.Schema, *, spelled: bool = False) -> None:
    """Refuse a condition that compares what cannot be compared in columns of these types."""
    holds(condition, pa.RecordBatch.from_pylist([], schema), spelled=spelled)


def kind_of(kind: pa.DataType) -> str:
    """What a type can be compared with; "" for none."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return NUMBER
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return TEXT
    if pa.types.is_boolean(kind):
        return BOOLEAN
    return DATE if pa.types.is_date(kind) else TIME if pa.types.is_timestamp(kind) else ""


@dataclass(slots=True)
class _Batch:
    rows: pa.RecordBatch
    spelled: bool
    _read: dict[str, pa.Array] = field(default_factory=dict)

    def truth(self, condition: Condition) -> Any:
        match condition:
            case And(parts) | Or(parts):
                join = pc.and_kleene if isinstance(condition, And) else pc.or_kleene
                found = self.truth(parts[0])
                for part in parts[1:]:
                    found = join(found, self.truth(part))
                return found
            case Not(part):
                return pc.invert(self.truth(part))
            case IsNull(Named(name)):
                return pc.is_null(self.column(name))
            case IsNull(Literal(value)):
                return self.all(value is None)
            case IsTrue(Named(name)):
                if kind_of(self.column(name).type) != BOOLEAN:
                    raise SourceError(f"--where: {name!r} is no condition: it holds {self.describe(name)}.")
                return self.column(name)
            case IsTrue(Literal(value)):
                return self.all(None if value is None else bool(value))
            case Like(operand, pattern):
                return self.like(operand, pattern)
            case Compare():
                return self.compare(condition)

    def all(self, value: bool | None) -> pa.BooleanArray:
        return pa.nulls(self.rows.num_rows, pa.bool_()) if value is None else pa.repeat(value, self.rows.num_rows)

    def valid(self, column: pa.Array, value: bool) -> Any:
        """The same value for each row that is not null."""
        return pc.if_else(pc.is_valid(column), pa.scalar(value), pa.scalar(None, pa.bool_()))

    def column(self, name: str) -> pa.Array:
        if name not in self._read:
            column = self.rows.column(name)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            self._read[name] = column.cast(pa.large_string()) if kind_of(column.type) == TEXT else column
        return self._read[name]

    def describe(self, name: str) -> str:
        return kind_of(self.column(name).type) or f"{self.column(name).type}, which cannot be compared"

    def like(self, operand: Named | Literal, pattern: str) -> Any:
        if isinstance(operand, Literal):
            if operand.value is None:
                return self.all(None)
            if not isinstance(operand.value, str):
                raise SourceError(f"--where: LIKE compares texts, and {operand.value!r} is none.")
            one = pc.match_substring_regex(pa.array([operand.value]), pattern)[0].as_py()
            return self.all(bool(one))
        column = self.column(operand.name)
        if kind_of(column.type) != TEXT:
            raise SourceError(
                f"--where: LIKE compares texts, and {operand.name!r} holds {self.describe(operand.name)}."
            )
        return pc.match_substring_regex(column, pattern)

    def compare(self, asked: Compare) -> Any:
        match asked:
            case Compare(sign, Named(left), Named(right)):
                return self.compare_columns(sign, left, right)
            case Compare(sign, Named(name), Literal(value)):
                return self.compare_value(sign, name, value)
            case Compare(sign, Literal(value), Named(name)):
                return self.compare_value(FLIPPED[sign], name, value)
            case Compare(sign, Literal(first), Literal(second)):
                return self.compare_literals(sign, first, second)

    def compare_literals(self, sign: str, left: Value, right: Value) -> Any:
        if left is None or right is None:
            return self.all(None)
        if _kind_of_value(left) != _kind_of_value(right):
            raise SourceError(f"--where: {_spell(left)} and {_spell(right)} cannot be compared.")
        return self.all(bool(_PYTHON[sign](left, right)))

    def compare_columns(self, sign: str, left: str, right: str) -> Any:
        columns = [self.column(left), self.column(right)]
        kinds = [kind_of(column.type) for column in columns]
        if kinds[0] != kinds[1] or not kinds[0]:
            raise SourceError(
                f"--where: {left!r} and {right!r} cannot be compared: "
                f"one holds {self.describe(left)}, the other {self.describe(right)}."
            )
        types = [column.type for column in columns]
        if kinds[0] == NUMBER and types[0] != types[1]:
            exact = all(pa.types.is_integer(kind) for kind in types)
            common = pa.decimal128(38, 0) if exact else pa.float64()
            columns = [column.cast(common, safe=False) for column in columns]
        return _COMPARE[sign](*columns)

    def compare_value(self, sign: str, name: str, value: Value) -> Any:
        column = self.column(name)
        kind, other = kind_of(column.type), _kind_of_value(value)
        if not kind or not (
            value is None
            or kind == other
            or (kind in (DATE, TIME) and other == TEXT)
            or (kind == TEXT and other == NUMBER and self.spelled)
        ):
            raise SourceError(
                f"--where: {name!r} holds {self.describe(name)}; {_spell(value)} is {other}.",
                hint=f"If it holds numbers, name its type: --keep {name}:double" if other == NUMBER else "",
            )
        if value is None:
            return self.all(None)
        if kind in (DATE, TIME):
            return _COMPARE[sign](column, _read_time(name, column.type, str(value)))
        if kind != NUMBER and other == NUMBER:
            return self.compare_spelled(sign, column, value)
        if kind == NUMBER:
            return self.compare_number(sign, column, value)
        return _COMPARE[sign](column, pa.scalar(value, column.type))

    def compare_number(self, sign: str, column: pa.Array, value: Any) -> Any:
        if pa.types.is_decimal(column.type):
            return _COMPARE[sign](column, pa.scalar(decimal.Decimal(repr(value))))
        if pa.types.is_floating(column.type):
            column, near = column.cast(pa.float64()), float(value)
            outside = near != value
        else:
            least, most = _range(column.type)
            near = math.floor(value)
            outside = near != value
            if near > most or near < least:
                return self.valid(column, sign == "!=" or sign in (("<", "<=") if near > most else (">", ">=")))
        if outside:
            # No value of the column is this number: those below it are up to `near`, or below `near`.
            if sign in ("=", "!="):
                return self.valid(column, sign == "!=")
            below = near < value
            sign = ("<=" if below else "<") if sign in ("<", "<=") else (">" if below else ">=")
        return _COMPARE[sign](column, pa.scalar(near, column.type))

    def compare_spelled(self, sign: str, column: pa.Array, value: Any) -> Any:
        """Texts as numbers; whole ones exactly, others as doubles."""
        nothing = pa.scalar(None, column.type)
        is_whole = pc.fill_null(pc.match_substring_regex(column, _WHOLE), False)
        is_other = pc.and_not(pc.fill_null(pc.match_substring_regex(column, _NUMERIC), False), is_whole)
        whole, other = (_trim(pc.if_else(mask, column, nothing)) for mask in (is_whole, is_other))
        found = self.compare_number(sign, whole.cast(pa.int64()), value)
        return pc.coalesce(found, self.compare_number(sign, other.cast(pa.float64()), value))


def _trim(numbers: pa.Array) -> pa.Array:
    return pc.utf8_ltrim(pc.utf8_trim_whitespace(numbers), "+")


def _range(kind: pa.DataType) -> tuple[int, int]:
    bits = kind.bit_width
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)


def _kind_of_value(value: Value) -> str:
    return BOOLEAN if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER


def _spell(value: Value) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _read_time(name: str, kind: pa.DataType, text: str) -> pa.Scalar:
    try:
        when: Any = datetime.datetime.fromisoformat(text)
        if pa.types.is_date(kind):
            if (when.hour, when.minute, when.second, when.microsecond, when.tzinfo) != (0, 0, 0, 0, None):
                raise ValueError(text)
            return pa.scalar(when.date(), pa.date32())
        if (when.tzinfo is None) != (kind.tz is None):
            if kind.tz is None:
                raise ValueError(text)
            when = when.replace(tzinfo=datetime.UTC)
    except ValueError:
        example = "2026-12-31" if pa.types.is_date(kind) else "2026-12-31T18:00:00"
        raise SourceError(
            f"--where: {name!r} holds {kind_of(kind)}, and {text!r} is none.", hint=f"Write it like '{example}'."
        ) from None
    return pa.scalar(when, pa.timestamp("us", kind.tz))
