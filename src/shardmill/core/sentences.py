"""Splits a text into sentences by rules: marks, abbreviations, quotes and blank lines; no model, any script."""

from __future__ import annotations

import re
from collections.abc import Iterator

# A sentence without an end, such as a transcript's, is cut at a space before this many characters.
MOST_CHARACTERS = 1_000

_CLOSERS = "\"'”’»)]}」』】）》〉"
_OPENERS = "\"'“‘«([{「『【（《〈¿¡-–—•*"
# After these marks no space is needed.
_WIDE = "。！？｡．"
_NARROW = ".!?…؟۔।॥။።։"
# Possessive, and from the first mark of a run only: a long run of marks takes no longer than other text.
_END = re.compile(
    rf"[{_WIDE}]+[{_WIDE}{re.escape(_NARROW + _CLOSERS)}]*"
    rf"|(?<![{_NARROW}])[{_NARROW}]++[{re.escape(_CLOSERS)}]*+(?=\s|$)"
)
_BREAK = re.compile(r"\n[^\S\n]*+(?:\n\s*|(?=[-–—•*·]\s|\d{1,3}[.)]\s))|\u2029|\f")
# A quotation that ends in the middle of a Japanese or Chinese sentence.
_QUOTED = tuple("とっ、，のをで")
# A name that begins in lower case: iPhone, eBay.
_BRAND = re.compile(r"[a-z][A-Z]")
_SPACES = re.compile(r"\s+")
_WORD = re.compile(r"\w+")
_WORD_BEFORE = re.compile(r"[^\s\"'“”‘’«»()\[\]{}]*$")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# No sentence ends after these, whatever follows.
_TITLES = _words(
    """mr mrs ms mx dr prof rev hon sr jr st mt ft gen col maj capt cmdr lt sgt cpl pvt adm gov sen rep pres supt det
    insp messrs mme mlle sra vs e.g i.e eg ie cf viz approx al z.b d.h bzw u.a bspw"""
)
# No sentence ends between these and a number.
_NUMBERED = _words("no nos nr vol pp p fig figs eq eqs sec ch art ca c op v")
# After these a sentence ends only if the next word often begins one.
_PERHAPS = _words(
    """inc ltd co corp llc plc bros dept univ assn etc a.m p.m ave blvd rd hrs ph.d b.a m.a b.sc m.sc m.d usw
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun"""
)
_STARTERS = _words(
    """a an the this that these those he she it they we i you his her its their our my your there here in on at for
    from with by after before when while as if but and or so yet however although though since because who what where
    why how one two some many most all each both no not now then also another police officials"""
)


def split_sentences(text: str) -> list[tuple[int, int]]:
    """The sentences of a text as ranges of characters, in order, without the space around them.

    >>> text = 'Dr. Ng paid $3.50. "Why?" he asked.'
    >>> [text[start:stop] for start, stop in split_sentences(text)]
    ['Dr. Ng paid $3.50.', '"Why?" he asked.']
    """
    spans = (_trim(text, start, stop) for start, stop in _pieces(text))
    return [(start, stop) for start, stop in spans if any(map(str.isalnum, text[start:stop]))]


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for stop in _ends(text):
        yield from _cut_long(text, start, stop)
        start = stop
    yield from _cut_long(text, start, len(text))


def _ends(text: str) -> Iterator[int]:
    """Where a sentence ends, in order."""
    paragraphs = [match.end() for match in _BREAK.finditer(text)]
    start = at = 0
    for match in _END.finditer(text):
        while at < len(paragraphs) and paragraphs[at] <= match.start():
            start = paragraphs[at]
            yield start
            at += 1
        if _is_end(text, start, match):
            start = match.end()
            yield start
    yield from paragraphs[at:]


def _is_end(text: str, start: int, match: re.Match[str]) -> bool:
    mark = match[0]
    if mark[0] in _WIDE:
        return mark[-1] not in _CLOSERS or text[match.end() : match.end() + 1] not in _QUOTED
    after = _SPACES.match(text, match.end())
    if after is None:
        return True
    at = after.end()
    while at < len(text) and text[at] in _OPENERS:
        at += 1
    if text[at : at + 1].islower() and not _BRAND.match(text, at):
        return False
    return not mark.startswith(".") or mark.startswith("..") or _ends_word(text, start, match.start(), at)


def _ends_word(text: str, start: int, dot: int, following: int) -> bool:
    """Whether a full stop ends a sentence, and not an abbreviation, an initial or the number of an item."""
    before = _WORD_BEFORE.search(text, max(start, dot - 40), dot)
    word = before[0].lstrip("-–—") if before else ""
    if not word:
        return True
    if word.isdigit() and not text[start : dot - len(word)].strip():
        return False
    lower = word.lower()
    if lower in _TITLES or (lower in _NUMBERED and text[following : following + 1].isdigit()):
        return False
    initials = len(word) == 1 and word.isalpha() and word.isupper() and word != "I"
    dotted = "." in word and all(len(part) == 1 and part.isalpha() for part in word.split("."))
    if initials or dotted or not _PERHAPS.isdisjoint((word, lower)):
        next_word = _WORD.match(text, following)
        return next_word is not None and next_word[0].lower() in _STARTERS and not (initials and next_word[0] == "A")
    return True


def _cut_long(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    while stop - start > MOST_CHARACTERS:
        limit = start + MOST_CHARACTERS
        space = max(text.rfind(" ", start + 1, limit), text.rfind("\n", start + 1, limit))
        middle = space if space > start else limit
        yield start, middle
        start = middle
    if start < stop:
        yield start, stop


def _trim(text: str, start: int, stop: int) -> tuple[int, int]:
    piece = text[start:stop]
    stop = start + len(piece.rstrip())
    return min(stop, start + len(piece) - len(piece.lstrip())), stop
