"""One tree of errors: drawn in the module, carried across processes, each with the next thing to do."""

from __future__ import annotations

import pickle
import re

import pytest

from shardmill.core import errors
from shardmill.core.errors import (
    Cure,
    EditionPruned,
    Preempted,
    ShardmillError,
    SpecError,
    StoreError,
    StoreFull,
    UsageError,
    WorkerFailed,
    nearest,
    too_many_errors,
)
from shardmill.engines.deaths import failure
from tools.generate import STATUSES

KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, ShardmillError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_crosses_processes(kind: type[ShardmillError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("it broke", hint="mend it")))
    assert type(copy) is kind
    assert (copy.message, copy.hint) == ("it broke", "mend it")


def test_an_error_says_what_to_do_on_a_second_line() -> None:
    assert str(ShardmillError("it broke.", hint="Mend it.")) == "it broke.\nMend it."
    assert str(ShardmillError("it broke.")) == "it broke."


def test_the_tree_in_the_docstring_is_the_tree_of_classes() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^[│├└─ ]*([A-Z]\w+)(?: {2,}.+)?$", errors.__doc__, re.MULTILINE)
    assert sorted(drawn) == sorted(k.__name__ for k in KINDS)


def test_the_branches_in_the_docstring_are_those_of_the_classes() -> None:
    assert errors.__doc__ is not None
    above: dict[int, str] = {}
    for line in errors.__doc__.splitlines():
        match = re.match(r"([│├└─ ]*)([A-Z]\w+)(?: {2,}.+)?$", line)
        if match is None or not issubclass(getattr(errors, match[2], int), ShardmillError):
            continue
        depth = len(match[1]) // 4
        above[depth] = match[2]
        if depth:
            assert getattr(errors, match[2]).__base__.__name__ == above[depth - 1]


def test_the_exit_status_is_fixed_by_the_kind_of_error() -> None:
    again = Preempted | EditionPruned
    for kind in KINDS:
        by_cure = {Cure.HERE: 74, Cure.ELSEWHERE: 69, Cure.FINAL: 1}[kind.cure]
        wanted = 2 if issubclass(kind, UsageError) else 75 if issubclass(kind, again) else by_cure
        assert kind("x").exit_status == wanted


def test_every_exit_status_is_documented() -> None:
    documented = set(re.findall(r"^\| (\d+) \|", STATUSES, re.MULTILINE))
    assert {str(kind("x").exit_status) for kind in KINDS} <= documented


def test_the_cure_of_one_error_crosses_processes() -> None:
    error = StoreError("denied")
    error.cure = Cure.FINAL
    assert pickle.loads(pickle.dumps(error)).cure is Cure.FINAL


def test_a_resume_is_offered_only_after_what_it_can_cure() -> None:
    def leaves(kind: type[ShardmillError]) -> set[type[ShardmillError]]:
        return {kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))}

    ours = {kind for kind in leaves(ShardmillError) if kind.__module__ == "shardmill.core.errors"}
    assert sorted(kind.__name__ for kind in ours if not kind.resumes) == [
        *("CorruptState", "GroupTooLarge", "ModelError", "RunExists", "SourceError", "SpecError", "StaleResume"),
        *("StoreChanged", "TaskError", "TooManyErrors", "UsageError"),
    ]


def test_whether_a_resume_helps_crosses_processes() -> None:
    error = WorkerFailed("The shard has no such row.").without_resume()
    assert not pickle.loads(pickle.dumps(error)).resumes
    assert not failure(0, "stopped", [error.as_last_words()]).resumes
    assert not failure(0, "stopped", [SpecError("no such task").as_last_words()]).resumes
    assert failure(0, "stopped", [StoreFull("no space left").as_last_words()]).resumes


def test_the_nearest_word_is_offered() -> None:
    assert nearest("txet", ["id", "text"]) == "Available: id, text. Did you mean 'text'?"
    assert nearest("zzz", ["id", "text"]) == "Available: id, text."
    assert nearest("x", [f"c{i}" for i in range(30)]).endswith("c19, ….")


def test_too_many_errors_gives_the_share_the_limit_and_an_example() -> None:
    said = str(too_many_errors(30, 1000, "1%", "the text is blank"))
    assert "30 of 1,000 rows failed (3.0%), over --max-errors 1%; the last: the text is blank." in said


def test_too_many_errors_say_how_to_go_on_unless_every_row_failed() -> None:
    some, every = (too_many_errors(errors, 1000, "1%", run="runs/docs").hint for errors in (30, 1000))
    assert "shardmill show runs/docs --errors" in some
    assert "with a higher --max-errors the same command goes on" in some
    assert every == "Every row so far has failed. Mend the cause, then start over with --fresh."
