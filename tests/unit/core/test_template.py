from __future__ import annotations

import pytest

from shardmill.core.errors import SpecError
from shardmill.core.template import TextTemplate


@pytest.mark.parametrize(
    ("spec", "row", "expected"),
    [
        ("body", {"body": "x"}, ("x", None)),
        ("body", {"body": " x "}, (" x ", None)),
        ("body", {}, (None, "no field 'body'")),
        ("body", {"body": None}, (None, "'body' is null")),
        ("body", {"body": 7}, (None, "'body' is a number, not text")),
        ("body", {"body": True}, (None, "'body' is true or false, not text")),
        ("body", {"body": ["a"]}, (None, "'body' is a list, not text")),
        ("body", {"body": " \n\u3000"}, (None, "the text is blank")),
        ("body", {"body": "a\ud800"}, (None, "the text is not valid Unicode")),
        ("title,body", {"title": "t", "body": "b"}, ("t\nb", None)),
        ("title, body", {"title": None, "body": "b"}, ("\nb", None)),
        ("title,body", {"title": None}, (None, "no value in 'title', 'body'")),
        ("title,body", {"title": "", "body": " "}, (None, "the text is blank")),
        ("title,body", {"title": "t", "body": {"a": 1}}, (None, "'body' is an object, not text")),
        ("{title}: {body}", {"title": 1.50, "body": True}, ("1.5: true", None)),
        ("{tags}", {"tags": ["a", "b"]}, ("a b", None)),
        ("{tags}", {"tags": [1]}, (None, "'tags' is a list, not text")),
        ("{{{a}}} \\n{a}", {"a": "x"}, ("{x} \nx", None)),
        ("query: {q}", {"q": ""}, (None, "the text is blank")),
    ],
)
def test_render(spec: str, row: dict[str, object], expected: tuple[str | None, str | None]) -> None:
    assert TextTemplate.parse(spec).render(row) == expected


def test_names_are_listed_once() -> None:
    assert TextTemplate.parse("{a} {b} {a}").names == ("a", "b")
    assert TextTemplate.parse("a,b").names == ("a", "b")


@pytest.mark.parametrize(
    "spec", ["", "a,,b", "{a.b}", "{a[0]}", "{}", "{0}", "{a!r}", "{a:>9}", "{a", "a}", "{{a}}", "{a:{b}}"]
)
def test_what_is_not_a_plain_field_is_refused(spec: str) -> None:
    with pytest.raises(SpecError):
        TextTemplate.parse(spec)
