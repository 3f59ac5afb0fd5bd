"""Which tokenizers read the words of a text one by one, and where their words end.

Both are read from the tokenizer's own description. What is not known here is tokenized by the library, text by text.

Design: docs/design/tokenizing.md
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_SPACE = 32
# The bytes of ASCII's white space, which tokenizers do not tell apart from Unicode's.
_WHITE = np.zeros(256, bool)
_WHITE[[9, 10, 11, 12, 13, _SPACE]] = True
_WHITE_CHARS = " \t\n\r\x0b\x0c"
# White space beyond those, by Python or by Unicode, at the ends of a word.
_RARE_WHITE_ENDS = re.compile(rf"^[{_WHITE_CHARS}]*[^\S{_WHITE_CHARS}]|[^\S{_WHITE_CHARS}]\Z")
_MARK = "▁"
_BLANKS = " \t\n\r"
# Normalizers that turn each character into others, whatever is beside it.
_BERT_NORMALIZERS = {"BertNormalizer", "Lowercase"}
# And those that see no further than the characters of Unicode that are written as several.
_LOCAL_NORMALIZERS = {"Lowercase", "StripAccents", "Nmt", "NFC", "NFD", "NFKC", "NFKD", "Precompiled"}
_CANONICAL = {"NFC", "NFD"}
# The parts of the patterns of byte-level tokenizers. A space is the first character of what a part finds, or one of a
# run of white space; a run that a word follows keeps its last character for the word.
_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_RUNS = (r"\s+(?!\S)", r"\s+")
_PARTS = {
    f"(?i:{_CONTRACTIONS})",
    *_CONTRACTIONS.split("|"),
    r" ?\p{L}+",
    r" ?\p{N}+",
    r"\p{N}",
    r"\p{N}{1,3}",
    r"\p{N}{1,2}",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
}
_LINES = r"\s*[\r\n]+"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
# Characters of letters' categories that belong to the character before them.
_CLINGING = {0x0E33, 0x0EB3, 0xFF9E, 0xFF9F, *range(0x1F3FB, 0x1F400)}


@dataclass(frozen=True, slots=True)
class Wordwise:
    """Where words end, and which of them may have other ids beside others.

    With `blanks`, words are what is between those characters, which are nothing. Else a word begins with the spaces
    before it, or with all but the first of them if it is `unled`, and `lines` says where it ends beside the ends of
    lines: nowhere (""), "before" the last one or "after" it. `trailing` says that the spaces at the end of a text are
    nothing, and `spells` that the position of an id in its word is that in the text. `is_odd` tells a word whose ids
    may depend on what is beside it.
    """

    blanks: str = ""
    unled: bool = False
    lines: str = ""
    trailing: bool = False
    spells: bool = True
    unsafe_ids: frozenset[int] = frozenset()
    is_odd: Callable[[str], bool] | None = None

    @property
    def joint(self) -> str:
        """What is put between words to make a text of them."""
        return " " if self.blanks or self.unled else ""

    def joins(self, word: str) -> bool:
        """Whether a text of such words, with the joint between them, has exactly these words, if they are not odd."""
        return bool(self.blanks) or (word[-1] not in _WHITE_CHARS and (self.unled or word[0] == " "))


@dataclass(frozen=True, slots=True)
class CutTexts:
    """Words of texts, as places in a buffer that goes on after the last of them; the first word of each text."""

    padded: NDArray[np.uint8]
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first_words: NDArray[np.int64]
    offsets: NDArray[np.int64]
    odd: NDArray[np.int64] | None

    def spellings(self, words: NDArray[np.int64]) -> list[str]:
        """Some of the words."""
        data, begins = self.padded.tobytes(), self.begins[words]
        ends = begins + self.lengths[words]
        return [data[a:b].decode() for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]

    def count_characters(self) -> NDArray[np.int64]:
        """The number of characters of its text before each word."""
        first = np.repeat(self.offsets[:-1], np.diff(self.first_words))
        begun = (self.padded & 0xC0) != 0x80
        if begun.all():
            return self.begins - first
        counted = np.concatenate([[0], np.cumsum(begun)])
        return np.asarray(counted[self.begins] - counted[first], np.int64)


def cut_words(texts: Sequence[str], rule: Wordwise, beyond: int) -> CutTexts:
    """Cut texts into words; `beyond` bytes follow the last one. Text that is not valid Unicode raises UnicodeError."""
    # Each text ends with a space of ours, and so does its last word.
    ended = [text.rstrip(" ") + " " for text in texts] if rule.trailing else [text + " " for text in texts]
    array = pa.array(ended, pa.large_string())
    offsets = np.zeros(len(texts) + 1, np.int64)
    data = np.zeros(0, np.uint8)
    if texts:
        offsets = np.frombuffer(array.buffers()[1], np.int64)[: len(texts) + 1]
        data = np.frombuffer(array.buffers()[2], np.uint8)[: offsets[-1]]
    padded = np.concatenate([data, np.zeros(beyond, np.uint8)])
    ends = offsets[1:] - 1
    if rule.blanks:
        blank = data == ord(rule.blanks[0])
        for other in rule.blanks[1:]:
            blank |= data == ord(other)
        at = np.flatnonzero(blank)
    else:
        at = np.flatnonzero(data == _SPACE)
        keep = ~_WHITE[data[at - 1]]
        keep[np.searchsorted(at, ends)] = True
        at = at[keep]
        if rule.lines and len(more := _line_cuts(data, rule.lines)):
            at = np.sort(np.concatenate([at, more]))
    last = np.searchsorted(at, ends)
    begins = np.concatenate([np.zeros(min(1, len(at)), np.int64), at[:-1]])
    if rule.blanks or rule.unled:
        begins[1:] += 1
    else:
        begins[last[:-1] + 1] += 1
    lengths = at - begins
    odd = None
    if rule.unled:
        # The one space at the end of a text is a word that would begin after it.
        odd = np.flatnonzero(lengths == 0)
        odd = odd[np.diff(offsets)[np.searchsorted(last, odd)] > 1]
    return CutTexts(padded, begins, lengths, np.concatenate([[0], last + 1]), offsets, odd)


def _line_cuts(data: NDArray[np.uint8], lines: str) -> NDArray[np.int64]:
    ends = np.flatnonzero((data == 10) | (data == 13))
    # Our own space follows the last end of a line.
    ends = ends[~_WHITE[data[ends + 1]]]
    return ends + 1 if lines == "after" else ends


def find_cut(text: str, size: int, rule: Wordwise) -> int:
    """The last place up to `size` where a word ends and a space follows; 0 if there is none."""
    at = text.rfind(" ", 0, size)
    if not rule.blanks:
        while at > 0 and text[at - 1] in _WHITE_CHARS:
            at = text.rfind(" ", 0, at)
    return max(0, at)


def read_rule(backend: Any) -> Wordwise | None:
    """How the words of a tokenizer end; None if they are not read one by one, as far as is known."""
    described = _describe(backend.normalizer), _describe(backend.pre_tokenizer)
    normalizers, splitters = _parts(described[0], "normalizers"), _parts(described[1], "pretokenizers")
    kind = type(backend.model).__name__
    added = list(backend.get_added_tokens_decoder().items())
    if getattr(backend.model, "dropout", None) or backend.encode("", add_special_tokens=False).ids:
        return None
    kinds = [part["type"] for part in splitters]
    if kind == "WordPiece" and kinds == ["BertPreTokenizer"]:
        rule = Wordwise(blanks=_BLANKS) if _types(normalizers) <= _BERT_NORMALIZERS else None
    elif kinds == ["WhitespaceSplit", "Metaspace"]:
        rule = _between_blanks(backend, normalizers, splitters[1])
    elif kinds in (["ByteLevel"], ["Split", "ByteLevel"]) and kind == "BPE":
        rule = _by_pattern(normalizers, splitters)
    elif kinds == ["Metaspace"] and kind in ("Unigram", "BPE") and splitters[0]["split"]:
        rule = _by_marks(backend, normalizers)
    elif kind == "BPE":
        rule = _by_merges(backend, normalizers, splitters)
    else:
        rule = None
    return None if rule is None else _among_added(rule, added, normalizers, _ends_apart(backend))


def _describe(part: Any) -> dict[str, Any]:
    return json.loads(part.__getstate__()) if part is not None else {}


def _parts(described: dict[str, Any], key: str) -> list[dict[str, Any]]:
    if not described:
        return []
    return [part for each in described[key] for part in _parts(each, key)] if key in described else [described]


def _types(parts: list[dict[str, Any]]) -> set[str]:
    return {part["type"] for part in parts}


def _between_blanks(backend: Any, normalizers: list[dict[str, Any]], marks: dict[str, Any]) -> Wordwise | None:
    """As XLM-R and T5: what is between blanks gets a mark in front, the first word of a text like all others."""
    others = [part for part in normalizers if part["type"] not in _LOCAL_NORMALIZERS | {"Strip"}]
    if marks["prepend_scheme"] == "first" or not all(map(_is_harmless, others)):
        return None
    normalize = backend.normalizer.normalize_str if normalizers else str
    blanks = "".join(blank for blank in _BLANKS if _stays_blank(normalize, blank))
    if " " not in blanks or not _stays_blank(normalize, "\r\n"):
        return None
    clusters = "Precompiled" in _types(normalizers)
    return Wordwise(blanks=blanks, is_odd=_clings if clusters else None)


def _stays_blank(normalize: Callable[[str], str], blank: str) -> bool:
    made = normalize(f"a{blank}b")
    return made[:1] == "a" and made[-1:] == "b" and len(made) > 2 and made[1:-1].isspace()


def _is_harmless(part: dict[str, Any]) -> bool:
    """Whether it replaces text without a blank by text without a blank, or blanks by one."""
    if part["type"] != "Replace":
        return False
    pattern, content = part["pattern"], part["content"]
    if pattern.get("Regex") == " {2,}":
        return bool(content == " ")
    replaced = pattern.get("String", " ")
    return bool(replaced) and not any(c.isspace() for c in replaced + content)


def _by_pattern(normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> Wordwise | None:
    """As GPT-2, ModernBERT, Qwen and Llama 3: words by a pattern, as bytes."""
    if not _types(normalizers) <= _CANONICAL or splitters[-1]["add_prefix_space"]:
        return None
    if len(splitters) == 1:
        pattern = _GPT2 if splitters[0]["use_regex"] else ""
    else:
        split = splitters[0]
        plain = split["behavior"] == "Isolated" and not split["invert"] and not splitters[1]["use_regex"]
        pattern = split["pattern"].get("Regex", "") if plain else ""
    parts = _alternatives(pattern)
    if tuple(parts[-2:]) != _RUNS or not set(parts[:-2]) <= _PARTS | {_LINES}:
        return None
    if _LINES not in parts:
        # What takes the ends of lines after signs would need a pattern for those alone.
        lines = "" if any(part.endswith(r"[\r\n]*") for part in parts) else "before"
    else:
        lines = "after" if parts[-3] == _LINES else ""
    return Wordwise(lines=lines, is_odd=_ends_white)


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern; those in brackets belong together."""
    return [
        found[0] for found in re.finditer(r"(?:\((?:\\.|[^()])*\)[+*?]*|\[(?:\\.|[^\]\\])*\]|\\.|[^|\\(\[])+", pattern)
    ]


