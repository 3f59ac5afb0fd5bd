"""Whatever a text holds, its ids are those of the tokenizers library: every id of every text, cut where it cuts."""

from __future__ import annotations

import itertools
import sys
import unicodedata
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from shardmill.models.tokenizer import Tokenizer
from shardmill.verbs.embed.task import EmbedTask
from tests.support.hard_texts import MARKS, NASTY, NOTHINGS, SPECIALS, huge, short, texts
from tests.support.tiny_models import (
    MINILM,
    bert,
    byte_level_bpe,
    fast,
    minilm_backend,
    pooling,
    qwen3,
    tokenizers,
    transformers,
    unigram,
    write_model,
    xlm_roberta,
)

BERT_NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
XLMR_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


@dataclass(frozen=True)
class Case:
    """A task, and the library's own tokenizer with the same limit."""

    task: EmbedTask
    library: Any
    limit: int
    prompt: str = ""

    def check(self, texts: Sequence[str | None]) -> None:
        prepared = self.task.prepare(texts)
        assert len(prepared.inputs) == len(prepared.costs) == len(texts)
        expected = [None if text is None else self.library.encode(self.prompt + text) for text in texts]
        for i, (text, seen, due) in enumerate(zip(texts, prepared.inputs, expected, strict=True)):
            ids = [] if due is None else due.ids
            assert ([] if seen is None else seen.tolist()) == ids, f"{text!r:.300}"
            assert prepared.costs[i] == len(ids)
            assert (i in prepared.bad) == (due is not None and not ids)
        assert prepared.tokens == sum(prepared.costs)
        assert prepared.truncated == sum(bool(due and due.overflowing) for due in expected)


def _case(folder: Path | str, limit: int, *, prompt: str = "", left: bool = False, **params: Any) -> Case:
    where = MINILM if folder == "all-MiniLM-L6-v2" else Path(folder)
    library = tokenizers.Tokenizer.from_file(str(where / "tokenizer.json"))
    library.no_padding()
    library.enable_truncation(limit, direction="left" if left else "right")
    options = {**params, **({"prompt": prompt} if prompt else {})}
    return Case(EmbedTask(model=str(folder), **options), library, limit, prompt)


def _minilm(root: Path) -> Case:
    return _case("all-MiniLM-L6-v2", 256)


def _minilm_short(root: Path) -> Case:
    return _case("all-MiniLM-L6-v2", 7, max_tokens=7)


def _minilm_prompt(root: Path) -> Case:
    return _case("all-MiniLM-L6-v2", 20, prompt="Represent this [SEP] naïve:", max_tokens=20)


def _cased(root: Path) -> Case:
    backend = minilm_backend()
    backend.normalizer = tokenizers.normalizers.BertNormalizer(strip_accents=False, lowercase=False)
    return _case(_written(root, bert(), fast(backend, **BERT_NAMES), 64), 64)


def _no_clean_text(root: Path) -> Case:
    backend = minilm_backend()
    backend.normalizer = tokenizers.normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False)
    return _case(_written(root, bert(), fast(backend, **BERT_NAMES), 64), 64)


def _left(root: Path) -> Case:
    made = fast(minilm_backend(), **BERT_NAMES, truncation_side="left")
    return _case(_written(root, bert(), made, 12), 12, left=True)


def _greedy() -> Any:
    """As MPNet has it: the mask takes the blanks before it, and another name those after it."""
    backend = minilm_backend()
    backend.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    backend.add_tokens([tokenizers.AddedToken("<s>", rstrip=True), tokenizers.AddedToken("naïve", normalized=True)])
    return backend


def _greedy_mask(root: Path) -> Case:
    return _case(_written(root, bert(vocab_size=30600), fast(_greedy(), **BERT_NAMES), 64), 64)


def _bpe(root: Path) -> Case:
    backend = byte_level_bpe()
    config = qwen3(vocab_size=backend.get_vocab_size())
    return _case(_written(root, config, fast(backend, eos_token="<|endoftext|>"), 200), 200)


