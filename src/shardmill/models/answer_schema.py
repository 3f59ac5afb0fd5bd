"""Answers in JSON that must fit a schema, whether a model of this process or a server made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.core.extras import missing_package

_MOST_WORDS, _MOST_ANSWER = 200, 500
# How much freer each further try is than the one before, and the most.
_WARMER, _WARMEST = 0.4, 1.0


class AnswerSchema:
    """A JSON schema that answers must fit.

    >>> schema = AnswerSchema({"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}})
    >>> schema.why_invalid('{"age": 7}')
    >>> schema.why_invalid('{"age": "seven"}')
    "$.age: 'seven' is not of type 'integer'"
    """

    def __init__(self, value: Mapping[str, Any]) -> None:
        try:
            import jsonschema
            import referencing
            import referencing.jsonschema
        except ImportError as error:
            raise missing_package("jsonschema") from error
        self.value = dict(value)
        kind = jsonschema.validators.validator_for(self.value, default=jsonschema.Draft202012Validator)
        try:
            kind.check_schema(self.value)
        except jsonschema.SchemaError as error:
            raise SpecError(f"The schema is no JSON schema: {_line(error)}.") from error
        except RecursionError as error:
            raise SpecError("The schema is nested too deeply.") from error
        # An empty registry fetches nothing from elsewhere.
        registry: Any = referencing.Registry()
        self._check_references(registry, referencing.jsonschema.DRAFT202012.create_resource(self.value))
        self._validator = kind(self.value, registry=registry)
        self._best = jsonschema.exceptions.best_match

    @classmethod
    def read(cls, path: str | Path) -> AnswerSchema:
        """The schema in a file."""
        try:
            value = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise SpecError(f"{path}: the schema cannot be read ({error.strerror}).") from error
        except (ValueError, RecursionError) as error:
            raise SpecError(f"{path} is not JSON: {error}.", hint="Pass a file with a JSON schema.") from error
        if not isinstance(value, dict):
            raise SpecError(f"{path} holds no JSON schema but {shorten(json.dumps(value), 60)}.")
        return cls(value)

    def why_invalid(self, text: str) -> str | None:
        """Why an answer does not fit, in one line; None if it does."""
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
            found = self._best(self._validator.iter_errors(value))
        except ValueError as error:
            return f"it is not JSON: {error}"
        except RecursionError:
            return "it is nested too deeply"
        return None if found is None else _line(found)

    def _check_references(self, registry: Any, resource: Any) -> None:
        from referencing.exceptions import Unresolvable

        resolver = registry.resolver_with_root(resource)
        for reference in _references(self.value):
            try:
                resolver.lookup(reference)
            except (Unresolvable, ValueError) as error:
                raise SpecError(
                    f"The schema refers to {reference!r}, which is not part of it.",
                    hint="Put it under $defs and refer to it as #/$defs/NAME.",
                ) from error


@dataclass(frozen=True, slots=True)
class SecondTries:
    """An invalid answer is tried again with another seed and more freedom, and then set aside with the answer."""

    schema: AnswerSchema
    more: int = 2

    def vary(self, tries: int, seed: int | None, temperature: float) -> tuple[int, float] | None:
        """Seed and temperature after this many tries; None if the answer is to be set aside."""
        if tries > self.more:
            return None
        return ((seed or 0) + 1) * 48271 % (2**31 - 1), min(max(_WARMEST, temperature), temperature + _WARMER)

    def reason(self, why: str, text: str) -> str:
        """What is put on record when an answer is set aside."""
        return f"the answer does not fit the schema: {why}. The answer: {shorten(text, _MOST_ANSWER)}"


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_references, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
    return own.union(*map(_references, value.values()))


def _line(error: Any) -> str:
    return f"{error.json_path}: {shorten(error.message, _MOST_WORDS)}"


def shorten(text: str, most: int) -> str:
    """A text in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")
