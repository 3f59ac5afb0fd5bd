"""A tokenizer read without transformers gives what AutoTokenizer gives, whatever the files of its folder say."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import ModelError
from shardmill.models.backend import Backend, open_backend, read_backend
from shardmill.models.folder import read_folder
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.tokenizer import load_tokenizer
from tests.support.hard_texts import NASTY, short
from tests.support.tiny_models import (
    CORPUS,
    MINILM,
    bert,
    byte_level_bpe,
    fast,
    pooling,
    tokenizers,
    transformers,
    unigram,
    word_piece,
    write_model,
)

TEXTS = [*(text for text in NASTY if len(text) < 1000), *CORPUS[:4], "²nd ﬁne ²²", "``so'' ''", "[sep]<extra_id_3>"]
TEXTS += ["<s>NOTUSED </s>NOTUSED", "image <image> x<image>y", "new_word newword NEW_WORD naïve café", "  <mask>  x"]
BERT_NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}


def _due(folder: Path, **options: Any) -> Backend:
    """What AutoTokenizer makes, read anew, as shardmill has always taken it."""
    made = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **options)
    tokenizer = tokenizers.Tokenizer.from_str(made.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = made.backend_tokenizer.encode_special_tokens
    special = frozenset(i for i in made.all_special_ids if i is not None)
    left = made.truncation_side == "left"
    typed = "token_type_ids" in made.model_input_names
    mask = made.eos_token_id if made.mask_token_id is None else made.mask_token_id
    return Backend(tokenizer, int(made.model_max_length), made.pad_token_id, special, left, typed, mask)


def _check(ours: Backend, due: Backend, texts: list[str]) -> None:
    assert replace(ours, tokenizer=None) == replace(due, tokenizer=None)
    for many in (texts, list(zip(texts, [*texts[1:], *texts[:1]], strict=True))):
        for each, *found in zip(many, *(b.tokenizer.encode_batch(many) for b in (ours, due)), strict=True):
            seen, said = ((e.ids, e.offsets, e.type_ids) for e in found)
            assert seen == said, f"{each!r:.300}"


def _same(folder: Path, texts: list[str] = TEXTS, **options: Any) -> Backend:
    ours = read_backend(folder, options)
    _check(ours, _due(folder, **options), texts)
    return ours


def _character_table(changes: dict[str, str]) -> bytes:
    """SentencePiece's table of replacements: a double array of the keys' bytes, then the values.

    Each node of the trie has 256 places of its own, so a place is the node's first plus the byte.
    """
    units, values = [0] * 256, b""
    units[0] = 256 << 10
    units += [0] * 256
    for key, value in changes.items():
        at = 256
        for n, byte in enumerate(key.encode()):
            if not units[at + byte]:
                units[at + byte] = byte | ((at + byte) ^ len(units)) << 10
                units += [0] * 256
            place, at = at + byte, (units[at + byte] >> 10) ^ (at + byte)
            if n == len(key.encode()) - 1:
                units[place] |= 1 << 8
                units[at] = len(values)
        values += value.encode() + b"\0"
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + values


TABLE = _character_table({"²": "2", "ﬁ": "fi", "Ａ": "A", "\u3000": " ", "e\u0301": "é"})


def _words(*specials: str) -> dict[str, int]:
    found = [word for word in word_piece(["naïve", "café"]).get_vocab() if not word.startswith("[")]
    return {word: i for i, word in enumerate((*specials, *sorted(found)))}


def _scores(*specials: str) -> list[tuple[str, float]]:
    model = json.loads(unigram().to_str())["model"]
    found = [(piece, score) for piece, score in model["vocab"] if not piece.startswith("<")]
    return [*((piece, 0.0) for piece in specials), *found]


def _bytes(*specials: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(byte_level_bpe().to_str())["model"]
    merged = sorted(model["vocab"], key=model["vocab"].__getitem__)
    words = {word: i for i, word in enumerate((*specials, *(w for w in merged if not w.startswith("<|"))))}
    return words, [tuple(pair) for pair in model["merges"]]


def _bert() -> Any:
    return transformers.BertTokenizer(vocab=_words("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), model_max_length=512)


def _roberta() -> Any:
    words, merges = _bytes("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    mask = tokenizers.AddedToken("<mask>", lstrip=True, special=True)
    return transformers.RobertaTokenizer(vocab=words, merges=merges, mask_token=mask)


def _xlm_roberta() -> Any:
    scores = _scores("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return transformers.XLMRobertaTokenizer(vocab=scores, _spm_precompiled_charsmap=TABLE, model_max_length=512)


def _camembert() -> Any:
    scores = _scores("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>", "<mask>")
    return transformers.CamembertTokenizer(vocab=scores, _spm_precompiled_charsmap=TABLE)


def _mpnet() -> Any:
    return transformers.MPNetTokenizer(vocab=_words("<s>", "<pad>", "</s>", "[UNK]", "<mask>"), strip_accents=False)


def _albert() -> Any:
    scores = _scores("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    return transformers.AlbertTokenizer(vocab=scores, _spm_precompiled_charsmap=TABLE)


def _t5() -> Any:
    scores = [*_scores("<pad>", "</s>", "<unk>"), *((f"<extra_id_{i}>", 0.0) for i in reversed(range(100)))]
    return transformers.T5Tokenizer(vocab=scores, _spm_precompiled_charsmap=TABLE)


def _modernbert() -> Any:
    backend = byte_level_bpe()
    backend.add_special_tokens(["[CLS]", "[SEP]", "[PAD]", "[UNK]"])
    ends = [(name, backend.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    return fast(backend, **BERT_NAMES, model_max_length=8192)


def _umt5() -> Any:
    """Nothing is put around a text here, so that the types of a pair are all that is left to say."""
    backend = unigram()
    backend.post_processor = None
    return fast(backend, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


KINDS: dict[str, Callable[[], Any]] = {
    "bert": _bert,
    "distilbert": _bert,
    "electra": _bert,
    "nomic_bert": _bert,
    "mpnet": _mpnet,
    "roberta": _roberta,
    "xlm-roberta": _xlm_roberta,
    "camembert": _camembert,
    "albert": _albert,
    "t5": _t5,
    "mt5": _t5,
    "umt5": _umt5,
    "modernbert": _modernbert,
}
kinds = pytest.mark.parametrize("kind", KINDS)
# One kind for each class.
classes = pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("distilbert", "electra", "nomic_bert", "mt5")])
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder as save_pretrained writes it, for a kind of model; made once."""
    root, made = tmp_path_factory.mktemp("tokenizers"), dict[str, Path]()

    def folder(kind: str) -> Path:
        if kind not in made:
            KINDS[kind]().save_pretrained(root / kind)
            (root / kind / "config.json").write_text(json.dumps({"model_type": kind}))
            made[kind] = root / kind
        return made[kind]

    return folder


