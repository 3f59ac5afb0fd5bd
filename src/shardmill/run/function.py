"""A verb as a Python function: its signature and docstring, made from its options.

Ours are written to `verbs/functions.py` by `tools/functions.py`, for editors and mypy. That of an installed package is
made when it is asked for: `shardmill.NAME`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from shardmill.core.dialect import speak, speaking
from shardmill.plan.options import Declared, declared, plain_type
from shardmill.plan.values import SOURCES
from shardmill.plugins import Verb
from shardmill.run.request import call_verb, checked

_DATA = " Or data in memory: a frame, an Arrow table, a dataset, a list or an iterator of texts or dicts."


def make_function(verb: Verb) -> Callable[..., Any]:
    """The function of a verb that an installed package brings."""
    options = python_options(verb)
    signature = inspect.Signature([_parameter(each) for each in options], return_annotation=returns(verb))

    def function(*args: Any, **given: Any) -> Any:
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{function_name(verb)}(): {error}.") from None
        return call_verb(verb.name, bound.arguments)

    function.__name__ = function.__qualname__ = function_name(verb)
    function.__doc__ = docstring(verb, options)
    function.__module__ = verb.options.partition(":")[0]
    function.__signature__ = signature  # type: ignore[attr-defined]
    return checked(function)


def function_name(verb: Verb) -> str:
    """The name of a verb as Python has it."""
    return verb.name.replace("-", "_")


def _parameter(each: Declared) -> inspect.Parameter:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_positional(each) else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if each.about.needed else False if is_flag(each) else None
    return inspect.Parameter(each.call, kind, default=default, annotation=type_of(each))


def python_options(verb: Verb) -> list[Declared]:
    """The options of a function: what stands without a name, then what has to be given, then the rest."""
    every = [each for each in declared(verb.part("options")) if each.about.only in ("", "python")]
    first = [each for each in every if is_positional(each)]
    needed = [each for each in every if each.about.needed and each not in first]
    out = [each for each in every if each.name == "out" and each not in needed]
    return [*first, *needed, *out, *(each for each in every if each not in (*first, *needed, *out))]


def is_positional(each: Declared) -> bool:
    return each.about.argument or each.about.positional


def is_flag(each: Declared) -> bool:
    return each.kind is bool and each.field.default is False


def returns(verb: Verb) -> str:
    """The name of what the function returns."""
    return verb.returns.rpartition(":")[2]


def type_of(each: Declared) -> str:
    """The type of an option in a signature."""
    optional = "" if each.about.needed or is_flag(each) else " | None"
    if each.about.accepts:
        return each.about.accepts + optional
    return _type(each.field.annotation) + optional


def _type(annotation: Any) -> str:
    kinds = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(repr(value) for value in kinds)}]".replace("'", '"')
    if kinds and get_origin(annotation) not in (tuple, list) and len(kinds) == 1:
        return _type(kinds[0])
    if kinds and get_origin(kinds[0]) is Literal:
        return _type(kinds[0])
    plain = plain_type(annotation)
    return "Sequence[str]" if plain is tuple else str(getattr(plain, "__name__", "Any"))


def describe(each: Declared) -> str:
    """The help of an option, in the words of Python."""
    default = f" Default: {each.default}." if each.default else ""
    engine = f"With --engine {each.about.engine.partition(',')[0]}: " if each.about.engine else ""
    data = _DATA if each.about.accepts == SOURCES else ""
    with speaking("python"):
        return speak(f"{engine}{each.help}{data}{default}")


def docstring(verb: Verb, options: list[Declared]) -> str:
    resumes = " The same call resumes an interrupted run." if verb.resumes else ""
    lines = [f"{verb.summary}{resumes}", "", verb.call, ""]
    for each in options:
        lines += textwrap.wrap(f"{each.call}: {describe(each)}", 112, subsequent_indent="    ")
    return "\n".join(lines)
