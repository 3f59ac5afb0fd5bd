"""Languages by their codes: names, scripts, the words that say little, and which one a sample of texts is in."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache

from shardmill.core.errors import UsageError, nearest

# English is cut as in every version so far; MIXED has words of any script, and none of them is ignored.
ENGLISH, MIXED = "en", "mul"

_LATIN, _HAN, _KANA = "latin", "han", "kana"


def read_table(text: str) -> dict[str, str]:
    """Pairs of words: "a:b c:d"."""
    return dict(each.split(":") for each in text.split())


_NAMES = read_table(
    "ar:arabic bn:bengali cs:czech da:danish de:german el:greek en:english es:spanish fa:persian fi:finnish fr:french "
    "he:hebrew hi:hindi hu:hungarian it:italian ja:japanese km:khmer ko:korean lo:lao my:burmese nl:dutch no:norwegian "
    "pl:polish pt:portuguese ro:romanian ru:russian sv:swedish ta:tamil te:telugu th:thai tr:turkish uk:ukrainian "
    "zh:chinese mul:mixed"
)
# The language of a script that one of them, or none of those with words below, is written in.
_OF_SCRIPT = read_table(
    "arabic:ar bengali:bn cyrillic:ru devanagari:hi greek:el hangul:ko hebrew:he han:zh khmer:km lao:lo latin:en "
    "myanmar:my tamil:ta telugu:te thai:th"
)
# Frequent words that tell a language, and that tell nothing of a text in it.
_SAID_LITTLE = {
    "ar": "في من على إلى عن مع هذا هذه ذلك التي الذي و أو أن إن لا ما لم كان كانت هو هي بين بعد قبل كل قد ثم حتى كما",
    "cs": "a i na je se že v ve z ze do o u k s si to ten ta pro by byl byla jsou jako ale nebo od po při jeho její",
    "da": "og i at det en den til er som på de med han af for ikke der var et men jeg sig fra ud havde hun eller",
    "de": "der die das und in den von zu mit ist des sich dem für nicht ein eine auf im auch als an es er sie wird "
    "werden bei aus wie nach oder aber war hat einer eines einem einen dass am zum zur über sind so ich wir man",
    "en": "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with",
    "es": "el la los las de que y en un una se del al por con para es no lo su sus como más o pero fue ha son este",
    "fa": "و در به از که این را با است برای آن یک خود تا بر هم نیز شد بود ها می شود کرد یا آنها",
    "fi": "ja on ei se että oli hän mutta niin kun myös tai ovat joka sen ne sekä kuin ollut vain jos mukaan",
    "fr": "le la les de des et en un une du que qui dans il elle est pour pas au aux par sur avec ce se sont plus "
    "ne ou mais son sa ses été cette comme",
    "hi": "के का की है में से और को पर यह एक ने हैं कि जो भी था थी थे हो कर लिए इस वह या नहीं तो अपने गया रहा रहे साथ",
    "hu": "a az és hogy nem is egy van volt meg ez ha csak de mint el még már azt vagy ki be",
    "it": "il lo la i gli le di che e è un una in del della dei per non con si da al alla sono come più o ma anche",
    "nl": "de het een en van in is dat op te zijn met voor niet aan er die was als ook maar om door naar bij uit of",
    "no": "og i det er på som en et til av for at med de ikke han den var har jeg men om seg fra vi eller hun",
    "pl": "i w na z się do nie to że o jest jak po za od dla co tak ale czy przez który która które był była oraz",
    "pt": "o a os as de que e em um uma do da dos das no na por com para se não é mais como ao foi são seu sua mas ou",
    "ro": "și de în la a cu că nu o un pe din se este pentru sunt mai ca care au fost după sau dar prin",
    "ru": "и в не на что он она с как это а то но по к из у за от же для о бы был была были его её их или так "
    "только при до ещё если когда ли со во",
    "sv": "och i att det som en på är av för med den till inte ett de om har han var jag men sig från så eller hon",
    "tr": "ve bir bu da de için ile çok ne o daha gibi kadar ama en olarak olan sonra var mi her ya ki değil",
    "uk": "і в не на що він вона з як це а то але по до із у за від же для о був була були його її їх або та є й ще",
}
_LETTERS_OF = {ENGLISH: _LATIN, "ru": "cyrillic", "uk": "cyrillic", "ar": "arabic", "fa": "arabic", "hi": "devanagari"}
# Nearly all letters of an English text are Latin; half of those of any other language are of its script.
_ALMOST_ALL, _MOST = 0.95, 0.5
# Running text has a quarter of such words or more, a list of names hardly any.
_LEAST_SAID, _LEAST_DIFFERENT = 0.05, 3
# Japanese without kana would be Chinese.
_LEAST_KANA = 0.02
_SAMPLE_TEXTS, _SAMPLE_CHARS = 500, 500
_LETTERS = re.compile(r"[^\W\d_]+")


def read_language(said: str) -> str:
    """The code of a language that is named by it or in English, as a full-text column of a table has it.

    >>> read_language("German"), read_language("zh-Hans")
    ('de', 'zh')
    """
    name = said.strip().lower()
    code = re.split(r"[-_]", name)[0]
    by_name = {each: code for code, each in _NAMES.items()}
    found = by_name.get(name) or (code if code in _NAMES else None)
    if found is None:
        raise UsageError(
            f"The language {said!r} is not known.",
            hint=nearest(name, [*by_name]) or f"Known: {', '.join(f'{c} ({n})' for c, n in sorted(_NAMES.items()))}.",
        )
    return found


@cache
def ignored_words(language: str) -> frozenset[str]:
    """The words of a language that tell nothing of a text."""
    return frozenset(_SAID_LITTLE.get(language, "").split())


def find_language(texts: Sequence[str]) -> str:
    """The language of most of the texts, by their letters and frequent words; English if Latin letters tell no other.

    >>> find_language(["Der Hund schläft auf dem Sofa und träumt."]), find_language(["猫がソファーで寝ている。"])
    ('de', 'ja')
    """
    some = [text[:_SAMPLE_CHARS] for text in texts[:: max(1, len(texts) // _SAMPLE_TEXTS)] if text]
    words = [word for text in some for word in _LETTERS.findall(text.lower())]
    scripts: Counter[str] = Counter()
    for char, number in Counter("".join(words)).items():
        scripts[_script_of(char)] += number
    letters = scripts.total()
    kana = scripts.pop(_KANA, 0)
    scripts[_HAN] += kana
    if not letters or scripts[_LATIN] >= _ALMOST_ALL * letters:
        return _find_by_words(words, _LATIN)
    script, number = max(scripts.items(), key=lambda each: (each[0] != _LATIN, each[1]))
    if number < _MOST * letters or script == _LATIN:
        return MIXED
    if script == _HAN:
        return "ja" if kana > _LEAST_KANA * number else "zh"
    return _find_by_words(words, script)


def is_english(*texts: str) -> bool:
    """Whether texts are in English for certain: by its words, or because no letter is of another alphabet."""
    letters = "".join(letter for text in texts for letter in _LETTERS.findall(text))
    if letters.isascii():
        return True
    return find_language(texts) == ENGLISH and not ignored_words(ENGLISH).isdisjoint(
        word for text in texts for word in _LETTERS.findall(text.lower())
    )


def _find_by_words(words: Sequence[str], script: str) -> str:
    """The language whose frequent words are many among these; if none, the usual one of the script."""
    counts = Counter(words)
    usual = _OF_SCRIPT.get(script, MIXED)
    best, most = usual, 0
    for language in sorted(_SAID_LITTLE, key=lambda each: each != usual):
        if _LETTERS_OF.get(language, _LATIN) == script:
            seen = [counts[word] for word in ignored_words(language) if len(word) > 1 and counts[word]]
            if len(seen) >= _LEAST_DIFFERENT and sum(seen) > max(most, _LEAST_SAID * len(words)):
                best, most = language, sum(seen)
    return best


@cache
def _script_of(char: str) -> str:
    """The script of a letter, by its name in Unicode."""
    first = unicodedata.name(char, "").split(" ")[0].split("-")[0].lower()
    return {"cjk": _HAN, "hiragana": _KANA, "katakana": _KANA, "halfwidth": _KANA}.get(first, first)