@pytest.fixture
def copied(saved: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """The same, for a test that changes its files."""

    def folder(kind: str) -> Path:
        shutil.copytree(saved(kind), tmp_path / "tiny", dirs_exist_ok=True)
        return tmp_path / "tiny"

    return folder


def _edit(folder: Path, name: str, **changes: Any) -> Path:
    """Change what a JSON file says; None removes it."""
    path = folder / name
    said = {**(json.loads(path.read_text()) if path.exists() else {}), **changes}
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
    return folder


def _settle(folder: Path, **changes: Any) -> Path:
    return _edit(folder, "tokenizer_config.json", **changes)


@kinds
def test_a_folder_as_it_is_saved(saved: Callable[[str], Path], kind: str) -> None:
    ours = _same(saved(kind), [*TEXTS, *NASTY])
    assert ours.pad_id is not None


@classes
@quick
@given(text=short, other=short)
def test_random_texts(saved: Callable[[str], Path], kind: str, text: str, other: str) -> None:
    folder = saved(kind)
    if folder not in loaded:
        loaded[folder] = read_backend(folder, {}), _due(folder)
    _check(*loaded[folder], [text, other])


loaded: dict[Path, tuple[Backend, Backend]] = {}


def test_the_tiny_table_of_characters_is_read(saved: Callable[[str], Path]) -> None:
    tokenizer = read_backend(saved("xlm-roberta"), {}).tokenizer
    assert tokenizer.encode("²nd ﬁt").tokens == tokenizer.encode("2nd fit").tokens != tokenizer.encode("nd t").tokens


# What tokenizer_config.json says, against tokenizer.json or by itself.
SAID: dict[str, dict[str, Any]] = {
    "cased": {"do_lower_case": False},
    "cased without accents": {"do_lower_case": False, "strip_accents": True},
    "accents kept": {"strip_accents": False, "keep_accents": True},
    "ideographs in words": {"tokenize_chinese_chars": False},
    "prefixed": {"add_prefix_space": True, "trim_offsets": False},
    "not prefixed": {"add_prefix_space": False},
    "special tokens split": {"split_special_tokens": True},
    "no limit": {"model_max_length": None},
    "old name of the limit": {"model_max_length": None, "max_len": 77},
    "limit as a float": {"model_max_length": 1e30},
    "cut from the left": {"truncation_side": "left", "padding_side": "left"},
    "another mask": {"mask_token": "<new mask>"},
    "another padding": {"pad_token": "[ODD]"},
    "no padding": {"pad_token": None},
    "another end": {"sep_token": ".", "eos_token": "."},
    "a token with flags": {
        "mask_token": {"__type": "AddedToken", "content": "<image>", "lstrip": True, "rstrip": True, "special": True}
    },
    "a token of its own": {"image_token": "<image>"},
    "named extras": {"extra_special_tokens": {"image_token": "<image>"}},
    "no named extras": {"extra_special_tokens": {}},
    "extras": {"extra_special_tokens": ["<image>", "new_word"]},
    "extras by their old name": {"additional_special_tokens": ["<image>", "new_word"]},
    "ends that the file says": {"add_bos_token": True, "add_eos_token": True},
    "an unknown setting": {"never_split": ["x"], "name_or_path": "elsewhere", "special_tokens_map_file": "gone.json"},
    "added tokens": {
        "added_tokens_decoder": {
            "9000": {"content": "new_word", "normalized": True, "special": False},
            "9001": {"content": "naïve", "single_word": True, "lstrip": True, "normalized": False, "special": False},
            "9002": {"content": "<image>", "rstrip": True, "normalized": False, "special": True},
        }
    },
}


@classes
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_settings_against_the_stored_tokenizer(copied: Callable[[str], Path], kind: str, said: dict[str, Any]) -> None:
    _same(_settle(copied(kind), **said))


@classes
def test_a_setting_makes_a_difference(copied: Callable[[str], Path], kind: str) -> None:
    """Else the cases above would compare a tokenizer with itself."""
    before, folder = read_backend(copied(kind), {}), copied(kind)
    after = _same(_settle(folder, model_max_length=33, truncation_side="left", extra_special_tokens=["new_word"]))
    assert (after.longest, after.from_left) == (33, True)
    assert after.special_ids - before.special_ids == {after.tokenizer.token_to_id("new_word")}


def test_lower_case_of_the_settings_wins_over_the_stored_normalizer(copied: Callable[[str], Path]) -> None:
    folder = _settle(copied("bert"), do_lower_case=False)
    assert json.loads((folder / "tokenizer.json").read_text())["normalizer"]["lowercase"]
    assert "[UNK]" in _same(folder).tokenizer.encode("THE").tokens


@kinds
def test_without_tokenizer_config(copied: Callable[[str], Path], kind: str) -> None:
    folder = copied(kind)
    (folder / "tokenizer_config.json").unlink()
    _same(folder)


@classes
def test_special_tokens_map_and_added_tokens(copied: Callable[[str], Path], kind: str) -> None:
    """As older versions wrote them, with whole entries and with names."""
    folder = copied(kind)
    flags = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    _edit(folder, "special_tokens_map.json", mask_token={"content": "<image>", **flags}, bos_token="<first>")
    _edit(folder, "special_tokens_map.json", additional_special_tokens=["<extra_id_0>", "<more>"])
    _edit(folder, "added_tokens.json", **{"new_word": 9000, "<image>": 9001, "[sep]": 9002})
    _same(_settle(folder, extra_ids=1))
    _same(_settle(folder, added_tokens_decoder={}))


@classes
def test_a_stored_limit_and_padding(copied: Callable[[str], Path], kind: str) -> None:
    cut = {"direction": "Left", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0}
    folder = _edit(copied(kind), "tokenizer.json", truncation=cut, padding={**pad, "pad_token": "<pad>"})
    assert _same(folder).from_left
    assert not _same(_settle(folder, truncation_side="right")).from_left


@classes
@pytest.mark.parametrize("part", ["post_processor", "normalizer", "pre_tokenizer"])
def test_a_stored_part_that_is_missing(copied: Callable[[str], Path], kind: str, part: str) -> None:
    folder = copied(kind)
    said = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**said, part: None}))
    _same(folder)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("bert", "BertTokenizerFast"),
        ("bert", "PreTrainedTokenizerFast"),
        ("bert", "TokenizersBackend"),
        ("bert", "MPNetTokenizer"),
        ("distilbert", "DistilBertTokenizerFast"),
        ("electra", "ElectraTokenizerFast"),
        ("mpnet", "MPNetTokenizerFast"),
        ("mpnet", "BertTokenizer"),
        ("roberta", "RobertaTokenizerFast"),
        ("roberta", "PreTrainedTokenizer"),
        ("xlm-roberta", "XLMRobertaTokenizerFast"),
        ("xlm-roberta", "T5Tokenizer"),
        ("camembert", "XLMRobertaTokenizerFast"),
        ("albert", "AlbertTokenizerFast"),
        ("t5", "T5TokenizerFast"),
        ("mt5", "MT5Tokenizer"),
        ("umt5", "T5TokenizerFast"),
        ("modernbert", "PreTrainedTokenizerFast"),
        ("modernbert", "LlamaTokenizer"),
    ],
)
def test_the_class_is_chosen_by_two_files(copied: Callable[[str], Path], kind: str, named: str) -> None:
    _same(_settle(copied(kind), tokenizer_class=named))
    _same(_edit(_settle(copied(kind), tokenizer_class=None), "config.json", tokenizer_class=named))


