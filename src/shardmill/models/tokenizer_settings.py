"""What the files of a folder say of its tokenizer, merged as transformers merges them where they disagree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from shardmill.models.folder import read_json
from shardmill.models.networks.unknown import NotDescribed

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Token = str | AddedToken
# What a caller of AutoTokenizer may set here; other options choose files, classes or code.
_OPTIONS = {
    *NAMED,
    "model_max_length",
    "truncation_side",
    "padding_side",
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "keep_accents",
    "add_prefix_space",
    "trim_offsets",
    "split_special_tokens",
    "clean_up_tokenization_spaces",
}
_WITHOUT_EFFECT = {"use_fast", "local_files_only", "trust_remote_code"}
# Settings that stand for other files, or for parts of a tokenizer.
_REFUSED = (
    "fast_tokenizer_files",
    "init_inputs",
    "fix_mistral_regex",
    "gguf_file",
    "tokenizer_object",
    "tokenizer_truncation",
    "tokenizer_padding",
    "post_processor",
    "vocab",
    "merges",
)
# transformers reads these where there is no tokenizer.json.
_OTHER_FILES = ("tokenizer.model", "tiktoken.model", "tekken.json")


@dataclass(frozen=True, slots=True)
class Settings:
    """tokenizer_config.json and what overrides it; the added tokens by id; tokenizer.json, None without the file."""

    folder: Path
    values: dict[str, Any]
    added: dict[int, AddedToken]
    stored: dict[str, Any] | None

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    def name(self, key: str) -> str:
        """A special token that the tokenizer cannot do without."""
        if self.values.get(key) is None:
            raise NotDescribed(f"its tokenizer_config.json gives no {key}")
        return str(self.values[key])

    def file(self, name: str) -> str:
        """The path of a file that a folder without tokenizer.json must have."""
        if not (path := self.folder / name).is_file():
            raise NotDescribed(f"it has neither tokenizer.json nor {name}")
        return str(path)

    def vocabulary(self) -> Any:
        """The words or pieces of tokenizer.json."""
        if self.stored is None:
            raise NotDescribed("it has no tokenizer.json")
        return self.stored["model"]["vocab"]

    def named_tokens(self) -> dict[str, Token]:
        """The special tokens that have names: the usual ones, then the model's own, as image_token."""
        usual = {key: self.values.get(key) for key in NAMED}
        further = {key: self.values[key] for key in _further(self.values) if isinstance(self.values[key], Token)}
        own = self.values.get("model_specific_special_tokens") or {}
        found = {key: token for key, token in {**usual, **further, **own}.items() if token is not None}
        if wrong := [key for key in found if key in usual.keys() & own.keys() or not isinstance(found[key], Token)]:
            raise NotDescribed(f"its special token {wrong[0]} is said in an unusual way")
        return found


def read_settings(folder: Path, options: dict[str, Any]) -> Settings:
    """Read and merge the files; NotDescribed names what cannot be merged here."""
    given = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
    if unknown := given.keys() - _OPTIONS:
        raise NotDescribed(f"it is loaded with the option {min(unknown)}")
    values: dict[str, Any] = read_json(folder / "tokenizer_config.json", missing={})
    if refused := [key for key in _REFUSED if values.get(key)]:
        raise NotDescribed(f"its tokenizer_config.json has {refused[0]}")
    stored = read_json(folder / "tokenizer.json", missing=None)
    if stored is None and (others := [name for name in _OTHER_FILES if (folder / name).exists()]):
        raise NotDescribed(f"it has {others[0]} and no tokenizer.json")
    if stored is not None:
        values = {key: value for key, value in values.items() if key not in ("add_bos_token", "add_eos_token")}
    values.update(given)
    if "additional_special_tokens" in values and not values.get("extra_special_tokens"):
        values["extra_special_tokens"] = values.pop("additional_special_tokens")
    _name_further_tokens(values)
    if "added_tokens_decoder" in values:
        added = [(int(i), AddedToken(**token)) for i, token in values["added_tokens_decoder"].items()]
    else:
        _override_by_map(values, read_json(folder / "special_tokens_map.json", missing={}), given)
        added = [*_legacy_tokens(values, read_json(folder / "added_tokens.json", missing={})), *_stored_tokens(stored)]
    values = _with_tokens(values)
    by_name = {str(token): token for _, token in added}
    for key in NAMED:
        if values.get(key) is not None:
            values[key] = by_name.get(str(values[key]), values[key])
    return Settings(folder, values, dict(added), stored)


def _name_further_tokens(values: dict[str, Any]) -> None:
    """Special tokens with names of their own, as image_token, apart from the usual ones and from the unnamed."""
    further = {key: values.pop(key) for key in _further(values) if isinstance(values[key], str)}
    if isinstance(values.get("extra_special_tokens"), dict):
        further |= values.pop("extra_special_tokens")
    if further:
        values["model_specific_special_tokens"] = further


def _further(values: dict[str, Any]) -> list[str]:
    return [key for key in values if key.endswith("_token") and key not in NAMED]


def _override_by_map(values: dict[str, Any], said: dict[str, Any], given: dict[str, Any]) -> None:
    """What special_tokens_map.json says; what the caller gave is not overridden."""
    for key, value in said.items():
        if given.get(key):
            continue
        if key == "extra_special_tokens" and isinstance(value, list):
            merged = list(values.get(key) or [])
            for said_token in value:
                token = AddedToken(**said_token, special=True) if isinstance(said_token, dict) else said_token
                merged += [token] if token not in merged else []
            values[key] = merged
        elif key != "extra_special_tokens" and isinstance(value, dict):
            values[key] = AddedToken(**{**value, "special": True})
        else:
            values[key] = value
    if isinstance(values.get("extra_special_tokens"), dict):
        values.setdefault("model_specific_special_tokens", {}).update(values.pop("extra_special_tokens"))


def _legacy_tokens(values: dict[str, Any], said: dict[str, int]) -> Iterator[tuple[int, AddedToken]]:
    """The tokens of added_tokens.json."""
    special = {str(values[key]) for key in NAMED if values.get(key)}
    special |= {str(token) for token in values.get("extra_special_tokens") or ()}
    for name, i in said.items():
        yield i, AddedToken(name, normalized=name not in special, special=name in special)


def _stored_tokens(stored: dict[str, Any] | None) -> Iterator[tuple[int, AddedToken]]:
    for said in (stored or {}).get("added_tokens", ()):
        yield said["id"], AddedToken(**{key: value for key, value in said.items() if key != "id"})


def _with_tokens(said: Any) -> Any:
    """Settings where a token is an object, as tokenizer_config.json may say it with all its flags."""
    if isinstance(said, dict) and said.get("__type") == "AddedToken":
        return AddedToken(**{key: value for key, value in said.items() if key != "__type"})
    if isinstance(said, dict):
        return {key: _with_tokens(value) for key, value in said.items()}
    return [_with_tokens(each) for each in said] if isinstance(said, list) else said
