"""How good answers are, by SQuAD 2.0's rules: exact match and F1 of normalized texts; no answer is the empty text."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, without punctuation, articles and extra blanks.

    >>> normalize("The Seine, in  Paris!")
    'seine in paris'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 if the answer is one of the right ones. Without any, the right answer is none."""
    return max(float(normalize(answer) == normalize(each)) for each in _given(right))


def f1(answer: str, right: Sequence[str]) -> float:
    """The best overlap of words with one of the right answers.

    >>> f1("in the Seine", ["the river Seine"])
    0.5
    """
    return max(_overlap(normalize(answer).split(), normalize(each).split()) for each in _given(right))


def _given(right: Sequence[str]) -> Sequence[str]:
    return [each for each in right if normalize(each)] or [""]


def _overlap(answer: Sequence[str], right: Sequence[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    same = sum((Counter(answer) & Counter(right)).values())
    return 2 * same / (len(answer) + len(right)) if same else 0.0