def test_a_tokenizer_of_another_family_than_its_model(copied: Callable[[str], Path]) -> None:
    """As the multilingual MiniLM is: a BERT with the pieces of XLM-R."""
    _same(_edit(copied("xlm-roberta"), "config.json", model_type="bert"))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "nomic_bert", "mpnet"])
def test_only_a_list_of_words(copied: Callable[[str], Path], kind: str) -> None:
    folder = copied(kind)
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (folder / "tokenizer.json").unlink()
    _same(folder)
    _same(_settle(folder, do_lower_case=False, mask_token="new_word"))


def test_only_words_and_merges(copied: Callable[[str], Path]) -> None:
    folder = copied("roberta")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in model["merges"]))
    (folder / "tokenizer.json").unlink()
    _same(folder)


names = st.sampled_from(["<image>", "[SEP]", "</s>", "<mask>", "new_word", "naïve", "<pad>", "[ODD]"])
flags = st.fixed_dictionaries(
    {"content": names}, optional={key: st.booleans() for key in ("lstrip", "rstrip", "normalized", "single_word")}
)
token_keys = ["mask_token", "pad_token", "eos_token", "image_token"]
any_settings = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(token_keys, names | flags.map(lambda said: {**said, "__type": "AddedToken"})),
        **{key: st.booleans() for key in ("do_lower_case", "add_prefix_space", "keep_accents", "split_special_tokens")},
        "added_tokens_decoder": st.dictionaries(st.sampled_from(["3", "4", "9000", "9001"]), flags, max_size=3),
        "extra_special_tokens": st.lists(names, max_size=2),
        "additional_special_tokens": st.lists(names, max_size=2),
        "strip_accents": st.none() | st.booleans(),
        "model_input_names": st.sampled_from([["input_ids", "attention_mask"], ["input_ids", "token_type_ids"]]),
    },
)
any_map = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(token_keys, names | flags), "additional_special_tokens": st.lists(names, max_size=2)}
)
any_added = st.dictionaries(names, st.sampled_from([3, 9000, 9001]), max_size=2)


