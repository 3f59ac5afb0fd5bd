"""Tokenizers of every kind, with words looked up: ids, positions and cuts are those of the tokenizers library."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.hard_texts import NASTY, huge, short
from tests.support.libraries import needed

tokenizers = needed("tokenizers")

from tokenizers import AddedToken, Regex, models, normalizers, processors, trainers  # noqa: E402
from tokenizers import Tokenizer as Backend  # noqa: E402
from tokenizers import pre_tokenizers as splits  # noqa: E402

from shardmill.models.tokenizer import Tokenizer  # noqa: E402
from shardmill.models.word_table import WordKeys, WordTable  # noqa: E402
from shardmill.models.wordwise import read_rule  # noqa: E402

CORPUS = [
    "The quick brown fox doesn't jump over 12,345 lazy dogs; it's running, they'll see.",
    "def embed(texts):\n    return [model(text) for text in texts]\n\n# naïve café, 漢字 and мир 🙂",
    "the the the running runner ran  with  two spaces,\tand tabs.\r\nNew lines\n\nand more: e\u0301 and é.",
] * 5
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
MERGED_SPECIALS = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256))]


def _bytes(pattern: str | None = None, normalizer: Any = None, **model: Any) -> Any:
    made = Backend(models.BPE(**model))
    made.normalizer = normalizer
    made.pre_tokenizer = splits.ByteLevel(add_prefix_space=False)
    if pattern is not None:
        last = splits.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = splits.Sequence([splits.Split(Regex(pattern), "isolated"), last])
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<s>", "</s>"],
        initial_alphabet=splits.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _roberta() -> Any:
    made = _bytes()
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 1), trim_offsets=True, add_prefix_space=False
    )
    return made


def _modernbert() -> Any:
    """Runs of spaces are tokens that are looked for before all else, and the mask takes the spaces before it."""
    made = _bytes(normalizer=normalizers.NFC())
    made.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    made.add_special_tokens([AddedToken("[MASK]", lstrip=True), AddedToken("[SEP]")])
    return made


def _qwen() -> Any:
    made = _bytes(QWEN, normalizers.NFC())
    made.add_special_tokens([AddedToken("<|im_start|>", normalized=False)])
    return made


def _llama3() -> Any:
    made = _bytes(LLAMA3, ignore_merges=True)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return made


def _merged() -> Any:
    made = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = splits.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=MERGED_SPECIALS, show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    described = json.loads(made.to_str())
    described["added_tokens"], described["pre_tokenizer"] = described["added_tokens"][:3], None
    return Backend.from_str(json.dumps(described))


def _gemma() -> Any:
    """Runs of line ends, tabs and marks are tokens too."""
    made = _merged()
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = splits.Split(" ", "merged_with_previous")
    made.add_tokens([AddedToken(c * n, normalized=False) for c in "\n\t▁" for n in range(2, 6)])
    return made


def _llama2() -> Any:
    made = _merged()
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return made


def _llama2_later() -> Any:
    made = _merged()
    made.pre_tokenizer = splits.Metaspace(prepend_scheme="first", split=False)
    return made


def _unigram(normalizer: Any, splitter: Any) -> Any:
    made = Backend(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizer, splitter
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


def _xlm_roberta() -> Any:
    table = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
    return _unigram(table, splits.Sequence([splits.WhitespaceSplit(), splits.Metaspace()]))


def _umt5() -> Any:
    parts = [
        normalizers.Nmt(),
        normalizers.NFKC(),
        normalizers.Strip(left=False),
        normalizers.Replace(Regex(" {2,}"), "▁"),
    ]
    return _unigram(normalizers.Sequence(parts), splits.Metaspace())


def _albert() -> Any:
    parts = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    splitter = splits.Sequence([splits.WhitespaceSplit(), splits.Metaspace()])
    return _unigram(normalizers.Sequence(parts), splitter)


KINDS: list[Callable[[], Any]] = [_roberta, _modernbert, _qwen, _llama3, _gemma, _llama2, _llama2_later]
KINDS += [_xlm_roberta, _umt5, _albert]


class Pair:
    """A tokenizer of the library, and ours over a copy of it, for each of some limits."""

    def __init__(self, backend: Any, limits: tuple[int | None, ...]) -> None:
        self.library = backend
        bare, framed = (backend.encode("a", add_special_tokens=added).ids for added in (False, True))
        first = framed.index(bare[0])
        self.before, self.after = framed[:first], framed[first + len(bare) :]
        own = [Backend.from_str(backend.to_str()) for _ in limits]
        self.ours = {
            limit: Tokenizer(each, limit=limit, pad_id=0, special_ids=set(), from_left=False)
            for limit, each in zip(limits, own, strict=True)
        }

    def check(self, texts: list[str]) -> None:
        due = [self.library.encode(text, add_special_tokens=False) for text in texts]
        for limit, ours in self.ours.items():
            room = None if limit is None else limit - ours.frame_tokens
            made = ours.encode(texts)
            for text, row, each in zip(texts, made.rows, due, strict=True):
                assert row.tolist() == [*self.before, *each.ids[:room], *self.after], f"{limit} {text!r:.300}"
            assert made.truncated == sum(room is not None and len(each.ids) > room for each in due)
        spelled, bad = self.ours[None].spell(texts)
        assert not bad
        for text, each, (a, b) in zip(texts, due, pairwise(spelled.ids.starts), strict=True):
            assert spelled.ids.flat[a:b].tolist() == each.ids, f"{text!r:.300}"
            places = [*zip(spelled.starts[a:b].tolist(), spelled.stops[a:b].tolist(), strict=True)]
            assert places == each.offsets, f"{text!r:.300}"


@pytest.fixture(scope="module", params=KINDS, ids=lambda make: make.__name__.strip("_"))
def pair(request: pytest.FixtureRequest) -> Pair:
    made = Pair(request.param(), (None, 5, 40))
    assert all(ours.by_words for ours in made.ours.values())
    return made


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.one_of(short, short, short, huge), min_size=1, max_size=4))
def test_random_texts(pair: Pair, texts: list[str]) -> None:
    pair.check(texts)


def test_nasty_texts(pair: Pair) -> None:
    """Together, in another order, and with other white space in the place of spaces."""
    pair.check(NASTY)
    pair.check(NASTY[::-1])
    for white in ("  ", "\n", "\n\n", " \n", "\n ", "\t", "\u3000", " \u3000 ", "\x1c", "\u200b ", "▁ ", "\r\n"):
        pair.check([text.replace(" ", white, 40) for text in NASTY if len(text) < 500])


def test_added_tokens_inside_texts(pair: Pair) -> None:
    names = [token.content for token in pair.library.get_added_tokens_decoder().values()]
    for name in names:
        for joint in ("", " ", "  ", "\n"):
            pair.check([f"one{joint}{name}{joint}two three", f"{name}{joint}{name}", f" {joint}{name} x"])
    pair.check([f"one {a}{b} two" for a in names[:8] for b in names[:8]])
    # What was learnt beside them is the same without.
    pair.check(["one two three", " one", "two", "x"])


def test_words_are_forgotten_and_learnt_anew(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for most in (1, 9, 64):
        monkeypatch.setattr("shardmill.models.words._MOST_WORDS", most)
        pair.check(CORPUS[:3])
        pair.check(NASTY[:12])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ever new words, no more are kept than there is room for, whatever their length."""
    monkeypatch.setattr("shardmill.models.words._MOST_BYTES", 2 << 20)
    ours = Tokenizer(_roberta(), limit=None, pad_id=0, special_ids=set(), from_left=False)
    assert ours._words is not None
    sizes = []
    for block in range(8):
        ours.encode([" ".join(f"{'long' * (n % 30)}{block}x{n}" for n in range(700))])
        sizes.append(ours._words.nbytes)
    assert max(sizes) < 8 << 20
    assert any(later < earlier for earlier, later in pairwise(sizes))


