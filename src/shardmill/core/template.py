"""The text of an item, made from one field, several fields or a template."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass

from shardmill.core.errors import SpecError

Rendered = tuple[str | None, str | None]

# The text of items that have none: their task reads columns alone.
NO_TEXT = "{:none}"


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """Literals and fields: `parts` alternates literal, name, literal, … and both ends are literals.

    `as_json` are the fields whose value is written as JSON, of whatever kind it is.

    >>> TextTemplate.parse("{title}: {body}").render({"title": "Tea", "body": "Green."})
    ('Tea: Green.', None)
    >>> TextTemplate.parse("{tags:json}").render({"tags": ["a", {"b": 1}]})
    ('["a", {"b": 1}]', None)
    >>> TextTemplate.parse("body").render({"body": 7})
    (None, "'body' is a number, not text")
    >>> TextTemplate.parse(NO_TEXT).render({"body": 7})
    ('', None)
    """

    parts: tuple[str, ...]
    single: bool
    as_json: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, spec: str) -> TextTemplate:
        if spec == NO_TEXT:
            return cls(("",), single=False)
        if "{" in spec or "}" in spec:
            parts, as_json = _parse_braces(spec.replace("\\n", "\n").replace("\\t", "\t"))
            return cls(parts, single=False, as_json=as_json)
        names = [name.strip() for name in spec.split(",")]
        if not all(names):
            raise SpecError(f"--text {spec!r} has an empty field name.", hint=_HINT)
        literals = ["", *["\n"] * (len(names) - 1)]
        pairs = [part for pair in zip(literals, names, strict=True) for part in pair]
        return cls((*pairs, ""), single=len(names) == 1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.parts[1::2]))

    def render(self, row: Mapping[str, object]) -> Rendered:
        """The text and None, or None and the reason why there is no text."""
        return self._render_single(row) if self.single else self._render_parts(row)

    def _render_single(self, row: Mapping[str, object]) -> Rendered:
        name = self.parts[1]
        value = row.get(name)
        if isinstance(value, str):
            return check_text(value)
        if value is not None:
            return None, f"'{name}' is {kind_of(value)}, not text"
        return None, f"'{name}' is null" if name in row else f"no field '{name}'"

    def _render_parts(self, row: Mapping[str, object]) -> Rendered:
        if not self.names:
            return self.parts[0], None
        values: list[str] = []
        for name in self.parts[1::2]:
            value = _as_json(row.get(name)) if name in self.as_json else _as_text(row.get(name))
            if value is None:
                return None, f"'{name}' is {kind_of(row[name])}, not text"
            values.append(value)
        if all(row.get(name) is None for name in self.names):
            return None, f"no value in {', '.join(repr(name) for name in self.names)}"
        if not any(value.strip() for value in values):
            return None, "the text is blank"
        pairs = [part for pair in zip(self.parts[::2], values, strict=False) for part in pair]
        return check_text("".join((*pairs, self.parts[-1])))


_HINT = "Name a field (body), several (title,body), or write a template ('{title}\\n{body}')."


def _parse_braces(spec: str) -> tuple[tuple[str, ...], frozenset[str]]:
    parts, as_json, plain = [""], set[str](), set[str]()
    try:
        pieces = list(string.Formatter().parse(spec))
    except ValueError as error:
        raise SpecError(f"--text {spec!r}: {error}.", hint="Write {{ or }} for a literal brace.") from error
    for literal, name, format_spec, conversion in pieces:
        parts[-1] += literal
        if name is None:
            continue
        strange = format_spec not in ("", "json") or conversion or any(mark in name for mark in ".[{")
        if not name or name.isdigit() or strange:
            raise SpecError(f"--text {spec!r}: only plain field names are allowed between braces.", hint=_HINT)
        (as_json if format_spec else plain).add(name)
        parts += [name, ""]
    if len(parts) == 1:
        raise SpecError(f"--text {spec!r} names no field.", hint=_HINT)
    if both := as_json & plain:
        raise SpecError(f"--text {spec!r} has {min(both)!r} both as text and as JSON.", hint=_HINT)
    return tuple(parts), frozenset(as_json)


def check_text(text: str) -> Rendered:
    if not text.strip():
        return None, "the text is blank"
    return (text, None) if is_unicode(text) else (None, "the text is not valid Unicode")


def is_unicode(text: str) -> bool:
    """Whether the text can be stored: a JSON escape can be half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def kind_of(value: object) -> str:
    """The kind of a value, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list() | tuple():
            return "a list"
        case dict():
            return "an object"
        case bytes():
            return "binary"
    return f"a {type(value).__name__}"


def _as_json(value: object) -> str | None:
    try:
        return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return None


def _as_text(value: object) -> str | None:
    match value:
        case None:
            return ""
        case str():
            return value
        case bool() | int() | float():
            return json.dumps(value)
        case list() if all(isinstance(word, str) for word in value):
            return " ".join(value)
        case list() | dict() | bytes() | tuple():
            return None
    return str(value)