def _by_marks(backend: Any, normalizers: list[dict[str, Any]]) -> Wordwise | None:
    """As SentencePiece: each space begins a word, as a mark."""
    others = [part for part in normalizers if part["type"] not in _LOCAL_NORMALIZERS]
    strips = [part for part in others if part["type"] == "Strip"]
    if any(part["strip_left"] for part in strips) or not all(_is_mark(part) for part in others if part not in strips):
        return None
    if not normalizers:
        return Wordwise(is_odd=_ends_white)
    normalize = backend.normalizer.normalize_str
    if normalize("a b")[:1] != "a" or normalize("a b")[1:2] not in (" ", _MARK):
        return None

    def is_odd(word: str) -> bool:
        made = normalize(word)
        if _clings_after(word) or not made:
            return True
        # Only the end of a text has a word of nothing but spaces.
        return (made[-1].isspace() or made[-1] == _MARK or _ends_white(word)) and bool(word.strip(" "))

    return Wordwise(is_odd=is_odd, trailing=any(part["strip_right"] for part in strips))


def _is_mark(part: dict[str, Any]) -> bool:
    return _is_harmless(part) or (
        part["type"] == "Replace" and part["pattern"].get("Regex") == " {2,}" and part["content"] == _MARK
    )


def _by_merges(backend: Any, normalizers: list[dict[str, Any]], splitters: list[dict[str, Any]]) -> Wordwise | None:
    """As Gemma and Llama 2: a text is one word to the merges, and none of them joins a mark to what is before it."""
    marks = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
    prepends = [{"type": "Prepend", "prepend": _MARK}, marks]
    nothing = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    unled = normalizers == prepends and not splitters
    by_normalizer = unled or (normalizers == [marks] and splitters in ([], [nothing]))
    by_splitter = not normalizers and _types(splitters) == {"Metaspace"} and not splitters[0]["split"]
    if not (by_normalizer or by_splitter):
        return None
    model = backend.model
    if model.ignore_merges or model.end_of_word_suffix or model.continuing_subword_prefix:
        return None
    vocabulary = backend.get_vocab(with_added_tokens=False)
    if _MARK not in vocabulary or re.search(
        f"[^\n{_MARK}]{_MARK}", "\n".join(t.replace("\n", ".") for t in vocabulary)
    ):
        return None
    return Wordwise(unled=unled, spells=not unled, is_odd=lambda word: word.endswith(_MARK))


