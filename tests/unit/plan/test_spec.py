"""Keyword arguments, options and TOML land in one spec; what is wrong is said in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.plan.spec import ErrorLimit, make_execution, make_spec, read_spec


def test_names_may_be_given_as_one_string_or_as_a_list() -> None:
    for given in ("a, b", ["a", "b"], ("a,b",)):
        assert make_spec({"source": "x.jsonl", "text": "t", "id": given}).work.id == ("a", "b")


def test_a_source_is_a_path_a_string_or_several() -> None:
    assert make_spec({"source": Path("x.jsonl"), "text": "t"}).work.source == ("x.jsonl",)
    assert make_spec({"source": ["a,1.csv", "b.csv"], "text": "t"}).work.source == ("a,1.csv", "b.csv")


def test_what_is_none_stays_at_its_default() -> None:
    spec = make_spec({"source": "x.jsonl", "text": "t", "format": None}, {"workers": None, "max_errors": None})
    assert spec.work.format is None
    assert spec.work.task == "embed"
    assert spec.execution.max_errors == "1%"


def test_a_spec_cannot_be_changed() -> None:
    spec = make_spec({"source": "x.jsonl", "text": "t"})
    with pytest.raises(ValueError, match="frozen"):
        spec.work.text = "other"  # type: ignore[misc]


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"text": None}, {}, "No text was given.\n.*--text FIELD"),
    ({"text": " "}, {}, "text: names no field"),
    ({"source": []}, {}, "source:"),
    ({"format": "xml"}, {}, r"format: 'xml' is not a supported format.\nAvailable: jsonl, text"),
    ({"colour": "red"}, {}, r"\[work\] has no key 'colour'"),
    ({}, {"workers": 0}, r"workers: must be at least 1 \(got 0\)"),
    ({}, {"device": "tpu"}, "device: 'tpu' is not a device: auto, cpu, cuda"),
    ({}, {"max_errors": "some"}, "neither a percentage like 1% nor a count like 250"),
    ({}, {"lease_s": 0}, "lease_s: must be more than 0"),
]


@pytest.mark.parametrize(("work", "execution", "said"), WRONG)
def test_a_wrong_value_is_named_with_what_was_seen(work: dict[str, Any], execution: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        make_spec({"source": "x.jsonl", "text": "t", **work}, execution)
    assert len(str(caught.value).splitlines()) <= 2


def test_a_toml_file_gives_both_tables(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('[work]\nsource = "x.csv"\ntext = "t"\nparams = {dims = 4}\n[execution]\nmax_errors = 3\n')
    tables = read_spec(path)
    spec = make_spec(tables["work"], tables["execution"])
    assert spec.work.params == {"dims": 4}
    assert spec.execution.max_errors == "3"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file"),
        ("a = \n", "spec.toml: .* line 1"),
        ("[wrok]\n", r"unknown table \[wrok\]"),
        (b"\xff\xfe", "spec.toml: "),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    path = tmp_path / "spec.toml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SpecError, match=said):
        read_spec(path)


def test_a_folder_is_no_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Is a directory"):
        read_spec(tmp_path)


@pytest.mark.parametrize(
    ("text", "errors", "rows", "exceeded"),
    [
        ("1%", 10, 1000, False),
        ("1%", 11, 1000, True),
        ("0%", 1, 10**9, True),
        ("100%", 50, 50, False),
        (" 2.5% ", 26, 1000, True),
        ("0", 0, 0, False),
        ("0", 1, 10**9, True),
        ("250", 250, 251, False),
        ("250", 251, 10**9, True),
    ],
)
def test_an_error_limit_is_a_share_or_a_number(text: str, errors: int, rows: int, exceeded: bool) -> None:
    assert ErrorLimit.parse(text).exceeded(errors, rows) is exceeded


@pytest.mark.parametrize("text", ["", "%", "-1", "-1%", "101%", "1.5", "nan%", "a few"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a percentage"):
        ErrorLimit.parse(text)


def test_a_deadline_is_a_time_or_a_duration() -> None:
    by_duration = make_execution({"deadline": "1h30m"})
    assert by_duration.deadline_at(None) is None
    assert by_duration.deadline_at(100.0) == 5500.0
    by_time = make_execution({"deadline": "2026-12-31T18:00:00+01:00"})
    assert by_time.deadline_at(None) == by_time.deadline_at(100.0) == 1798736400.0
    stored = make_execution(by_time.to_settings())
    assert stored.deadline_at(None) == 1798736400.0
    assert not {"deadline", "budget_usd"} & set(make_execution({}).to_settings())


@pytest.mark.parametrize("wrong", [{"deadline": "soon"}, {"deadline": "25:00"}, {"budget_usd": 0}, {"budget_usd": "x"}])
def test_a_wrong_deadline_or_budget_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        make_execution(wrong)


def test_what_a_deadline_may_be_is_told() -> None:
    with pytest.raises(SpecError, match="not a duration like 2h, 90min or 1h30m, and no time like 2026-12-31T18:00"):
        make_execution({"deadline": "soon"})


def test_workers_may_be_a_range() -> None:
    made = make_spec({"source": "a", "text": "t"}, {"workers": "2:8"}).execution
    assert (made.min_workers, made.workers) == (2, 8)
    assert make_spec({"source": "a", "text": "t"}, {"workers": "3"}).execution.workers == 3


@pytest.mark.parametrize("wrong", ["8:2", "0:2", "a:b", "2:", ":2"])
def test_a_range_of_workers_is_in_order(wrong: str) -> None:
    with pytest.raises(SpecError, match="workers"):
        make_spec({"source": "a", "text": "t"}, {"workers": wrong})
