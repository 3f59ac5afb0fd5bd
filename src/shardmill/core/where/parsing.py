"""Reads a condition: columns, values, = != <> < <= > >=, IS NULL, IN, LIKE, BETWEEN, AND, OR, NOT and parentheses."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from shardmill.core.where.condition import (
    And,
    Compare,
    Condition,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Named,
    Not,
    Operand,
    Or,
)

_DEEPEST = 100
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<word>[^\W\d]\w*)
      | (?P<sign><>|!=|<=|>=|[=<>(),-])
    )""",
    re.VERBOSE,
)
_COMPARES = ("=", "!=", "<>", "<", "<=", ">", ">=")
_VALUES = {"TRUE": True, "FALSE": False, "NULL": None}
_KEYWORDS = {"AND", "OR", "NOT", "IS", "IN", "LIKE", "BETWEEN", *_VALUES}


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


@lru_cache(64)
def parse_condition(text: str) -> Condition:
    """Parse a condition, or raise ValueError with what is wrong and where.

    >>> parse_condition("overall <= 2 AND NOT title = 'x'").parts[0]
    Compare(operator='<=', left=Named(name='overall'), right=Literal(value=2))
    """
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _split(text)
        self._next, self._depth = 0, 0

    def parse(self) -> Condition:
        if len(self._tokens) == 1:
            raise ValueError("is empty")
        found = self._or()
        if self._look().kind != "end":
            raise self._wrong("expected AND, OR or the end")
        return found

    def _look(self) -> _Token:
        return self._tokens[self._next]

    def _is(self, *words: str) -> bool:
        """Whether these words come next."""
        coming = self._tokens[self._next : self._next + len(words)]
        return len(coming) == len(words) and all(
            token.kind in ("word", "sign") and token.text.upper() == word
            for token, word in zip(coming, words, strict=True)
        )

    def _takes(self, *words: str) -> bool:
        if not self._is(*words):
            return False
        self._next += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._takes(word):
            raise self._wrong(f"expected {word}")

    def _wrong(self, what: str) -> ValueError:
        token = self._look()
        where = "at the end" if token.kind == "end" else f"at character {token.at + 1}, {token.text!r}"
        return ValueError(f"{what} {where}")

    def _or(self) -> Condition:
        parts = [self._and()]
        while self._takes("OR"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self) -> Condition:
        parts = [self._not()]
        while self._takes("AND"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _not(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong("is nested too deep")
        if self._takes("NOT"):
            found: Condition = Not(self._not())
        elif self._takes("("):
            found = self._or()
            self._expect(")")
        else:
            found = self._predicate()
        self._depth -= 1
        return found

    def _predicate(self) -> Condition:
        left = self._operand()
        if self._look().text in _COMPARES and self._look().kind == "sign":
            operator = self._look().text
            self._next += 1
            return Compare("!=" if operator == "<>" else operator, left, self._operand())
        if self._takes("IS", "NOT", "NULL"):
            return Not(IsNull(left))
        if self._takes("IS", "NULL"):
            return IsNull(left)
        negated = self._is("NOT") and not self._is("NOT", "NOT") and self._takes("NOT")
        if self._takes("IN"):
            found: Condition = self._in(left)
        elif self._takes("LIKE"):
            found = Like(left, self._pattern())
        elif self._takes("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            found = And((Compare(">=", left, low), Compare("<=", left, self._operand())))
        elif negated:
            raise self._wrong("expected IN, LIKE or BETWEEN after NOT")
        elif isinstance(left, Named) or left.value is None or isinstance(left.value, bool):
            return IsTrue(left)
        else:
            raise self._wrong("expected a comparison")
        return Not(found) if negated else found

    def _in(self, left: Operand) -> Condition:
        self._expect("(")
        parts: list[Condition] = [Compare("=", left, self._literal())]
        while self._takes(","):
            parts.append(Compare("=", left, self._literal()))
        self._expect(")")
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _literal(self) -> Literal:
        found = self._operand()
        if isinstance(found, Named):
            self._next -= 1
            raise self._wrong("expected a value; a text is in single quotes")
        return found

    def _operand(self) -> Operand:
        negative = self._takes("-")
        token = self._look()
        self._next += 1
        if token.kind == "number":
            value = int(token.text) if token.text.isdecimal() else float(token.text)
            if not math.isfinite(value if isinstance(value, float) else _as_float(value)):
                self._next -= 1
                raise self._wrong("a number is too large")
            return Literal(-value if negative else value)
        if not negative:
            if token.kind == "text":
                return Literal(token.text[1:-1].replace("''", "'"))
            if token.kind == "quoted":
                return Named(token.text[1:-1].replace('""', '"'))
            if token.kind == "word" and token.text.upper() not in _KEYWORDS:
                return Named(token.text)
            if token.kind == "word" and token.text.upper() in _VALUES:
                return Literal(_VALUES[token.text.upper()])
        self._next -= 1
        raise self._wrong("expected a number" if negative else "expected a column or a value")

    def _pattern(self) -> str:
        token = self._look()
        if token.kind != "text":
            raise self._wrong("expected a pattern in single quotes after LIKE")
        self._next += 1
        return _to_regex(token.text[1:-1].replace("''", "'"))


def _split(text: str) -> list[_Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            what = {"'": "a text is not closed", '"': "a name is not closed"}.get(text[start], "not understood:")
            raise ValueError(f"{what} at character {start + 1}, {text[start : start + 10]!r}")
        kind = token.lastgroup or ""
        found.append(_Token(kind, token[kind], token.start(kind)))
        at = token.end()
    return [*found, _Token("end", "", end)]


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _to_regex(pattern: str) -> str:
    """% is any text, _ any character, and a backslash takes the character after it as it is."""
    made, rest = [], iter(pattern)
    for character in rest:
        if character == "\\":
            if (escaped := next(rest, None)) is None:
                raise ValueError("a pattern of LIKE ends with a backslash")
            made.append(_quote(escaped))
        else:
            made.append({"%": ".*", "_": "."}.get(character) or _quote(character))
    return f"(?s)\\A{''.join(made)}\\z"


def _quote(character: str) -> str:
    return character if character.isalnum() or not character.isascii() else f"\\x{{{ord(character):x}}}"
