"""Words of every script: cut, told apart by language, and found again in other forms."""

from __future__ import annotations

import pytest

from shardmill.core.errors import UsageError
from shardmill.core.languages import ENGLISH, MIXED, find_language, is_english, read_language
from shardmill.core.words import cut_characters, cut_pieces, find_words, index_words, is_spaceless
from tests.support.languages import QUESTIONS, TEXTS

NEWS = [
    "The battery of the new phone lasts only a few hours.",
    "After days of rain the river burst its banks and took the old bridge.",
]


@pytest.mark.parametrize("language", TEXTS)
def test_a_sample_tells_its_language(language: str) -> None:
    assert find_language(TEXTS[language]) == language
    assert find_language([*TEXTS[language], "iPhone 15 Pro, 256 GB"]) == language
    assert not is_english(*TEXTS[language])


def test_latin_letters_are_english_unless_words_tell_another() -> None:
    assert find_language(NEWS) == find_language(["USB-C 65W charger, black"]) == find_language([]) == ENGLISH
    assert find_language(["", "1234", "!"]) == ENGLISH
    assert is_english(NEWS[0], "The café was closed.")
    assert not is_english("Café größe")
    assert find_language([*NEWS * 4, *TEXTS["zh"], *TEXTS["ru"]]) == MIXED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी में किताबें, 3!", ["हिन्दी", "में", "किताबें", "3"]),
        ("ภาษาไทย ๑๒", ["ภาษาไทย", "๑๒"]),
        ("don't_stop 2.5", ["don", "t_stop", "2", "5"]),
        ("新しい電話", ["新しい電話"]),
    ],
)
def test_words_keep_their_signs(text: str, words: list[str]) -> None:
    assert find_words(text) == words


def test_scripts_without_spaces_are_cut_into_pieces() -> None:
    assert [*cut_pieces("電池")] == ["電池"]
    assert [*cut_pieces("水")] == ["水"]
    assert [*cut_pieces("แมวจับหนู")] == ["แมว", "มวจั", "วจับ", "จับห", "บหนู"]
    assert cut_characters(["usb電池", "จับ"]) == ["usb", "電", "池", "จั", "บ"]
    assert not is_spaceless("हिन्दी")
    assert not is_spaceless("한국어")


def test_index_words_are_without_case_and_what_says_little() -> None:
    assert index_words("DIE STRASSE und die Straße, a 5 b2", "de") == ["strasse", "strasse", "b2"]
    assert index_words("أَلْكِتَابُ إلى", "ar") == index_words("الكتاب", "ar")
    assert index_words("ｉＰｈｏｎｅ の 電池", "ja") == ["iphone", "の", "電池"]
    assert index_words("the and", MIXED) == ["the", "and"]


@pytest.mark.parametrize(
    ("said", "code"), [("de", "de"), ("German", "de"), ("zh-Hans", "zh"), ("pt_BR", "pt"), ("mul", MIXED)]
)
def test_languages_are_named_by_code_or_in_english(said: str, code: str) -> None:
    assert read_language(said) == code


@pytest.mark.parametrize("said", ["klingon", "xx", ""])
def test_a_language_that_nobody_knows_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match="is not known"):
        read_language(said)


def test_each_text_has_a_question() -> None:
    assert TEXTS.keys() == QUESTIONS.keys()
    assert {len(texts) for texts in [*TEXTS.values(), *QUESTIONS.values()]} == {8}