def _bpe_short(root: Path) -> Case:
    backend = byte_level_bpe()
    config = qwen3(vocab_size=backend.get_vocab_size())
    return _case(_written(root, config, fast(backend, eos_token="<|endoftext|>"), 9), 9)


def _unigram(root: Path) -> Case:
    backend = unigram()
    config = xlm_roberta(vocab_size=backend.get_vocab_size(), pad_token_id=1)
    return _case(_written(root, config, fast(backend, **XLMR_NAMES, mask_token="<mask>"), 40), 40)


def _written(root: Path, config: Any, tokenizer: Any, limit: int) -> Path:
    return write_model(root, config, [pooling("mean")], {"max_seq_length": limit}, tokenizer=tokenizer)


MAIN: list[Callable[[Path], Case]] = [_minilm, _bpe, _unigram]
VARIANTS = [_minilm_short, _minilm_prompt, _cased, _no_clean_text, _left, _greedy_mask, _bpe_short]
made_cases: dict[Callable[[Path], Case], Case] = {}


def _made(request: pytest.FixtureRequest) -> Case:
    """Each case once: what a tokenizer remembers of one test must not mislead it in the next."""
    if request.param not in made_cases:
        root: Path = request.getfixturevalue("tmp_path_factory").mktemp("tokens") / "tiny"
        made_cases[request.param] = request.param(root)
    return made_cases[request.param]


def _name(make: Callable[[Path], Case]) -> str:
    return make.__name__.strip("_")


@pytest.fixture(params=MAIN, ids=_name)
def main_case(request: pytest.FixtureRequest) -> Case:
    return _made(request)


@pytest.fixture(params=VARIANTS, ids=_name)
def variant(request: pytest.FixtureRequest) -> Case:
    return _made(request)


@pytest.fixture(params=[*MAIN, *VARIANTS], ids=_name)
def case(request: pytest.FixtureRequest) -> Case:
    return _made(request)


quick = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(batch=texts)
def test_random_texts(main_case: Case, batch: list[str | None]) -> None:
    main_case.check(batch)


@settings(quick, max_examples=80)
@given(batch=texts)
def test_random_texts_and_tokenizers_of_other_kinds(variant: Case, batch: list[str | None]) -> None:
    variant.check(batch)


@settings(quick, max_examples=60)
@given(text=huge, other=short)
def test_random_huge_texts(main_case: Case, text: str, other: str) -> None:
    main_case.check([other, text, None, other])


@settings(quick, max_examples=25)
@given(text=huge, other=short)
def test_random_huge_texts_and_tokenizers_of_other_kinds(variant: Case, text: str, other: str) -> None:
    variant.check([other, text, None, other])


def test_nasty_texts(case: Case) -> None:
    """Together, in another order, and alone."""
    case.check([*NASTY, None, *reversed(NASTY)])
    for text in NASTY:
        case.check([text])


def test_tokens_that_take_blanks_are_learnt_beside_words_that_begin_with_them() -> None:
    """Words are learnt together, one space apart: a token may reach into the word before or after its own."""
    backend = _greedy()
    made = Tokenizer(backend, limit=None, pad_id=0, special_ids=set(), from_left=False)
    for special, blank in itertools.product(("<s>", "<mask>"), ("", "\u3000", "\u3000far", "\x1c")):
        for order in itertools.permutations([special, blank, "near", blank + " " + blank]):
            texts = [*order, " ".join(order)]
            due = [backend.encode(text, add_special_tokens=False).ids for text in texts]
            assert [row.tolist() for row in made.read(texts, framed=False)] == due, order


def test_nasty_texts_at_every_limit() -> None:
    """Cut after each of the first tokens: none may depend on where the cut is."""
    for limit in range(3, 24):
        _case("all-MiniLM-L6-v2", limit, max_tokens=limit).check(NASTY)


def test_what_transformers_gives() -> None:
    made = transformers.AutoTokenizer.from_pretrained(MINILM)
    due = [made(text, truncation=True, max_length=256)["input_ids"] for text in NASTY]
    assert [row.tolist() for row in EmbedTask(model="all-MiniLM-L6-v2").prepare(NASTY).inputs] == due


