"""A folder's tokenizer by the tokenizers library alone, with the ids that transformers' AutoTokenizer gives.

AutoTokenizer does not simply read tokenizer.json. It chooses a class by tokenizer_config.json and config.json, and most
classes take only the vocabulary from tokenizer.json: they make the normalizer, the splitter and what is put around a
text anew from tokenizer_config.json. So do the families here. Design: docs/design/models-and-kernels.md
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.core.extras import advise, missing_package
from shardmill.models.code import loading_options
from shardmill.models.folder import read_json
from shardmill.models.networks.unknown import NotDescribed

# The class that transformers has for a model type.
_REGISTERED = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "modernbert": "TokenizersBackend",
    "mpnet": "MPNetTokenizer",
    "mt5": "T5Tokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "t5": "T5Tokenizer",
    "umt5": "TokenizersBackend",
    "xlm-roberta": "XLMRobertaTokenizer",
    "xlm-roberta-xl": "TokenizersBackend",
}
# Classes that read tokenizer.json as it is, by their names in tokenizer_config.json; transformers has no MT5Tokenizer.
_PLAIN = ("TokenizersBackend", "PreTrainedTokenizer", "PythonBackend", "MT5Tokenizer")
# The input that tells a model which of two texts a token belongs to.
_TYPES = "token_type_ids"
# transformers' number for "no limit".
_NO_LIMIT = int(1e30)


@dataclass(frozen=True, slots=True)
class Backend:
    """A tokenizer that cuts and pads nothing; encoding a pair gives the types of its tokens too.

    `longest` is the maximum number of tokens that the tokenizer's files say, huge if they say none; `from_left` tells
    that a text which is too long loses its beginning; `typed`, that a model gets the types of the tokens. `mask_id` is
    the token that stands for a missing one, or else the end of texts.
    """

    tokenizer: Any
    longest: int
    pad_id: int | None
    special_ids: frozenset[int]
    from_left: bool
    typed: bool
    mask_id: int | None = None


def open_backend(folder: Path, options: dict[str, Any]) -> Backend:
    """The tokenizer of a folder, without transformers if possible; a ModelError says what it needs."""
    options = {**options, **loading_options(folder)}
    try:
        return read_backend(folder, options)
    except NotDescribed as error:
        reason = str(error)
    try:
        return _load(folder, options)
    except ImportError as error:
        raise ModelError(
            f"The tokenizer of {folder.name} needs transformers, since {reason}.",
            hint=advise("embed"),
        ) from error


def read_backend(folder: Path, options: dict[str, Any]) -> Backend:
    """The tokenizer of a folder, with AutoTokenizer's options; NotDescribed tells why only transformers can load it."""
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise missing_package("tokenizers") from error
    if options.get("trust_remote_code"):
        raise NotDescribed("it runs code of its own")
    try:
        return _read(folder, options)
    except (NotDescribed, ModelError):
        raise
    except Exception as error:  # The library's errors have no class of their own.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise NotDescribed(f"its tokenizer cannot be made: {reason[0][:200]}") from error


def _read(folder: Path, options: dict[str, Any]) -> Backend:
    from shardmill.models.tokenizer_families import FAMILIES
    from shardmill.models.tokenizer_settings import read_settings

    family = FAMILIES[_class_of(folder, FAMILIES.keys())]
    said = family.complete(read_settings(folder, options))
    tokenizer, special = family.add_tokens(family.build(said), said)
    tokenizer.post_processor = family.frame(said, tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = said.get("split_special_tokens", False)
    unknown = tokenizer.token_to_id(str(said.get("unk_token")))
    ids = {name: found if (found := tokenizer.token_to_id(name)) is not None else unknown for name in special}
    side = said.get("truncation_side", ((said.stored or {}).get("truncation") or {}).get("direction", "right").lower())
    pad, longest = said.get("pad_token"), said.get("model_max_length", said.get("max_len"))
    mask = said.get("mask_token") or said.get("eos_token")
    return Backend(
        tokenizer,
        longest=int(longest) if longest is not None else _NO_LIMIT,
        pad_id=None if pad is None else ids[str(pad)],
        special_ids=frozenset(i for i in ids.values() if i is not None),
        from_left=side == "left",
        typed=_TYPES in said.get("model_input_names", family.inputs),
        mask_id=None if mask is None else ids[str(mask)],
    )


def names_types(folder: Path) -> bool:
    """Whether the tokenizer of a folder names the types of tokens among a model's inputs, as far as its files tell."""
    from shardmill.models.tokenizer_families import FAMILIES

    said = read_json(folder / "tokenizer_config.json", missing={})
    try:
        usual = FAMILIES[_class_of(folder, FAMILIES.keys())].inputs
    except NotDescribed:
        usual = ()
    return _TYPES in said.get("model_input_names", usual)


def _load(folder: Path, options: dict[str, Any]) -> Backend:
    """The tokenizer that AutoTokenizer makes."""
    import tokenizers
    from transformers import AutoTokenizer

    try:
        made = AutoTokenizer.from_pretrained(str(folder), **options)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"The tokenizer of {folder.name} cannot be loaded: {reason[0][:200]}",
            hint="Pass a folder that contains tokenizer.json.",
        ) from error
    if not getattr(made, "is_fast", False):
        raise ModelError(
            f"{folder.name} has no fast tokenizer.",
            hint="Convert it once, so that the folder contains tokenizer.json.",
        )
    tokenizer = tokenizers.Tokenizer.from_str(made.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = made.backend_tokenizer.encode_special_tokens
    return Backend(
        tokenizer,
        longest=int(made.model_max_length),
        pad_id=made.pad_token_id,
        special_ids=frozenset(i for i in made.all_special_ids if i is not None),
        from_left=made.truncation_side == "left",
        typed=_TYPES in made.model_input_names,
        mask_id=made.eos_token_id if made.mask_token_id is None else made.mask_token_id,
    )


def _class_of(folder: Path, described: Collection[str]) -> str:
    """The name of the class that AutoTokenizer takes."""
    config, said = read_json(folder / "config.json"), read_json(folder / "tokenizer_config.json", missing={})
    kind, code = config.get("model_type"), said.get("auto_map")
    if kind not in _REGISTERED:
        raise NotDescribed(f"its tokenizer is that of a {kind} model")
    if code.get("AutoTokenizer") if isinstance(code, dict) else code:
        raise NotDescribed("its tokenizer comes with code of its own")
    if "model_name" in config:
        raise NotDescribed("its config.json has a model_name, which may choose its tokenizer")
    registered = _REGISTERED[kind]
    named = said.get("tokenizer_class") or config.get("tokenizer_class") or registered
    name = named.removesuffix("Fast")
    if name == registered or registered == _PLAIN[0]:
        return registered
    if name in _PLAIN:
        return _PLAIN[0]
    if name not in described:
        raise NotDescribed(f"its tokenizer is a {named}")
    return str(name)
