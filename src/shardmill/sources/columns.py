"""The types of id and kept columns: named by the user, inferred from a sample, and applied to values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from shardmill.core.arrowtypes import NAMED, arrow_type
from shardmill.core.template import is_unicode
from shardmill.core.where.condition import columns_of
from shardmill.core.where.parsing import parse_condition
from shardmill.sources.base import Fields, SourceStat

Convert = Callable[[object], object]


@dataclass(frozen=True, slots=True)
class Column:
    """One id or kept column; `convert` raises ValueError for a value that the type cannot hold.

    If it `decides`, the condition of `where` asks for it.
    """

    name: str
    type: pa.DataType
    convert: Convert
    decides: bool = False

    def refusal(self, value: object) -> str:
        seen = json.dumps(value, ensure_ascii=False, default=str)
        seen = seen if len(seen) <= 40 else seen[:40] + "…"
        return f"'{self.name}' is {seen}, which {self.type} cannot hold; set its type with --keep {self.name}:string"


def column_names(fields: Fields) -> list[str]:
    """The id columns, the kept ones, then those that only the task reads, each once."""
    return list(dict.fromkeys((*fields.id, *(split_keep(entry)[0] for entry in fields.keep), *fields.wanted)))


def chosen_types(fields: Fields) -> dict[str, str]:
    """The types that the user set."""
    return {name: kind for name, kind in map(split_keep, fields.keep) if kind}


def split_keep(entry: str) -> tuple[str, str]:
    """Name and type of a `--keep` entry; text after a colon is part of the name unless it is a type.

    >>> split_keep("price:float64"), split_keep("dc:title")
    (('price', 'double'), ('dc:title', ''))
    """
    name, _, kind = entry.rpartition(":")
    return (name, str(NAMED[kind])) if name and kind in NAMED else (entry, "")


def build_columns(stat: SourceStat, fields: Fields) -> list[Column]:
    chosen = chosen_types(fields)
    kinds = {name: arrow_type(stat.columns[name]) for name in column_names(fields)}
    asked = columns_of(parse_condition(fields.where)) if fields.where else ()
    return [Column(name, kind, converter(kind, parse=name in chosen), name in asked) for name, kind in kinds.items()]


def infer_type(values: Iterable[object]) -> str:
    """The type that holds JSON values of these kinds.

    >>> infer_type([1, None, 2.5]), infer_type([1, "a"]), infer_type([])
    ('double', 'string', 'string')
    """
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) == 1:
        return kinds.pop()
    return "double" if kinds == {"int64", "double"} else "string"


def _kind(value: object) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int64" if -(2**63) <= value < 2**63 else "string"
        case float():
            return "double"
    return "string"


def converter(kind: pa.DataType, parse: bool = False) -> Convert:
    """A function that converts a JSON or CSV value to this type; with `parse`, numbers may be written as text."""
    if pa.types.is_string(kind):
        return _to_string
    if pa.types.is_boolean(kind):
        exact: Convert = _to_bool
    elif pa.types.is_integer(kind):
        exact = _to_integer(kind.bit_width)
    elif pa.types.is_floating(kind):
        exact = _to_float(kind.bit_width)
    else:
        return _refuse

    def convert(value: object) -> object:
        if isinstance(value, str):
            if not parse:
                raise ValueError(value)
            value = _parse(value)
        return None if value is None else exact(value)

    return convert


def _refuse(value: object) -> object:
    raise ValueError(value)


def _parse(text: str) -> object:
    word = text.strip().lower()
    if not word:
        return None
    if word in ("true", "false"):
        return word == "true"
    if "_" in word:
        raise ValueError(text)
    try:
        return int(word)
    except ValueError:
        return float(word)


def _to_string(value: object) -> object:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if not is_unicode(text):
        raise ValueError(text)
    return text


def _to_bool(value: object) -> object:
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _to_integer(bits: int) -> Convert:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def convert(value: object) -> object:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value < high:
            raise ValueError(value)
        return value

    return convert


def _to_float(bits: int) -> Convert:
    limit = 3.4028235677973366e38 if bits == 32 else math.inf

    def convert(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(value)
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(value) from None
        if (isinstance(value, int) and bits == 64 and number != value) or (limit <= abs(number) < math.inf):
            raise ValueError(value)
        return number

    return convert
