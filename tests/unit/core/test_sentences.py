"""Sentences are found where a reader finds them, in any script, and nothing of a text is lost or doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmill.core.sentences import MOST_CHARACTERS, split_sentences


def sentences(text: str) -> list[str]:
    return [text[start:stop] for start, stop in split_sentences(text)]


# A bar is where a sentence ends.
CASES = {
    "plain": "One thing. | Another thing! | A third?",
    "titles": "Dr. Ng met Mrs. Lee and Gen. Roe at St. Mary's. | They left.",
    "initials": "J. K. Rowling wrote it. | So did I. | We read it.",
    "abbreviations": "See fig. 3, e.g. the left one, i.e. No. 5. | It cost approx. 9 dollars.",
    "abbreviation at the end": "Acme Inc. in Ohio grew. | She left Acme Inc. | The end came at 5 p.m. | He slept.",
    "words that look like abbreviations": "He said no. | John sat. | Ann likes art. | Bob paid on Sat. with cash.",
    "dotted": "The U.S. Army left the U.S. in 2010. | It was in Washington, D.C. | The end.",
    "decimals": "It cost $3.50, or 2.5 percent. | Version 1.2.3 is out. | 12 people came.",
    "quotes": 'He said "Go." | "Why?" she asked. | \u201cNo!\u201d | They left.',
    "brackets": "(It rained.) | We went home [by bus]. | Then we slept.",
    "a mark in a name": "Yahoo! said so. | Is it?",
    "a name in lower case": "iPhone sales rose. | iPads fell.",
    "dots": "He waited... and waited. | Then… | He left.",
    "several marks": "What?! | Never!!! | Well.",
    "blank lines": "A heading\n\n| The first line\ngoes on here. | The second.",
    "items": "We need:\n| - apples\n| - pears\n| 1. First of all. | 2. Then this.",
    "japanese": "今日は晴れです。|明日は「雨です。」と言った！|本当？|はい",
    "chinese": "他说:“好。”|我们走了。|价格是3.5元",
    "hindi": "यह एक वाक्य है। | यह दूसरा है।",
    "arabic": "هل أنت هنا؟ | نعم.",
    "russian": "Поезд ушёл. | Мы остались!",
    "spanish": "¿Quién es? | ¡Soy yo! | Vale.",
    "no punctuation": "just some words and nothing else",
    "code": "Call os.path.join(a, b) or x.y. | It works.",
}


@pytest.mark.parametrize("marked", CASES.values(), ids=CASES)
def test_sentences_end_where_a_reader_ends_them(marked: str) -> None:
    assert sentences(marked.replace("|", "")) == [part.strip() for part in marked.split("|")]


@pytest.mark.parametrize("text", ["", "   \n\n ", "...", "* * *\n\n---", "?!"])
def test_a_text_without_a_word_has_no_sentence(text: str) -> None:
    assert sentences(text) == []


def test_words_without_an_end_are_cut_at_a_space() -> None:
    text = "word " * 1_000
    found = sentences(text)
    assert all(len(each) <= MOST_CHARACTERS and each.replace("word", "").strip() == "" for each in found)
    assert sum(each.count("word") for each in found) == 1_000
    assert sentences("x" * 2_500) == ["x" * 1_000, "x" * 1_000, "x" * 500]


@given(st.text(st.sampled_from("aB .!?\n\"'()1-。」「U.S") | st.characters(), max_size=120))
def test_sentences_are_in_order_apart_and_hold_every_word(text: str) -> None:
    spans = split_sentences(text)
    edges = [edge for span in spans for edge in span]
    assert edges == sorted(edges)
    assert all(text[start:stop].strip() == text[start:stop] != "" for start, stop in spans)
    inside = {i for start, stop in spans for i in range(start, stop)}
    assert all(i in inside for i, letter in enumerate(text) if letter.isalnum())


@pytest.mark.parametrize("run", [" ", ".", "'", "\n ", "a.", "。", "1. ", "-"])
def test_a_long_run_of_marks_is_no_trap(run: str) -> None:
    assert len(split_sentences(run * 20_000 + "x")) <= 20_001