def _among_added(
    rule: Wordwise, added: list[tuple[int, Any]], normalizers: list[dict[str, Any]], spells: bool
) -> Wordwise | None:
    """The rule beside added tokens, which the library looks for before all else, inside words as well."""
    changed = not _types(normalizers) <= _CANONICAL | _BERT_NORMALIZERS
    unsafe = set()
    for i, token in added:
        text = token.content
        if rule.blanks and (token.single_word or any(c.isspace() for c in text)):
            return None
        if re.search(rf"[^{_WHITE_CHARS}] ", text):
            return None
        if token.normalized and changed and not (text.isascii() and text.isprintable() and " " not in text):
            return None
        if rule.lines and re.search(r"[\r\n]", text):
            rule = replace(rule, lines="")
        if token.lstrip or token.rstrip or token.single_word or rule.unled or rule.trailing:
            unsafe.add(i)
    return replace(rule, unsafe_ids=frozenset(unsafe), spells=rule.spells and spells)


def _ends_apart(backend: Any) -> bool:
    """Whether the position of a word's first id is the same in the middle of a text as at its beginning."""
    described = _describe(backend.post_processor)
    parts = _parts(described, "processors")
    return not any(part.get("trim_offsets") and part.get("add_prefix_space") for part in parts)


def _ends_white(word: str) -> bool:
    """Whether white space that is not ASCII's may go on in the word before or after."""
    return _RARE_WHITE_ENDS.search(word) is not None


def _clings(word: str) -> bool:
    """Whether the word's first or last character may be one with the blank beside it."""
    first = word[0]
    clinging = not first.isascii() and (unicodedata.category(first)[0] not in "LNPS" or ord(first) in _CLINGING)
    return clinging or _clings_after(word)


def _clings_after(word: str) -> bool:
    last = word[-1]
    if last.isascii():
        return False
    letter = unicodedata.category(last)[0] in "LMNPS"
    return not letter or ord(last) == 0x0D4E or 0x11000 <= ord(last) < 0x12000
