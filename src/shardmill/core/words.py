"""How a text is cut into words, in every script: for search, duplicates, the names of clusters, and ROUGE.

Where a script has no spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese), pieces of a fixed number of characters take
the place of words. A character is a letter with the signs of vowels, tones and accents that follow it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache

from shardmill.core.languages import ignored_words

# Han, kana and what belongs to them; a piece of two characters is most often a word or the end of one.
_IDEOGRAPHS = "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
_IDEOGRAPHS += "\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U000323af"
# Thai, Lao, Burmese, Khmer.
_LETTERS = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u109d\u1780-\u17d3\u17dc"
_PIECE = 2
_RUN = re.compile(rf"(?P<ideographs>[{_IDEOGRAPHS}]+)|(?P<letters>[{_LETTERS}]+)|[^{_IDEOGRAPHS}{_LETTERS}]+")
_SPACELESS = re.compile(f"[{_IDEOGRAPHS}{_LETTERS}]")
# Written differently by habit, and read the same: vowels and stretched letters of Arabic, forms of alef, yeh and teh.
_ARABIC = re.compile("[\u0600-\u06ff]")
_ARABIC_SIGNS = re.compile("[\u0610-\u061a\u0640\u064b-\u065f\u0670]")
_ARABIC_FORMS = str.maketrans(
    "\u0623\u0625\u0622\u0671\u0649\u06cc\u0629\u06a9", "\u0627\u0627\u0627\u0627\u064a\u064a\u0647\u0643"
)
_SHORTEST = 2


@cache
def _signs() -> str:
    """Signs of vowels and accents, which are part of a word in many scripts, though no letters."""
    return "".join(sign for sign in map(chr, range(0x300, 0x20000)) if unicodedata.category(sign) in ("Mn", "Mc"))


@cache
def _sign_set() -> frozenset[str]:
    return frozenset(_signs())


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A word of ASCII, one of any script, and one character with its signs."""
    return re.compile(r"\w+"), re.compile(rf"\w[\w{_signs()}]*"), re.compile(rf".[{_signs()}]*")


def find_words(text: str) -> list[str]:
    """Letters and digits that follow one another, with their signs; a run of a script without spaces is one.

    >>> find_words("हिन्दी, 2 words!")
    ['हिन्दी', '2', 'words']
    """
    ascii_words, words, _ = _patterns()
    return (ascii_words if text.isascii() else words).findall(text)


def has_signs(text: str) -> bool:
    """Whether a text has signs of vowels or accents that are no letters."""
    return not text.isascii() and any(map(_sign_set().__contains__, text))


def is_spaceless(word: str) -> bool:
    """Whether a part of it is of a script that has no spaces."""
    return not word.isascii() and _SPACELESS.search(word) is not None


def cut_characters(words: list[str]) -> list[str]:
    """The words, with each character of a script without spaces as a word of its own.

    >>> cut_characters(["iphone的电池", "ok"])
    ['iphone', '的', '电', '池', 'ok']
    """
    return [piece for word in words for piece in (_characters(word) if is_spaceless(word) else (word,))]


def cut_pieces(word: str, size: int = _PIECE) -> Iterator[str]:
    """The parts of a word by script, those without spaces in pieces of `size` characters that overlap.

    >>> list(cut_pieces("iphone的电池"))
    ['iphone', '的电', '电池']
    """
    for run in _RUN.finditer(word):
        if run.lastgroup is None:
            yield run[0]
            continue
        characters = _patterns()[2].findall(run[0])
        length = size if run.lastgroup == "ideographs" else size + 1
        for i in range(max(1, len(characters) - length + 1)):
            yield "".join(characters[i : i + length])


def index_words(text: str, language: str) -> list[str]:
    """The words of a text that it can be found by, in any language but English, which `bm25s` cuts as it always did.

    >>> index_words("Der Fluss tritt über die Ufer.", "de")
    ['fluss', 'tritt', 'ufer']
    """
    ignored = ignored_words(language)
    found: list[str] = []
    for word in find_words(unicodedata.normalize("NFKC", text).casefold()):
        if word in ignored:
            continue
        if _ARABIC.match(word):
            word = _ARABIC_SIGNS.sub("", word).translate(_ARABIC_FORMS)
        if is_spaceless(word):
            found += cut_pieces(word)
        elif len(word) >= _SHORTEST:
            found.append(word)
    return found


def _characters(word: str) -> Iterator[str]:
    for run in _RUN.finditer(word):
        yield from [run[0]] if run.lastgroup is None else _patterns()[2].findall(run[0])
