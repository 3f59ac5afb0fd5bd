"""The parameters of a task, checked by a model of them."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from shardmill.core.errors import SpecError
from shardmill.plan.options import Options, declared

_Params = TypeVar("_Params", bound=BaseModel)


def read_params(kind: type[_Params], params: dict[str, Any], task: str) -> _Params:
    """Make the parameters of a task, or say which are wrong or missing, and which there are."""
    for each in declared(kind) if issubclass(kind, Options) else ():
        if each.about.needed and not params.get(each.name):
            raise SpecError(f"The {task} task needs {each.name}.", hint=f"Give it: {each.flag} {each.about.metavar}")
    try:
        return kind(**params)
    except ValidationError as error:
        wrong = "; ".join(map(_describe, error.errors()))
        known = ", ".join(kind.model_fields)
        raise SpecError(f"Bad parameters of the {task} task: {wrong}.", hint=f"Its parameters are {known}.") from error


def _describe(wrong: ErrorDetails) -> str:
    """What is wrong with a parameter, or with several of them together; what our own checks say, as they say it."""
    if "error" in (about := wrong.get("ctx", {})):
        return str(about["error"])
    return f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg'].lower()}"
