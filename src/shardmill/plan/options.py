"""Options, each declared once: type, default, help, group, flag, and whether it belongs to the work or the execution.

The command, the function, the keys of a spec and the pages about them are made from these declarations.

    class Reading(WorkOptions):
        text: str = option("", "The text: a field, or a template.", group=SOURCE, metavar="FIELD")

Design: docs/design/verbs-and-options.md
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from shardmill.core.dialect import name_option
from shardmill.core.errors import SpecError, nearest

# Groups of options, in the order in which help shows them.
ARGUMENTS, SOURCE, FUNCTION, STUDY, PAIRS = "Arguments", "Source", "Function", "Study", "Pairs"
PROMPT, PASSAGES, MODEL, LEARNING, HELD_OUT = "Prompt", "Passages", "Model", "Learning", "Evaluation"
ANSWER, MAP, RESULT, TABLE, PLACE, LIMITS = "Answer", "Map", "What is kept", "Table", "Where it runs", "Limits"
CUT, WRITTEN, ORDER = "Where to cut", "Output", "Order and parts"
OTHER = "Options"
GROUPS = (
    *(ARGUMENTS, SOURCE, FUNCTION, STUDY, PAIRS, PROMPT, PASSAGES, MODEL, LEARNING, HELD_OUT, ANSWER, MAP, RESULT),
    *(CUT, WRITTEN, ORDER, TABLE, PLACE, LIMITS),
)

Part = Literal["work", "params", "to", "execution", "engine", "call"]
_Options = TypeVar("_Options", bound="Options")


@dataclass(frozen=True, slots=True)
class About:
    """What is known of an option beside its type and default.

    `flags` are those of the command line; `argument` is the metavar of one without a flag. Help shows `common` ones,
    and all of them if it is asked for all. `shown` is the default as help says it. `only` is where it exists, if not
    everywhere. `accepts` is its type in the signature of the function, if that takes more than the type says. `key` is
    its name in a spec, if that is another; `engine` is the one whose option it is. A `needed` one has no default in
    Python. One that `repeats` is given several times on the command line.
    """

    group: str = OTHER
    metavar: str = ""
    flags: tuple[str, ...] = ()
    argument: bool = False
    common: bool = False
    shown: str = ""
    only: Literal["", "command", "python", "file"] = ""
    accepts: str = ""
    key: str = ""
    engine: str = ""
    needed: bool = False
    positional: bool = False
    repeats: bool = False


def option(
    default: Any,
    help: str,
    *,
    group: str = OTHER,
    metavar: str = "",
    flags: tuple[str, ...] = (),
    argument: bool = False,
    common: bool = False,
    shown: str = "",
    only: Literal["", "command", "python", "file"] = "",
    accepts: str = "",
    key: str = "",
    engine: str = "",
    needed: bool = False,
    positional: bool = False,
    repeats: bool = False,
    **checks: Any,
) -> Any:
    """Declare an option. `checks` are those of pydantic's Field: ge, le, gt, lt, min_length."""
    about = About(
        *(group, metavar, flags, argument, common, shown, only, accepts, key, engine, needed, positional, repeats)
    )
    return Field(default, description=help, json_schema_extra={"about": about}, validate_default=False, **checks)  # type: ignore[dict-item]


class Options(BaseModel):
    """Options that belong to one part of a request. Those that were given are in `model_fields_set`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    part: ClassVar[Part] = "call"

    rare: ClassVar[tuple[str, ...]] = ()
    """Options that are common elsewhere, but not here."""


class WorkOptions(Options):
    """Keys of `[work]`, on which the result depends."""

    part: ClassVar[Part] = "work"


class Params(Options):
    """Parameters of a task: keys of `[work.params]`."""

    part: ClassVar[Part] = "params"


class TableOptions(Options):
    """Keys of `[work.to]`, the table that the result goes into."""

    part: ClassVar[Part] = "to"


class ExecutionOptions(Options):
    """Keys of `[execution]`, which may change between resumes."""

    part: ClassVar[Part] = "execution"


class EngineOptions(Options):
    """Keys of `[execution.engine_options]` that have a flag of their own."""

    part: ClassVar[Part] = "engine"


class CallOptions(Options):
    """What a call does with the run; not a part of any spec."""

    part: ClassVar[Part] = "call"


@dataclass(frozen=True, slots=True)
class Declared:
    """One option of a model."""

    name: str
    field: FieldInfo
    about: About
    part: Part

    @property
    def call(self) -> str:
        """Its name in Python."""
        return self.name.rstrip("_")

    @property
    def help(self) -> str:
        return self.field.description or ""

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return self.about.flags[0] if self.about.flags else f"--{self.name.rstrip('_').replace('_', '-')}"

    @property
    def default(self) -> str:
        """Its default, as help says it; empty if there is none to tell."""
        if self.about.shown:
            return self.about.shown
        value = self.field.default
        return "" if value in (None, "", (), False, {}) or self.field.is_required() else f"{value}"

    @property
    def kind(self) -> Any:
        """Its plain type: int, float, bool, str, or tuple for one that is given several times.

        A number that may be written as a text, such as 64MB, is a text.
        """
        kind = plain_type(self.field.annotation)
        return str if kind in (int, float) and "str" in self.about.accepts else kind

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it may have, if they are few."""
        return _choices(self.field.annotation)


