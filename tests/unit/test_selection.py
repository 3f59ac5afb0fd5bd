"""What `make test` runs, and the table of features and their tests: nothing is left to chance, nothing is untested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardmill.plugins import names
from tests.support.selection import TESTS, files, is_thorough, listed, read_features

FEATURES = read_features()
CASES = [(kind, name) for kind, features in FEATURES.items() for name in features]
TOUR = TESTS / "contract" / "test_every_verb.py"


def test_what_is_left_to_test_all_is_there_and_named_once() -> None:
    assert [name for name in listed() if not (TESTS / name).exists()] == []
    assert len(set(listed())) == len(listed())
    assert [name for name in listed() if is_thorough((TESTS / name).parent)] == [], "its folder is listed"


def test_only_whole_files_are_left_to_test_all() -> None:
    """The others are not imported by the one or the other."""
    marks = re.compile(r"mark\.thorough\b")
    assert [
        path for path in TESTS.rglob("test_*.py") if path != Path(__file__) and marks.search(path.read_text())
    ] == []


def test_every_verb_source_sink_and_engine_has_tests() -> None:
    assert set(FEATURES["verbs"]) == set(names("verbs"))
    assert set(FEATURES["sources"]) >= set(names("sources"))
    assert set(FEATURES["engines"]) == set(names("engines"))
    assert set(FEATURES["sinks"]) == set(names("sinks"))


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda word: word)
def test_every_feature_is_touched_by_make_test(kind: str, name: str) -> None:
    found = [path for place in FEATURES[kind][name] for path in files(place)]
    quick = [path for path in [*found, *([TOUR] if kind == "verbs" else [])] if not is_thorough(path)]
    word = re.escape(name.split()[-1])
    assert [path for path in quick if re.search(rf"\b{word}", _text(path), re.IGNORECASE)], "only test-all has it"


def _text(path: Path) -> str:
    """A file of tests, and what it takes from tests/support."""
    text = path.read_text()
    taken = [TESTS / "support" / f"{name}.py" for name in re.findall(r"^from tests\.support\.(\w+) import", text, re.M)]
    return "\n".join([text, *(each.read_text() for each in taken)])


def test_all_verbs_are_called_by_make_test() -> None:
    """That file fails if it calls not all of them."""
    assert not is_thorough(TOUR)
