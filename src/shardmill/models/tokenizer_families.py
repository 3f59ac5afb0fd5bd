"""What transformers' tokenizer classes make of a vocabulary and of tokenizer_config.json, by the tokenizers library.

A class keeps the vocabulary of tokenizer.json, and makes the normalizer, the splitter and the frame around a text anew.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.tokenizer_settings import NAMED, Settings


@dataclass(frozen=True, slots=True)
class Family:
    """A tokenizer class.

    `names` are its special tokens where no file says others, and `flags` those of a token that is said by name alone.
    `build` makes a tokenizer without added tokens; `frame` makes what is put around a text and between two of them.
    `extras` makes the list of special tokens without names from the one that a file has, if it has one. `inputs` are
    those that a model gets, unless `model_input_names` of a file says others.
    """

    names: Mapping[str, str]
    build: Callable[[Settings], Tokenizer]
    frame: Callable[[Settings, Tokenizer], Any]
    flags: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    extras: Callable[[Settings, list[Any] | None], list[Any] | None] = lambda said, given: given
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")

    def complete(self, said: Settings) -> Settings:
        """The settings, with the class's special tokens where the files name none."""
        values = {**self.names, **said.values}
        padding = (said.stored or {}).get("padding")
        if padding and "pad_token" not in values:
            values["pad_token"] = padding["pad_token"]
        for key, flags in self.flags.items():
            if isinstance(values.get(key), str):
                values[key] = AddedToken(values[key], **flags)
        return replace(said, values=values)

    def add_tokens(self, tokenizer: Tokenizer, said: Settings) -> tuple[Tokenizer, list[str]]:
        """The tokenizer with the tokens that the files list and the special ones; and the names of the special ones."""
        named, unnamed = list(said.named_tokens().values()), self._unnamed(said)
        adding = [token for _, token in sorted(said.added.items(), key=lambda item: item[0])]
        present = list(tokenizer.get_added_tokens_decoder().values())
        known = {token.content for token in (*present, *adding)}
        for token in (*named, *unnamed):
            if str(token) not in known and token not in adding:
                adding.append(token)
        names = {str(token) for token in named}
        made = [AddedToken(token, special=True) if isinstance(token, str) else token for token in adding]
        for token in made:
            token.special = token.special or token.content in names
        tokenizer.add_tokens(made)
        first = {token.content: token for token in reversed((*present, *made))}
        if any(first[token.content] != token for token in made):
            # The library remembers the old flags of a token that is added again with others, until it is read anew.
            tokenizer = Tokenizer.from_str(tokenizer.to_str())
        return tokenizer, [*names, *map(str, unnamed)]

    def _unnamed(self, said: Settings) -> list[Any]:
        given = self.extras(said, said.get("additional_special_tokens"))
        found = said.get("extra_special_tokens", given)
        if not isinstance(found, list | None):
            raise NotDescribed("its extra_special_tokens are not a list")
        return found or []


def _word_pieces(said: Settings) -> Tokenizer:
    words = said.file("vocab.txt") if said.stored is None else _numbered(said.vocabulary())
    made = Tokenizer(models.WordPiece(words, unk_token=said.name("unk_token")))
    made.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=said.get("tokenize_chinese_chars", True),
        strip_accents=said.get("strip_accents"),
        lowercase=said.get("do_lower_case", True),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _byte_pairs(said: Settings) -> Tokenizer:
    words: Any
    merges: Any
    if said.stored is None:
        words, merges = said.file("vocab.json"), said.file("merges.txt")
    else:
        words, pairs = _numbered(said.vocabulary()), said.stored["model"].get("merges", ())
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in pairs]
    made = Tokenizer(models.BPE(words, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=said.get("add_prefix_space", False))
    return made


def _numbered(words: Any) -> dict[str, int]:
    if isinstance(words, dict):
        return words
    return {word[0] if isinstance(word, list) else word: i for i, word in enumerate(words)}


def _pieces(said: Settings, unknown: int) -> Tokenizer:
    """SentencePiece's pieces, of which the one at `unknown` stands for what is not among them."""
    made = Tokenizer(models.Unigram([tuple(word) for word in said.vocabulary()], unk_id=unknown, byte_fallback=False))
    if table := _character_table(said):
        made.normalizer = table
    made.pre_tokenizer = _marked_words("always" if said.get("add_prefix_space", True) else "never")
    return made


def _marked_words(scheme: str) -> Any:
    """Words end at blanks, and begin with a mark for the blank before them."""
    marked = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])


def _character_table(said: Settings) -> Any:
    """SentencePiece's own normalizer, if tokenizer.json has it."""
    normalizer = (said.stored or {}).get("normalizer") or {}
    for part in normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]:
        if part.get("type") == "Precompiled" and "precompiled_charsmap" in part:
            return normalizers.Precompiled(base64.b64decode(part["precompiled_charsmap"]))
    return None


def _t5(said: Settings) -> Tokenizer:
    made = _pieces(said, 2)
    made.pre_tokenizer = _marked_words("always")
    return made


def _t5_extras(said: Settings, given: list[Any] | None) -> list[Any]:
    count = said.get("extra_ids", 100)
    numbered = [f"<extra_id_{i}>" for i in range(count)]
    if given is None:
        return numbered
    found = [token for token in given if "<extra_id_" in str(token)]
    if found and count > 0 and count != len(found):
        raise NotDescribed(f"it has {len(found)} extra ids where {count} are said")
    return given if found else [*given, *numbered]


