"""The space of a study: the range or the choices of each parameter, as plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import SpecError, nearest

Value = float | int | str | bool
_KEYS = ("low", "high", "log", "step")
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Numbers from `low` up to and including `high`: integers if both are, by a `step`, or on a `log` scale."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def kind(self) -> str:
        return "int64" if isinstance(self.low, int) and isinstance(self.high, int) else "double"

    def __str__(self) -> str:
        return f"from {self.low} to {self.high}{f' by {self.step}' if self.step else ''}"

    def holds(self, value: Any) -> bool:
        """Whether a value is in the range, on its steps."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        steps = (value - self.low) / (self.step or 1)
        return abs(steps - round(steps)) < 1e-8 if self.step or self.kind == "int64" else True


@dataclass(frozen=True, slots=True)
class Choices:
    """One of several values of one type."""

    values: tuple[Value, ...]

    @property
    def kind(self) -> str:
        names = {bool: "bool", int: "int64", str: "string"}
        kinds = {type(value) for value in self.values}
        return names[kinds.pop()] if len(kinds) == 1 and not kinds & {float} else "double"

    def __str__(self) -> str:
        return f"one of {', '.join(map(repr, self.values))}"

    def holds(self, value: Any) -> bool:
        return any(type(value) is type(own) and value == own for own in self.values)


Space = Mapping[str, NumberRange | Choices]


def count_points(space: Space) -> int:
    """The number of combinations in a space whose ranges have steps or whole numbers.

    >>> count_points({"layers": NumberRange(1, 6, step=2), "way": Choices(("a", "b"))})
    6
    """
    sizes = (
        len(each.values) if isinstance(each, Choices) else round((each.high - each.low) / (each.step or 1)) + 1
        for each in space.values()
    )
    return math.prod(sizes)


def parse_space(table: Mapping[str, Any]) -> dict[str, NumberRange | Choices]:
    """Read the table `[space]`: a list is a choice, and a table with `low` and `high` is a range.

    >>> parse_space({"rate": {"low": 1e-5, "high": 0.1, "log": True}, "layers": {"low": 1, "high": 4}})["layers"]
    NumberRange(low=1, high=4, log=False, step=None)
    """
    if not table:
        raise SpecError("The space of the study is empty.", hint="Write [space] with one line per parameter.")
    return {name: _parse(name, each) for name, each in table.items()}


def _parse(name: str, each: Any) -> NumberRange | Choices:
    if isinstance(each, list | tuple):
        return _parse_choices(name, tuple(each))
    if not isinstance(each, Mapping) or not {"low", "high"} <= each.keys():
        raise SpecError(
            f"space.{name} is neither a range nor a list of choices (it is {each!r}).",
            hint=f'Write {name} = {{ low = 1e-5, high = 1e-2, log = true }} or {name} = ["one", "two"].',
        )
    if unknown := sorted(each.keys() - set(_KEYS)):
        raise SpecError(f"space.{name} has no key {unknown[0]!r}.", hint=nearest(unknown[0], list(_KEYS)))
    return _parse_range(name, each["low"], each["high"], each.get("log", False), each.get("step"))


def _parse_range(name: str, low: Any, high: Any, log: Any, step: Any) -> NumberRange:
    for key, value in (("low", low), ("high", high), *((("step", step),) if step is not None else ())):
        _check_size(name, key, value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SpecError(f"space.{name}: {key} is not a finite number (it is {value!r}).")
    if not isinstance(log, bool):
        raise SpecError(f"space.{name}: log is neither true nor false (it is {log!r}).")
    if low > high:
        raise SpecError(
            f"space.{name}: the range from {low} to {high} is empty.", hint="Write the smaller bound first."
        )
    if not math.isfinite(high - low):
        raise SpecError(f"space.{name}: the range from {low} to {high} is too wide.", hint="Write smaller bounds.")
    if log and (low <= 0 or step is not None):
        wrong = f"low is {low}" if low <= 0 else f"step is {step}"
        raise SpecError(f"space.{name}: {wrong}.", hint="A range on a log scale begins above 0 and has no step.")
    whole = isinstance(low, int) and isinstance(high, int)
    if step is not None and (step <= 0 or (whole and not isinstance(step, int))):
        raise SpecError(f"space.{name}: step is {step}.", hint="A step is above 0, and whole between whole bounds.")
    if step is not None:
        steps = math.floor((high - low) / step + 1e-9)
        if not steps and low < high:
            raise SpecError(
                f"space.{name}: step is {step}, and the range from {low} to {high} has no room for it.",
                hint=f"Write a step of at most {high - low:g}; for one value only, {name} = [{low}].",
            )
        high = low + step * steps
    return NumberRange(low, high, log, step) if whole else NumberRange(float(low), float(high), log, step)


def _parse_choices(name: str, values: tuple[Any, ...]) -> Choices:
    if not values:
        raise SpecError(f"space.{name} has no choice.", hint='List the values: ["one", "two"].')
    for value in values:
        if not isinstance(value, bool | int | float | str):
            raise SpecError(
                f"space.{name}: {value!r} cannot be a choice.", hint="Use texts, numbers, or true and false."
            )
        _check_size(name, "a choice", value)
    kinds = {type(value) for value in values}
    if len(kinds - {float} if kinds <= {int, float} else kinds) > 1:
        raise SpecError(f"space.{name} has choices of several types.", hint="Use texts, numbers, or true and false.")
    if kinds & {float} and not all(map(math.isfinite, values)):
        raise SpecError(f"space.{name} has a choice that is not a finite number.")
    if len(set(values)) < len(values):
        twice = next(value for i, value in enumerate(values) if value in values[:i])
        raise SpecError(f"space.{name} has a choice twice: {twice!r}.", hint="Leave one of them out.")
    return Choices(tuple(map(float, values)) if float in kinds else values)


def _check_size(name: str, what: str, value: Any) -> None:
    """Trials are rows of a table, with columns of 64 bits."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise SpecError(
            f"space.{name}: {what} is beyond {_LARGEST:,}, where whole numbers end.",
            hint="Write smaller ones, or numbers with a point: 1.0e20.",
        )
