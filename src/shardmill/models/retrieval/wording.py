"""How the texts of an index are cut into words: by its language, which is recorded with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.extras import missing_package
from shardmill.core.languages import ENGLISH, find_language, read_language, read_table
from shardmill.core.words import index_words

# In the folder of an index. One without it is English: earlier versions knew no other.
FILE = "words.json"
# The languages of which PyStemmer knows the endings, by its names. English words keep theirs, as they always did.
_STEMMED = read_table(
    "ar:arabic da:danish de:german el:greek es:spanish fi:finnish fr:french hi:hindi hu:hungarian it:italian nl:dutch "
    "no:norwegian pt:portuguese ro:romanian ru:russian sv:swedish ta:tamil tr:turkish"
)
_STEMMER = "Stemmer"


@dataclass(frozen=True, slots=True)
class WordRules:
    """The language of an index, and whether its words are without their endings."""

    language: str = ENGLISH
    stems: bool = False

    @classmethod
    def of(cls, language: str) -> WordRules:
        """Those of a language: with stems if it has them and the library is installed."""
        return cls(language, language in _STEMMED and find_spec(_STEMMER) is not None)

    @classmethod
    def settle(cls, asked: str, sample: Callable[[], Sequence[str]]) -> WordRules:
        """Those of the language that is asked for or, if none is, that a sample of the texts is in."""
        return cls.of(read_language(asked) if asked else find_language(sample()))

    @classmethod
    def decode(cls, said: bytes, place: object) -> WordRules:
        try:
            return cls(**json.loads(said))
        except (ValueError, TypeError) as error:
            raise CorruptState(f"{place} is damaged.", hint="Delete its folder: it is written again.") from error

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @property
    def lacks_stems(self) -> bool:
        """Whether a library would find more, that was not installed."""
        return self.language in _STEMMED and not self.stems

    def is_less_than(self, wanted: WordRules) -> bool:
        """Whether an index by these is another than one by those that are wanted, or lacks the stems of it."""
        return self.language != wanted.language or (wanted.stems and not self.stems)

    @property
    def ending(self) -> str:
        """What the names of its folders have after those of their groups; those of English, nothing."""
        return "" if self.language == ENGLISH else f".{self.language}{'-stems' if self.stems else ''}"

    def say(self) -> str:
        """The language, for what a result depends on; empty for English, as before there were others."""
        return "" if self.language == ENGLISH else f"{self.language}{', stems' if self.stems else ''}"

    def cut(self, texts: Sequence[str], english: Callable[[Sequence[str]], list[list[str]]]) -> list[list[str]]:
        """The words of each text; those of English are cut by the function given."""
        if self.language == ENGLISH:
            return english(texts)
        found = [index_words(text, self.language) for text in texts]
        if self.stems:
            stemmer = _open_stemmer(self.language)
            found = [stemmer.stemWords(words) for words in found]
        return found


def read_rules(folder: Path) -> WordRules | None:
    """Those of the index in a folder; None if they are not recorded."""
    path = folder / FILE
    return WordRules.decode(path.read_bytes(), path) if path.exists() else None


def _open_stemmer(language: str) -> Any:
    try:
        from Stemmer import Stemmer
    except ImportError as error:
        raise missing_package("PyStemmer") from error
    return Stemmer(_STEMMED[language])