def _camembert(said: Settings) -> Tokenizer:
    unknown = said.name("unk_token")
    return _pieces(said, next((i for i, (piece, _) in enumerate(said.vocabulary()) if piece == unknown), 0))


def _camembert_extras(said: Settings, given: list[Any] | None) -> list[Any]:
    return ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"] if given is None else given


def _albert(said: Settings) -> Tokenizer:
    made = _pieces(said, 1)
    parts: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not said.get("keep_accents", False):
        parts += [normalizers.NFKD(), normalizers.StripAccents()]
    if said.get("do_lower_case", True):
        parts.append(normalizers.Lowercase())
    if table := _character_table(said):
        parts.append(table)
    made.normalizer = normalizers.Sequence(parts)
    return made


def _albert_frame(said: Settings, made: Tokenizer) -> Any:
    """Of the classes, this one alone keeps what tokenizer.json puts around a text."""
    if stored := (said.stored or {}).get("post_processor"):
        bare = {"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}, "post_processor": stored}
        return Tokenizer.from_str(json.dumps(bare)).post_processor
    start, end = _token(said, made, "cls_token")[1], _token(said, made, "sep_token")[1]
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", start), ("[SEP]", end)],
    )


def _whole(said: Settings) -> Tokenizer:
    if said.stored is None:
        raise NotDescribed("it has no tokenizer.json")
    return Tokenizer.from_file(str(said.folder / "tokenizer.json"))


def _whole_frame(said: Settings, made: Tokenizer) -> Any:
    if made.post_processor is not None:
        return made.post_processor
    return processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])


def _token(said: Settings, made: Tokenizer, key: str) -> tuple[str, int]:
    """A special token and its id."""
    name = said.name(key)
    if (found := made.token_to_id(name)) is None:
        raise NotDescribed(f"its {key} {name!r} is no token")
    return name, found


def _bert_frame(said: Settings, made: Tokenizer) -> Any:
    start, end = _token(said, made, "cls_token"), _token(said, made, "sep_token")
    single = f"{start[0]}:0 $A:0 {end[0]}:0"
    return processors.TemplateProcessing(single=single, pair=f"{single} $B:1 {end[0]}:1", special_tokens=[start, end])


def _roberta_frame(said: Settings, made: Tokenizer) -> Any:
    trims, prefixed = said.get("trim_offsets", True), said.get("add_prefix_space", False)
    return processors.RobertaProcessing(
        _token(said, made, "sep_token"), _token(said, made, "cls_token"), trim_offsets=trims, add_prefix_space=prefixed
    )


def _mpnet_frame(said: Settings, made: Tokenizer) -> Any:
    return processors.RobertaProcessing(
        _token(said, made, "sep_token"), _token(said, made, "cls_token"), trim_offsets=True, add_prefix_space=False
    )


def _xlm_roberta_frame(said: Settings, made: Tokenizer) -> Any:
    start, end = _token(said, made, "bos_token"), _token(said, made, "eos_token")
    single = [start[0], "$A", end[0]]
    return processors.TemplateProcessing(
        single=single, pair=[*single, end[0], "$B", end[0]], special_tokens=[start, end]
    )


def _t5_frame(said: Settings, made: Tokenizer) -> Any:
    end = ("</s>", _token(said, made, "eos_token")[1])
    return processors.TemplateProcessing(single=["$A", "</s>"], pair=["$A", "</s>", "$B", "</s>"], special_tokens=[end])


_BERT_NAMES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ROBERTA_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_ALBERT_NAMES = _BERT_NAMES | {"bos_token": "[CLS]", "eos_token": "[SEP]", "unk_token": "<unk>", "pad_token": "<pad>"}
_T5_NAMES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_MPNET_FLAGS = {key: {"lstrip": key == "mask_token"} for key in NAMED}

_DISTILBERT = Family(_BERT_NAMES, _word_pieces, _bert_frame)
_BERT = replace(_DISTILBERT, inputs=("input_ids", "token_type_ids", "attention_mask"))
_MPNET = Family(_ROBERTA_NAMES | {"unk_token": "[UNK]"}, _word_pieces, _mpnet_frame, flags=_MPNET_FLAGS)
_CAMEMBERT = Family(
    _ROBERTA_NAMES,
    _camembert,
    _xlm_roberta_frame,
    flags={"mask_token": {"lstrip": True, "special": True}},
    extras=_camembert_extras,
)
# By the names of transformers' classes.
FAMILIES: Mapping[str, Family] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _DISTILBERT,
    "ElectraTokenizer": _BERT,
    "MPNetTokenizer": _MPNET,
    "RobertaTokenizer": Family(_ROBERTA_NAMES, _byte_pairs, _roberta_frame),
    "XLMRobertaTokenizer": Family(_ROBERTA_NAMES, partial(_pieces, unknown=3), _xlm_roberta_frame),
    "CamembertTokenizer": _CAMEMBERT,
    "AlbertTokenizer": Family(_ALBERT_NAMES, _albert, _albert_frame),
    "T5Tokenizer": Family(_T5_NAMES, _t5, _t5_frame, extras=_t5_extras),
    "TokenizersBackend": Family({}, _whole, _whole_frame),
}
