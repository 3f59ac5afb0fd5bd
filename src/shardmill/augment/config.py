"""What is drawn for each item: one distribution per parameter, validated on creation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from shardmill.core.errors import SpecError, nearest

Value = float | int | str | bool
Kind = Literal["uniform", "log-uniform", "normal", "choice"]

STANDARD = ("rotation", "brightness", "noise", "scale", "contrast")
_NEUTRAL = {"rotation": 0.0, "brightness": 1.0, "noise": 0.0, "scale": 1.0, "contrast": 1.0}


@dataclass(frozen=True, slots=True)
class Parameter:
    """How one parameter is drawn. Make one with `uniform`, `log_uniform`, `normal` or `choice`.

    `a` and `b` are low and high, or mean and deviation. With `probability` below 1, the other items get `otherwise`.
    """

    kind: Kind
    a: float = 0.0
    b: float = 0.0
    choices: tuple[Value, ...] = ()
    probability: float = 1.0
    otherwise: Value | None = None

    def check(self, name: str) -> None:
        if self.kind not in get_args(Kind):
            raise SpecError(f"{name}: unknown kind {self.kind!r}.", hint=nearest(str(self.kind), [*get_args(Kind)]))
        if self.kind == "choice":
            if not self.choices:
                raise SpecError(f"{name}: the choices are empty.", hint="Give at least one choice.")
            if len({isinstance(c, str) for c in (*self.choices, *self._else())}) > 1:
                raise SpecError(f"{name}: texts and numbers are mixed.", hint="Choose from one kind of value.")
            finite = [c for c in self.choices if not isinstance(c, str)]
        else:
            finite = [self.a, self.b]
        if any(isinstance(c, complex) or not math.isfinite(c) for c in finite):
            raise SpecError(f"{name}: {self._shown()} is not finite.", hint="Give numbers, not NaN or infinity.")
        if self.kind in ("uniform", "log-uniform") and self.a > self.b:
            raise SpecError(f"{name}: low {self.a:g} is above high {self.b:g}.", hint="Give the lower number first.")
        if self.kind == "uniform" and not math.isfinite(self.b - self.a):
            raise SpecError(f"{name}: {self._shown()} is wider than a float.", hint="Give a narrower range.")
        if self.kind == "log-uniform" and not 1e-300 <= self.a <= self.b <= 1e300:
            raise SpecError(f"{name}: the log-uniform range {self._shown()} is not above 0.", hint="Raise its low end.")
        if self.kind == "normal" and self.b < 0:
            raise SpecError(f"{name}: the deviation {self.b:g} is below 0.", hint="Give 0 or more.")
        if self.kind != "choice" and (isinstance(self.otherwise, str) or not math.isfinite(self.otherwise or 0)):
            raise SpecError(f"{name}: {self.otherwise!r} is not a finite number.", hint="Give a number as `otherwise`.")
        if not 0 <= self.probability <= 1:
            raise SpecError(f"{name}: {self.probability} is not a probability.", hint="Give a number from 0 to 1.")
        if self.probability < 1 and self.otherwise is None and name not in _NEUTRAL:
            raise SpecError(
                f"{name}: with probability {self.probability:g} it needs a value for the other items.",
                hint="Give `otherwise`.",
            )

    def rest(self, name: str) -> Value:
        """The value of items for which the parameter is not drawn."""
        if self.otherwise is not None:
            return self.otherwise
        return _NEUTRAL.get(name, 0.0)

    def _else(self) -> tuple[Value, ...]:
        return () if self.otherwise is None else (self.otherwise,)

    def _shown(self) -> str:
        return str(self.choices) if self.kind == "choice" else f"({self.a}, {self.b})"


def uniform(low: float, high: float, *, probability: float = 1.0, otherwise: float | None = None) -> Parameter:
    """A uniform distribution from low to high."""
    return Parameter("uniform", _number(low), _number(high), probability=probability, otherwise=otherwise)


def log_uniform(low: float, high: float, *, probability: float = 1.0, otherwise: float | None = None) -> Parameter:
    """A log-uniform distribution from low to high: for blurs, learning rates, zooms."""
    return Parameter("log-uniform", _number(low), _number(high), probability=probability, otherwise=otherwise)


def normal_(mean: float, deviation: float, *, probability: float = 1.0, otherwise: float | None = None) -> Parameter:
    """A normal distribution."""
    return Parameter("normal", _number(mean), _number(deviation), probability=probability, otherwise=otherwise)


def choice(choices: Sequence[Value], *, probability: float = 1.0, otherwise: Value | None = None) -> Parameter:
    """One of the choices, with equal probability."""
    return Parameter("choice", choices=tuple(choices), probability=probability, otherwise=otherwise)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SpecError(f"{value!r} is not a number.", hint="A range is two numbers: low and high.") from None


def _parameter(name: str, given: Any) -> Parameter:
    """Check a parameter; a mapping gives its fields, and a pair of numbers is a uniform range."""
    value: Any = given
    if isinstance(given, Mapping):
        plain: dict[str, Any] = {k: tuple(v) if k == "choices" else v for k, v in given.items()}
        try:
            value = Parameter(**plain)
        except TypeError as error:
            raise SpecError(f"{name}: {error}.", hint="Fields: kind, a, b, choices, probability, otherwise.") from None
    if not isinstance(value, Parameter):
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise SpecError(f"{name}: {value!r} is not a range.", hint="Give (low, high), or uniform(low, high).")
        value = uniform(*value)
    parameter: Parameter = value
    parameter.check(name)
    return parameter


@dataclass(frozen=True)
class AugmentationConfig:
    """One distribution for each of the five standard parameters, and for your own under `extra`.

    A pair of numbers is a uniform range. Adding, removing or renaming an extra parameter does not change the others.

    >>> AugmentationConfig(rotation=(-10, 10), extra={"hue": uniform(-0.1, 0.1)}).names
    ('rotation', 'brightness', 'noise', 'scale', 'contrast', 'hue')
    """

    rotation: Any = (-30.0, 30.0)
    brightness: Any = (0.8, 1.2)
    noise: Any = (0.0, 0.1)
    scale: Any = (0.8, 1.2)
    contrast: Any = (0.7, 1.3)
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in STANDARD:
            object.__setattr__(self, name, _parameter(name, getattr(self, name)))
        for name in self.extra:
            if name in (*STANDARD, "sample_id") or not isinstance(name, str) or not name:
                raise SpecError(f"{name!r} cannot be the name of an extra parameter.", hint="Choose another name.")
        object.__setattr__(self, "extra", {n: _parameter(n, p) for n, p in self.extra.items()})
        if self.noise.kind == "uniform" and self.noise.a < 0:
            raise SpecError(f"noise: its deviation {self.noise.a:g} is below 0.", hint="Give 0 or more.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 64:
            raise SpecError(f"The seed {self.seed!r} is not a 64-bit integer.", hint="Choose one from 0 to 2**64 - 1.")

    def __hash__(self) -> int:
        return hash((*(getattr(self, n) for n in STANDARD), self.seed, tuple(sorted(self.extra.items(), key=str))))

    @property
    def names(self) -> tuple[str, ...]:
        return (*STANDARD, *self.extra)

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {**{name: getattr(self, name) for name in STANDARD}, **self.extra}

    def with_seed(self, seed: int | None) -> AugmentationConfig:
        return self if seed is None or seed == self.seed else replace(self, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and `from_dict`."""

        def plain(p: Parameter) -> dict[str, Any]:
            values = {f.name: getattr(p, f.name) for f in fields(Parameter)}
            return {k: list(v) if k == "choices" else v for k, v in values.items()}

        return {
            **{name: plain(getattr(self, name)) for name in STANDARD},
            "seed": self.seed,
            "extra": {name: plain(p) for name, p in self.extra.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AugmentationConfig:
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise SpecError(f"{name!r} is not a field of a config.", hint=nearest(str(name), known))
        return cls(**values)


PRESETS: dict[str, AugmentationConfig] = {
    "mild": AugmentationConfig((-15, 15), (0.9, 1.1), (0, 0.05), (0.9, 1.1), (0.85, 1.15)),
    "moderate": AugmentationConfig((-30, 30), (0.8, 1.2), (0, 0.1), (0.8, 1.2), (0.7, 1.3)),
    "aggressive": AugmentationConfig((-45, 45), (0.7, 1.3), (0, 0.15), (0.7, 1.3), (0.6, 1.4)),
}


def get_preset(name: str) -> AugmentationConfig:
    """The config called "mild", "moderate" or "aggressive"."""
    if name not in PRESETS:
        raise SpecError(f"No preset is called {name!r}.", hint=nearest(str(name), list(PRESETS)))
    return PRESETS[name]
