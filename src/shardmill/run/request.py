"""A call of a verb, from the command line or from Python: its options, sorted into the tables of a spec."""

from __future__ import annotations

import functools
import inspect
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shardmill.core.console import is_quiet
from shardmill.core.dialect import name_option, shell_command
from shardmill.core.errors import SpecError, UsageError, nearest
from shardmill.plan.options import Options, declared, read_options
from shardmill.plan.shared import refuse_several
from shardmill.plugins import Verb, find, names
from shardmill.sources.held import HeldData, find_held

if TYPE_CHECKING:
    from shardmill.run.result import Run

# Stands for data in memory where only places are checked.
_HELD = "memory"
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for. `work` and `execution` hold what was given, over what the spec file says, and nothing else.

    `how` are the arguments of `run.start`: fresh, resume, quiet, allow_code; and refresh, where it is asked for.
    """

    verb: Verb
    options: Any
    work: dict[str, Any]
    execution: dict[str, Any]
    out: str = ""
    began: float = field(default_factory=time.monotonic)
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def quiet(self) -> bool:
        return bool(self.how.get("quiet"))

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the task, as given so far."""
        return dict(self.work.get("params") or {})

    def of_own_task(self) -> Request:
        """The request with the verb's task, unless a spec names another, which is refused."""
        task = self.work.get("task") or self.verb.name
        if task != self.verb.name:
            raise SpecError(
                f"{self.options.spec}: its task is {task!r}.",
                hint=f"{shell_command('run', '--spec', self.options.spec)} runs any task.",
            )
        return replace(self, work={**self.work, "task": task})

    def with_work(self, **keys: Any) -> Request:
        """The request with other keys of its work."""
        return replace(self, work={**self.work, **keys})

    def carry_out(self) -> Run:
        """Run the tables as they are, whatever the task."""
        from shardmill.run.carrying import carry_out

        return carry_out(self.work, self.execution, self.out, **self.how)


def make_request(verb: Verb, given: Mapping[str, Any], **more: Any) -> Request:
    """Check the options of a call and sort them. None stands for an option that was not given."""
    model: type[Options] = verb.part("options")
    fields = {name.rstrip("_"): name for name in model.model_fields}
    given = {fields.get(name, name): value for name, value in given.items() if not _is_missing(value)}
    _refuse_options_of_others(verb, model, given)
    options = read_options(model, {**given, "source": _HELD} if isinstance(given.get("source"), HeldData) else given)
    work, execution = sort_options(model, given)
    if path := getattr(options, "spec", ""):
        work, execution = _over_file(Path(path), work, execution)
    # A run that exists has its engine.
    if "out" in model.model_fields:
        _check_engine(model, given, execution)
    with_run = {name: getattr(options, name, False) for name in ("fresh", "resume", "refresh")}
    refuse_several(**with_run)
    quiet = getattr(options, "quiet", None)
    # A verb that has no such option does not know it either.
    if not with_run["refresh"]:
        del with_run["refresh"]
    how = {
        **with_run,
        "allow_code": getattr(options, "allow_code", False),
        "quiet": is_quiet(quiet),
        **more,
    }
    return Request(verb, options, work, execution, str(getattr(options, "out", "") or ""), how=how)


def _is_missing(value: Any) -> bool:
    """Whether an option was not given: None, or an empty tuple from the command line."""
    return value is None or (isinstance(value, tuple) and not value)


def start_task(request: Request) -> Run:
    """Run the verb's own task over every item."""
    return request.of_own_task().carry_out()


def call_verb(name: str, given: Mapping[str, Any], **more: Any) -> Any:
    """Call a verb as a function. `more` are further arguments of `run.start`. False is a flag that is not given."""
    verb: Verb = find("verbs", name)
    given = {name: value for name, value in given.items() if value is not False}
    named = next((str(given[name]) for name in ("text", "template", "messages") if given.get(name)), "")
    data = find_held(given.get("source"), named)
    request = make_request(verb, given if data is None else {**given, "source": data}, **more)
    if data is not None and data.text and not (named or verb.runs_code):
        request = request.with_work(text=data.text)
    start = verb.part("start") or start_task
    if data is None or request.out or request.work.get("to") or verb.long_items:
        return start(request)
    from shardmill.run.in_memory import start_in_memory

    return start_in_memory(
        lambda out, execution: start(replace(request, out=out, execution=execution)),
        request.execution,
        quiet=request.options.quiet is True,
    )


