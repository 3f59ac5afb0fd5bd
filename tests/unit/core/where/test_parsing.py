"""What the language of --where has, and how it refuses the rest."""

from __future__ import annotations

import re

import pytest

from shardmill.core.where.condition import And, Compare, IsNull, IsTrue, Literal, Named, Not, Or, columns_of
from shardmill.core.where.parsing import parse_condition

A = Named("a")


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("a = 1", Compare("=", A, Literal(1))),
        ("a <> -1.5", Compare("!=", A, Literal(-1.5))),
        ("1e3 >= a", Compare(">=", Literal(1000.0), A)),
        ("\"a b\" = 'it''s'", Compare("=", Named("a b"), Literal("it's"))),
        ('"say ""x""" = true', Compare("=", Named('say "x"'), Literal(True))),
        ("a is not null", Not(IsNull(A))),
        ("a IN (1, NULL)", Or((Compare("=", A, Literal(1)), Compare("=", A, Literal(None))))),
        ("a NOT IN ('x')", Not(Compare("=", A, Literal("x")))),
        ("a BETWEEN 1 AND 2", And((Compare(">=", A, Literal(1)), Compare("<=", A, Literal(2))))),
        ("NOT a", Not(IsTrue(A))),
        ("a OR b AND c", Or((IsTrue(A), And((IsTrue(Named("b")), IsTrue(Named("c"))))))),
        ("(a OR b) AND c", And((Or((IsTrue(A), IsTrue(Named("b")))), IsTrue(Named("c"))))),
        ("größe > 1", Compare(">", Named("größe"), Literal(1))),
    ],
)
def test_a_condition_is_read(text: str, meaning: object) -> None:
    assert parse_condition(text) == meaning


def test_columns_are_named_once_in_order() -> None:
    condition = parse_condition("b = 1 AND (a < b OR NOT c LIKE 'x%') AND d IS NULL AND e")
    assert columns_of(condition) == ("b", "a", "c", "d", "e")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (" ", "is empty"),
        ("a = ", "expected a column or a value at the end"),
        ("a == 1", "expected a column or a value at character 4, '='"),
        ("a = 'x", "a text is not closed at character 5"),
        ('"a = 1', "a name is not closed at character 1"),
        ("a = 1 b", "expected AND, OR or the end at character 7, 'b'"),
        ("lower(a) = 'x'", "expected AND, OR or the end at character 6, '('"),
        ("a IN ()", "expected a column or a value at character 7, ')'"),
        ("a IN (b)", "expected a value; a text is in single quotes at character 7, 'b'"),
        ("a LIKE b", "expected a pattern in single quotes after LIKE at character 8, 'b'"),
        ("a LIKE 'x\\'", "a pattern of LIKE ends with a backslash"),
        ("a NOT = 1", "expected IN, LIKE or BETWEEN after NOT at character 7"),
        ("a = 1e999", "a number is too large"),
        ("a = 12abc", "not understood: at character 5"),
        ("a = 1; DROP TABLE t", "not understood: at character 6, '; DROP TAB'"),
        ("1", "expected a comparison at the end"),
        ("(" * 500 + "a", "is nested too deep"),
        ("NOT " * 500 + "a", "is nested too deep"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        parse_condition(text)
