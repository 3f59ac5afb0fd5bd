"""What counts as the same text: words of every script, with the marks that tell them apart."""

from __future__ import annotations

import pytest

from shardmill.verbs.dedup.functions import normalize


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("पिता", "पोता"),  # father, grandson: they differ in vowel signs alone
        ("มา", "มี"),
        ("கல்", "கால்"),
    ],
)
def test_words_that_differ_in_their_signs_are_other_words(one: str, other: str) -> None:
    assert normalize(one) != normalize(other)
    assert normalize(one).split() == [one]


def test_marks_and_case_do_not_count() -> None:
    assert normalize("Grüße,  WÖRLD! ❤\ufe0f") == normalize("gru\u0308ße wörld")
    assert normalize("❤\ufe0f!!") == ""