def checked(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Let a function of a verb say which option is nearest to one that it does not have."""
    known = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def call(*args: _Given.args, **options: _Given.kwargs) -> _Result:
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{function.__name__}() has no option {name!r}.{_of_others(name)} {nearest(name, known)}"
                )
        return function(*args, **options)

    return call


def sort_options(model: type[Options], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[work]` and `[execution]` that options stand for, each where its declaration says."""
    tables: dict[str, dict[str, Any]] = {part: {} for part in ("work", "params", "to", "execution", "engine")}
    for each in declared(model):
        if each.name in given and each.part in tables and each.name not in ("set_", "engine_options"):
            tables[each.part][each.about.key or each.name] = given[each.name]
    engine = {**(given.get("engine_options") or {}), **dict(key_values(given.get("set_"), "--set", "account=mine"))}
    engine |= tables["engine"]
    work, execution = tables["work"], tables["execution"]
    work |= {name: tables[name] for name in ("params", "to") if tables[name]}
    return work, {**execution, **({"engine_options": engine} if engine else {})}


def key_values(given: Any, flag: str, example: str) -> list[tuple[str, str]]:
    """The keys and values of an option that is given several times."""
    found = []
    for each in given or ():
        key, equals, value = each.partition("=")
        if not (key and equals):
            raise UsageError(f"{flag} {each!r} is not KEY=VALUE.", hint=f"For example: {flag} {example}")
        found.append((key, value))
    return found


def read_parameters(given: Any) -> dict[str, Any]:
    """The values of --param by their keys: TOML, else texts.

    >>> read_parameters(["dims=256", "name=a b"])
    {'dims': 256, 'name': 'a b'}
    """
    return {key: _toml_value(value) for key, value in key_values(given, "--param", "dims=256")}


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _over_file(path: Path, work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of a spec file, with what was given in place of what the file says."""
    from shardmill.plan.spec import read_spec

    tables = read_spec(path)
    for name in ("params", "to"):
        if not isinstance(said := tables["work"].get(name, {}), dict):
            raise SpecError(f"{path}: {name} is not a table.", hint=f"Write [work.{name}] above its keys.")
        if whole := {**said, **work.get(name, {})}:
            work = {**work, name: whole}
    return {**tables["work"], **work}, {**tables["execution"], **execution}


def _refuse_options_of_others(verb: Verb, model: type[Options], given: Mapping[str, Any]) -> None:
    """Name the nearest option for one that the verb does not have, and the verbs that have it."""
    for name in given:
        if name in model.model_fields:
            continue
        known = [each.name for each in declared(model)]
        raise UsageError(f"{verb.name} has no option {name_option(name)}.{_of_others(name)}", hint=nearest(name, known))


def _of_others(name: str) -> str:
    """Which verbs have an option that another does not have."""
    having = [other for other in names("verbs") if _has(other, name)]
    return f" It is an option of {', '.join(having[:3])}." if having else ""


def _has(verb: str, option: str) -> bool:
    model = find("verbs", verb).part("options")
    return model is not None and option in model.model_fields


def _check_engine(model: type[Options], given: Mapping[str, Any], execution: Mapping[str, Any]) -> None:
    """Refuse an option of an engine that is not the one that is used."""
    engine = execution.get("engine") or "local"
    for each in declared(model):
        if each.name in given and each.about.engine and engine not in each.about.engine.split(","):
            own = each.about.engine.partition(",")[0]
            raise UsageError(
                f"{name_option(each.name)} is an option of the engine {own!r}, and the engine is {engine!r}.",
                hint=f"Add --engine {own}, or leave it out.",
            )