def _changed(make: Callable[[], Any], change: Callable[[dict[str, Any]], Any]) -> Any:
    described = json.loads(make().to_str())
    change(described)
    return Backend.from_str(json.dumps(described))


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (_roberta, lambda said: said["pre_tokenizer"].update(add_prefix_space=True)),
        (_roberta, lambda said: said["model"].update(dropout=0.1)),
        (_roberta, lambda said: said.update(normalizer={"type": "NFKC"})),
        (_qwen, lambda said: said["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\w+ \w+|\s+")),
        (_qwen, lambda said: said["pre_tokenizer"]["pretokenizers"][0].update(behavior="MergedWithNext")),
        (_gemma, lambda said: said["model"].update(ignore_merges=True)),
        (_gemma, lambda said: said["model"]["vocab"].update({"of▁the": 9999})),
        (_gemma, lambda said: said["added_tokens"][0].update(content="of the")),
        (_xlm_roberta, lambda said: said["pre_tokenizer"]["pretokenizers"][1].update(prepend_scheme="first")),
        (_umt5, lambda said: said["normalizer"]["normalizers"][2].update(strip_left=True)),
    ],
)
def test_what_may_join_words_is_left_to_the_library(make: Callable[[], Any], change: Any) -> None:
    assert read_rule(make()) is not None
    assert read_rule(_changed(make, change)) is None


@given(words=st.lists(st.text(max_size=20), min_size=1, max_size=60), lanes=st.sampled_from([2, 4]))
@settings(deadline=None, max_examples=20)
def test_a_table_finds_what_was_put_into_it_and_nothing_else(words: list[str], lanes: int) -> None:
    keys, table = WordKeys(lanes), WordTable(lanes)
    encoded = sorted({word.encode() for word in words if 0 < len(word.encode()) <= keys.longest})
    data = np.frombuffer(b"".join(encoded) + bytes(keys.longest + 8), np.uint8)
    lengths = np.array([len(word) for word in encoded], np.int64)
    every = keys.cut(data, np.cumsum(lengths) - lengths, lengths)
    half = len(encoded) // 2
    for known in (0, half, len(encoded)):
        table = WordTable(lanes)
        for first in range(0, known, 7):
            last = min(known, first + 7)
            table.add([lane[first:last] for lane in every], np.arange(first, last))
        assert table.find(every).tolist() == [*range(known), *[-1] * (len(encoded) - known)]
