"""Schemas of answers: read, checked, and what becomes of answers that do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.models.answer_schema import AnswerSchema, SecondTries
from tests.support.libraries import needed

needed("jsonschema")

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "friends": {"type": "array", "items": {"$ref": "#/$defs/name"}}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 2}},
}


def test_a_schema_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "person.json"
    file.write_text(json.dumps(PERSON))
    assert AnswerSchema.read(file).value == PERSON


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no JSON schema"),
        ('{"type": "strnig"}', "no JSON schema: .*strnig"),
        ('{"$ref": "#/$defs/none"}', "refers to '#/\\$defs/none'"),
        ('{"items": {"$ref": "http://localhost:1/other.json"}}', "refers to 'http://localhost:1/other.json'"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_schema_is_refused_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "schema.json"
    file.write_text(text)
    with pytest.raises(SpecError, match=said) as refused:
        AnswerSchema.read(file)
    assert "\n" not in refused.value.message


def test_a_schema_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        AnswerSchema.read(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ('{"name": "Ann"}', None),
        (' {"name": "Ann", "friends": ["Bo"]}\n', None),
        ('{"name": 7}', "$.name: 7 is not of type 'string'"),
        ('{"name": "Ann", "friends": ["Bo", "x"]}', "$.friends[1]: 'x' is too short"),
        ("{}", "$: 'name' is a required property"),
        ('{"name": "A', "it is not JSON: "),
        ("NaN", "it is not JSON: NaN is no JSON value"),
        ("", "it is not JSON: "),
        ("[" * 100_000, "it is nested too deeply"),
        (json.dumps({"name": ["word"] * 10_000}), "$.name: ['word', 'word',"),
    ],
)
def test_why_an_answer_does_not_fit_is_one_line(answer: str, why: str | None) -> None:
    found = AnswerSchema(PERSON).why_invalid(answer)
    if why is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(why)
        assert len(found) < 300
        assert "\n" not in found


def test_an_answer_has_two_more_tries_each_freer_than_the_last() -> None:
    tries = SecondTries(AnswerSchema(PERSON))
    first = tries.vary(1, None, 0.0)
    assert first is not None
    second = tries.vary(2, *first)
    assert second is not None
    assert tries.vary(3, *second) is None
    assert 0 < first[1] < second[1] <= 1
    assert first[0] != second[0]
    assert tries.vary(1, None, 0.0) == first
    hot = tries.vary(1, 5, 1.5)
    assert hot is not None
    assert hot[1] == 1.5


def test_what_is_set_aside_has_the_answer_with_it() -> None:
    reason = SecondTries(AnswerSchema(PERSON)).reason("$.name: 7 is not of type 'string'", '{"name":\n 7}' + "x" * 9999)
    assert "$.name: 7 is not of type 'string'. The answer: {\"name\": 7}" in reason
    assert len(reason) < 700
