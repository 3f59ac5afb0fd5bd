"""What a study is: everything that its trials depend on, checked when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import ValidationInfo, field_validator, model_validator

from shardmill.core.errors import SpecError, nearest
from shardmill.plan.limits import parse_duration
from shardmill.plan.options import STUDY, Params, option
from shardmill.verbs.tune.space import Choices, NumberRange, Space, Value, parse_space

Direction = Literal["minimize", "maximize"]
SAMPLERS = ("tpe", "random", "grid", "gp", "cmaes", "nsgaii", "nsgaiii", "qmc")
PRUNERS = ("none", "median", "percentile", "patient", "threshold", "wilcoxon", "halving", "hyperband")
# Columns of a trial's row that are neither a metric nor a parameter.
STATE, REPORTS, SECONDS = "state", "reports", "seconds"
_TAKEN = ("row", STATE, REPORTS, SECONDS)


class StudySettings(Params):
    """The parameters of the task `tune`: an objective or a task, its space, and how the space is searched.

    Trials of one `generation` know the results of all earlier generations and of no other trial. `limit_s` ends the
    study: trials that begin later are skipped; `trial_limit_s` ends a trial that asks whether to stop. `code` is the
    text of the objective's module, if it is named by its file.
    """

    space: dict[str, Any]
    call: str = option("", "The objective: package.module:function or file.py:function.", group=STUDY, only="file")
    code: str = ""
    task: str = option("", "The task that a trial runs, in place of an objective: train.", group=STUDY, only="file")
    params: dict[str, Any] = option({}, "Parameters of the task that are the same in all trials.", only="file")
    metrics: dict[str, Direction] = option(
        {"value": "minimize"}, "The metrics, each with its direction.", group=STUDY, only="file", min_length=1
    )
    seed: int = option(0, "Random seed of the sampler.", group=STUDY, only="file", ge=0, lt=1 << 32)
    generation: int = option(8, "Number of trials that are sampled together.", group=STUDY, only="file", ge=1)
    sampler: dict[str, Any] = option(
        {"name": "tpe"}, f"One of {', '.join(SAMPLERS)}; or a table with its options.", group=STUDY, only="file"
    )
    pruner: dict[str, Any] = option(
        {"name": "none"}, f"One of {', '.join(PRUNERS)}; or a table with its options.", group=STUDY, only="file"
    )
    start: list[dict[str, Any]] = option([], "Points to try first.", group=STUDY, only="file")
    time_limit: str | None = option(None, "Time after which no trial begins: 2h.", group=STUDY, only="file")
    trial_time_limit: str | None = option(None, "Time after which a trial is ended: 10min.", group=STUDY, only="file")

    @field_validator("sampler", "pruner", mode="before")
    @classmethod
    def _named(cls, value: Any, about: ValidationInfo) -> Any:
        """A name alone, or a table with the name and options of Optuna's class."""
        if isinstance(value, Mapping) and "name" in value:
            return value
        if not isinstance(value, str):
            what, first = about.field_name, "tpe" if about.field_name == "sampler" else "median"
            raise SpecError(
                f"The {what} has no name (it is {value!r}).",
                hint=f'Write {what} = "{first}", or {what} = {{ name = "{first}", … }} with options.',
            )
        return {"name": value}

    @field_validator("metrics", mode="before")
    @classmethod
    def _directions(cls, value: Any) -> Any:
        wrong = [] if isinstance(value, Mapping) and value else [("metrics", value)]
        wrong += [] if wrong else [(f"metrics.{n}", way) for n, way in value.items() if way not in get_args(Direction)]
        for name, seen in wrong:
            raise SpecError(f"{name} is {seen!r}.", hint='Write metrics = { loss = "minimize" }, or "maximize".')
        return value

    @field_validator("start", mode="before")
    @classmethod
    def _points(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple) or not all(isinstance(point, Mapping) for point in value):
            raise SpecError(f"start is {value!r}.", hint="Write a list of points: start = [{ rate = 0.01 }].")
        return value

    @field_validator("time_limit", "trial_time_limit")
    @classmethod
    def _duration(cls, value: str | None, about: ValidationInfo) -> str | None:
        if value is not None:
            try:
                parse_duration(value)
            except ValueError as error:
                raise SpecError(f"{about.field_name}: {error}.", hint=f'Write {about.field_name} = "2h".') from error
        return value

    @model_validator(mode="after")
    def _fits(self) -> StudySettings:
        if bool(self.call) == bool(self.task):
            raise SpecError(
                "A study needs a call or a task, one of them.",
                hint='Write call = "package.module:objective" or task = "train" in [work].',
            )
        if self.call and self.params:
            raise SpecError(
                "[work.params] are those of a task, and the study has a call.",
                hint="Write fixed values into the objective, or as a list of one in [space].",
            )
        for what, known in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            if (name := getattr(self, what).get("name")) not in known:
                raise SpecError(f"No {what} is called {name!r}.", hint=f"Available: {', '.join(known)}.")
        if len(self.metrics) > 1 and self.pruner["name"] != "none":
            raise SpecError("A study with several metrics cannot prune.", hint="Leave out the pruner.")
        if len(self.metrics) > 1 and self.sampler["name"] == "cmaes":
            raise SpecError("CMA-ES has one metric.", hint='For several: sampler = "nsgaii", or "tpe".')
        self._check_space()
        return self

    def _check_space(self) -> None:
        space = self.ranges
        for name in (*self.metrics, *space):
            if name in _TAKEN or (name in space and name in self.metrics):
                raise SpecError(f"{name!r} is the name of another column of the trials.", hint="Choose another name.")
        for name in space:
            if name in self.params:
                raise SpecError(f"{name} is both in [space] and in [work.params].", hint="Leave one of them out.")
        if self.sampler["name"] == "grid":
            _check_countable(space)
        for point in self.start:
            for name, value in point.items():
                if name not in space:
                    raise SpecError(f"The start {name} = {value!r} is not in the space.", hint=nearest(name, [*space]))
                if not space[name].holds(_plain(space[name], value)):
                    raise SpecError(
                        f"The start {name} = {value!r} is not in the space.", hint=f"{name} is {space[name]}."
                    )

    @property
    def ranges(self) -> Space:
        return parse_space(self.space)

    @property
    def example(self) -> dict[str, Value]:
        """Some point of the space: what a task must accept."""
        return {n: each.values[0] if isinstance(each, Choices) else each.low for n, each in self.ranges.items()}

    def corners(self) -> Iterator[tuple[str, Value, dict[str, Value]]]:
        """Every choice and both ends of every range, each as its name, its value, and the example with it."""
        for name, each in self.ranges.items():
            for value in each.values if isinstance(each, Choices) else (each.low, each.high):
                yield name, value, {**self.example, name: value}

    @property
    def starts(self) -> list[dict[str, Value]]:
        """The starting points, with numbers of the type of their range."""
        space = self.ranges
        return [{name: _plain(space[name], value) for name, value in point.items()} for point in self.start]

    @property
    def limit_s(self) -> float | None:
        return None if self.time_limit is None else parse_duration(self.time_limit)

    @property
    def trial_limit_s(self) -> float | None:
        return None if self.trial_time_limit is None else parse_duration(self.trial_time_limit)

    @property
    def columns(self) -> dict[str, str]:
        """The columns of a trial's row with their types."""
        made = {STATE: "string", **dict.fromkeys(self.metrics, "double")}
        made |= {name: each.kind for name, each in self.ranges.items()}
        return {**made, REPORTS: "string", SECONDS: "double"}


def _plain(each: NumberRange | Choices, value: Any) -> Any:
    return float(value) if each.kind == "double" and isinstance(value, int) else value


def _check_countable(space: Mapping[str, NumberRange | Choices]) -> None:
    for name, each in space.items():
        if isinstance(each, NumberRange) and each.kind == "double" and each.step is None:
            raise SpecError(f"space.{name} has no step, so a grid has no end.", hint="Write step = …, or a list.")