@classes
@settings(quick, max_examples=15)
@given(said=any_settings, mapped=any_map, added=any_added)
def test_any_files(saved: Callable[[str], Path], tmp_path: Path, kind: str, said: Any, mapped: Any, added: Any) -> None:
    folder = tmp_path / "tiny"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved(kind), folder)
    _edit(folder, "tokenizer_config.json", **said)
    _edit(folder, "special_tokens_map.json", **mapped)
    _edit(folder, "added_tokens.json", **added)
    _same(folder)


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"model_max_length": 7, "truncation_side": "left"}, ""),
        ({"do_lower_case": False, "use_fast": False, "mask_token": "[ODD]"}, ""),
        ({"tokenizer_type": "roberta"}, "the option tokenizer_type"),
        ({"trust_remote_code": True}, "code of its own"),
    ],
)
def test_options(copied: Callable[[str], Path], options: dict[str, Any], refused: str) -> None:
    """As sentence_bert_config.json may give them."""
    folder = copied("bert")
    _edit(folder, "special_tokens_map.json", mask_token="<other>", pad_token="<other>")
    if not refused:
        _same(folder, **options)
        return
    with pytest.raises(NotDescribed, match=refused):
        read_backend(folder, options)


def _unknown_class(folder: Path) -> None:
    _settle(folder, tokenizer_class="DebertaV2Tokenizer")