def declared(model: type[Options]) -> Iterator[Declared]:
    """The options of a model that people can give: those of its first base first, each in the order of its class.

    The class that declares an option says which part of a request it belongs to.
    """
    seen: set[str] = set()
    for home in model.__mro__:
        if not issubclass(home, Options):
            continue
        for name in vars(home).get("__annotations__", {}):
            field = model.model_fields.get(name)
            extra = None if field is None or name in seen else field.json_schema_extra
            about = extra.get("about") if isinstance(extra, dict) else None
            if field is not None and isinstance(about, About):
                seen.add(name)
                if name in model.rare:
                    about = replace(about, common=False)
                yield Declared(name, field, about, _part_of(home))


def _part_of(home: type[Options]) -> Part:
    """The part that options of a class belong to."""
    parts = {base.part for base in home.__mro__ if issubclass(base, Options) and Options in base.__bases__}
    if len(parts) > 1:
        raise TypeError(f"{home.__name__} declares options and has bases of several parts: {', '.join(sorted(parts))}")
    return home.part


def plain_type(annotation: Any) -> Any:
    """The type that a value on the command line has.

    >>> plain_type(int | None), plain_type(tuple[str, ...]), plain_type(Literal["a", "b"])
    (<class 'int'>, <class 'tuple'>, <class 'str'>)
    """
    origin = get_origin(annotation)
    if origin is Annotated:
        return plain_type(get_args(annotation)[0])
    if origin in (Union, UnionType):
        kinds = [each for each in get_args(annotation) if each is not NoneType]
        return plain_type(kinds[0]) if len(kinds) == 1 else str
    if origin is Literal:
        return str
    if origin in (tuple, list):
        return tuple
    return annotation if annotation in (int, float, bool, str) else str


def _choices(annotation: Any) -> tuple[str, ...]:
    origin = get_origin(annotation)
    if origin is Literal:
        return tuple(map(str, get_args(annotation)))
    if origin in (Union, UnionType, Annotated):
        return next((found for each in get_args(annotation) if (found := _choices(each))), ())
    return ()


def read_options(model: type[_Options], given: Mapping[str, Any]) -> _Options:
    """Check the options of a call, or say which is wrong, in the words of the caller."""
    try:
        return model(**given)
    except ValidationError as error:
        raise explain(error, name_option, [each.name for each in declared(model)]) from error


def explain(error: ValidationError, call: Any, known: list[str]) -> SpecError:
    """The first fault of some values: what is wrong, the value seen, and the nearest name. `call` names an option."""
    found = error.errors(include_url=False)
    # A misspelt key is also a missing one; its name says more.
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    name = ".".join(str(part) for part in first["loc"] if not isinstance(part, str) or "[" not in part)
    if first["type"] == "extra_forbidden":
        return SpecError(f"There is no option {call(name)}.", hint=nearest(name, known))
    if first["type"] == "missing":
        return SpecError(f"No {call(name)} was given.")
    if not name:
        said = str(first.get("ctx", {}).get("error", first["msg"]))
        return SpecError(f"{said[:1].upper()}{said[1:]}.")
    return SpecError(f"{call(name)}: {say_wrong(first)}.")


_WRONG = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "string_too_short": "must not be empty",
    "dict_type": "must be a table of names and values",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
}


def say_wrong(wrong: ErrorDetails) -> str:
    """What is wrong with a value, in plain words; what checks of ours say, as they say it."""
    about, value = wrong.get("ctx", {}), wrong.get("input")
    got = f" (got {value if isinstance(value, str) and value.lstrip('-').isdecimal() else repr(value)})"
    if "error" in about:
        said = str(about["error"])
        return said if repr(value) in said or str(value) in said else said + got
    if wrong["type"] in _BOUNDS:
        name, text = _BOUNDS[wrong["type"]]
        return text.format(_number(about[name])) + got
    if wrong["type"] == "literal_error":
        return f"must be {about['expected']}{got}"
    return _WRONG.get(wrong["type"], wrong["msg"][:1].lower() + wrong["msg"][1:]) + got


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