def _characters() -> list[str]:
    """All that Unicode gives a meaning to, and some that it does not; ideographs by the thousand are alike."""
    chosen = []
    for n in range(sys.maxunicode + 1):
        character = chr(n)
        alike = unicodedata.name(character, "").startswith(("CJK UNIFIED", "HANGUL SYL", "TANGUT"))
        unknown = unicodedata.category(character) in ("Co", "Cn")
        if unicodedata.category(character) != "Cs" and n % (1009 if unknown else 37 if alike else 1) == 0:
            chosen.append(character)
    return chosen


CHARACTERS = _characters()


def test_every_character_there_is(case: Case) -> None:
    """Alone, inside a word, and after a mark."""
    per_text = max(1, case.limit // 24)
    chosen = CHARACTERS if case.limit > 100 else CHARACTERS[::7]
    batches = [chosen[i : i + per_text] for i in range(0, len(chosen), per_text)]
    case.check([" ".join(f"{c} a{c}b \u0301{c}A" for c in batch) for batch in batches])


def test_texts_that_are_not_unicode(case: Case) -> None:
    prepared = case.task.prepare(["fine", "a \ud800 b", "\udfff" * 5000, "also fine", "é" * 5000 + "\ud800"])
    assert prepared.bad.keys() >= {1, 2}
    assert prepared.bad.keys() <= {1, 2, 4}
    assert "not valid Unicode" in prepared.bad[1]
    for i, text in ((0, "fine"), (3, "also fine")):
        assert prepared.inputs[i].tolist() == case.library.encode(case.prompt + text).ids


@pytest.mark.parametrize("make", MAIN, ids=_name)
def test_from_several_threads(make: Callable[[Path], Case], tmp_path: Path) -> None:
    """A worker's device side prepares a plain text now and then, while its preparing thread is at other texts."""
    case = make(tmp_path / "tiny")
    _ = case.task.prepare(["load it"])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for round_ in range(12):
                batch = [f"word{round_} fresh{n} {text}" for n, text in enumerate(NASTY[:30])]
                for future in [pool.submit(case.task.prepare, batch) for _ in range(4)]:
                    future.result()
    finally:
        sys.setswitchinterval(before)
    case.check([*NASTY, *(f"late{n} words{n}" for n in range(40)), "word3 fresh7"])


@pytest.mark.parametrize("most", [1, 5, 64])
def test_what_is_remembered_may_be_forgotten_at_any_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.models.words._MOST_WORDS", most, raising=False)
    case = _minilm(Path())
    for at in range(0, len(NASTY), 5):
        case.check(NASTY[at : at + 7])
    case.check(NASTY)


def test_words_seen_before_are_not_taken_for_others(case: Case) -> None:
    """Words that differ by little, many times over, in many orders: for what is remembered from text to text."""
    stems = [
        "cafe",
        "café",
        "cafe\u0301",
        "CAFE",
        "Cafe",
        "caf\u00ade",
        "ca\u200bfe",
        "café\u0301",
        "cafe\x00",
        "ｃａｆｅ",
    ]
    near = [
        stem + tail for stem in stems for tail in ("", "s", ".", "\u0301", "\u200b", "\u00a0", "漢", "##s", "[SEP]")
    ]
    for k in (1, 7, 31):
        order = [near[i * k % len(near)] for i in range(len(near))]
        case.check([*order, " ".join(order[:8]), *(f"{a} {b}" for a, b in zip(order, near, strict=True))])


def test_a_word_is_the_same_after_it_was_seen_beside_a_special_one(case: Case) -> None:
    for n, special in enumerate([*SPECIALS, *NOTHINGS, *MARKS]):
        first, last = f"one{n}", f"two{n}"
        for joint in (" ", "", "  ", "\n"):
            case.check([f"{first}{joint}{special}{joint}{last}"])
            case.check([first, special, last, f"{last}{joint}{first}"])