def _unknown_model(folder: Path) -> None:
    _edit(folder, "config.json", model_type="deberta-v2")


def _own_code(folder: Path) -> None:
    _settle(folder, auto_map={"AutoTokenizer": ["own.Slow", None]})


def _only_python(folder: Path) -> None:
    _settle(folder, tokenizer_class="BertJapaneseTokenizer")
    (folder / "tokenizer.json").unlink()


def _broken_parts(folder: Path) -> None:
    _edit(folder, "tokenizer.json", model={"type": "WordPiece", "vocab": 3})


REFUSED = {
    _unknown_class: "its tokenizer is a DebertaV2Tokenizer",
    _unknown_model: "its tokenizer is that of a deberta-v2 model",
    _own_code: "its tokenizer comes with code of its own",
    _only_python: "its tokenizer is a BertJapaneseTokenizer",
    _broken_parts: "its tokenizer cannot be made",
}


@pytest.mark.parametrize(("spoil", "reason"), REFUSED.items(), ids=lambda case: getattr(case, "__name__", "reason"))
def test_what_needs_transformers(
    copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None], reason: str
) -> None:
    folder = copied("bert")
    spoil(folder)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=reason) as caught:
        open_backend(folder, {})
    said, hint = str(caught.value).splitlines()
    assert said.startswith("The tokenizer of tiny needs transformers, since ")
    assert hint.endswith("pip install 'shardmill[embed]'")


def test_what_needs_transformers_is_loaded_with_it(copied: Callable[[str], Path]) -> None:
    folder = _settle(copied("bert"), auto_map={"AutoTokenizer": ["own.Slow", None]})
    with pytest.raises(NotDescribed):
        read_backend(folder, {})
    _check(open_backend(folder, {}), _due(folder), TEXTS)


def test_a_tokenizer_that_is_only_python(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    _only_python(folder)
    with pytest.raises(ModelError, match=r"cannot be loaded|no fast tokenizer"):
        open_backend(folder, {})


def test_a_damaged_file_is_named(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        open_backend(folder, {})


@pytest.mark.parametrize(("sentence", "said", "limit"), [(64, 20, 64), (None, 20, 20), (None, 1e30, 80), (200, 20, 80)])
def test_limits_that_disagree(tmp_path: Path, sentence: int | None, said: float, limit: int) -> None:
    """sentence_bert_config.json wins over tokenizer_config.json; the model's 80 positions over both."""
    root = write_model(tmp_path / "tiny", bert(), [pooling("mean")], {"max_seq_length": sentence})
    _settle(root, model_max_length=said)
    assert load_tokenizer(read_folder(root), None).limit == limit


def test_lower_case_of_sentence_transformers(tmp_path: Path) -> None:
    root = write_model(tmp_path / "tiny", bert(), [pooling("mean")], {"do_lower_case": True})
    _settle(root, do_lower_case=False, strip_accents=False)
    made = load_tokenizer(read_folder(root), None)
    rows = made.encode(["THE Café", "the café", "a \ud800 b"])
    assert rows.rows[0].tolist() == rows.rows[1].tolist()
    assert rows.bad == {2: "the text is not valid Unicode"}


def test_a_model_as_it_is_published() -> None:
    _same(MINILM, [*TEXTS, *NASTY])


def test_neither_transformers_nor_torch_is_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from shardmill.models.folder import read_folder;"
        "from shardmill.models.tokenizer import load_tokenizer;"
        "made = load_tokenizer(read_folder(Path(sys.argv[1])), None);"
        "print(made.encode(['hello world']).rows[0].tolist());"
        "print(sorted({'transformers', 'torch', 'huggingface_hub'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(MINILM)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[101, 7592, 2088, 102]", "[]"]
