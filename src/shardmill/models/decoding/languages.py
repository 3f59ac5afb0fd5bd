"""Models that translate between many languages, and are told both by special tokens: NLLB, M2M100, mBART-50.

The files of a folder say which languages there are; neither torch nor a tokenizer is needed for that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError, nearest
from shardmill.models.decoding.generative import GenerativeFolder
from shardmill.models.decoding.options import GenerationOptions

# The tokens of languages by the class of the tokenizer, and the language that it takes a text to be in.
_NLLB = re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"), "eng_Latn"
_M2M100 = re.compile(r"__([a-z]{2,3})__"), "en"
_MBART50 = re.compile(r"([a-z]{2}_[A-Z]{2})"), "en_XX"
_FAMILIES = {"Nllb": _NLLB, "M2M100": _M2M100, "MBart50": _MBART50}
_BY_MODEL = {"m2m_100": "M2M100", "nllb-moe": "Nllb"}
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Languages:
    """The token of each language, by its code, and those that are used if none is asked for; no target is "".

    `tokens` is empty if the files do not name them. `has_target` says whether the model begins in a language by itself.
    """

    source: str
    target: str
    has_target: bool
    tokens: dict[str, str] = field(default_factory=dict)


def read_languages(folder: GenerativeFolder) -> Languages | None:
    """The languages of a model; None for one that is not told any."""
    said = _read(folder.root / "tokenizer_config.json")
    kind = re.sub(r"Tokenizer(Fast)?$", "", str(said.get("tokenizer_class") or ""))
    family = _FAMILIES.get(kind) or (not kind and _FAMILIES.get(_BY_MODEL.get(folder.config.get("model_type", ""), "")))
    if not family or not folder.crossed:
        return None
    pattern, usual = family
    ids = {name: number for name, number in _special_tokens(folder.root, said) if pattern.fullmatch(name)}
    tokens = {pattern.fullmatch(name)[1]: name for name in sorted(ids)}  # type: ignore[index]
    own = _read(folder.root / "generation_config.json").get("forced_bos_token_id")
    own = folder.config.get("forced_bos_token_id") if own is None else own
    target = next((code for code, name in tokens.items() if own is not None and ids[name] == own), "")
    return Languages(said.get("src_lang") or usual, target, own is not None, tokens)


def check_languages(name: str, languages: Languages | None, options: GenerationOptions) -> None:
    """Refuse languages that the model does not know, and any of a model that is not told one."""
    asked = {"--source-language": options.source_language, "--target-language": options.target_language}
    if not any(asked.values()):
        return
    if languages is None:
        flag = next(flag for flag, code in asked.items() if code)
        raise ModelError(
            f"{name} is not told a language: {flag} is for NLLB, M2M100 and mBART-50.",
            hint="Say it in the prompt of a model that follows instructions.",
        )
    for flag, code in asked.items():
        if code and languages.tokens and code not in languages.tokens:
            raise _unknown(name, flag, code, [*languages.tokens])


def settle_target(name: str, languages: Languages | None) -> str:
    """The language that the model translates into by itself; a ModelError if it must be told."""
    if languages is None or languages.has_target:
        return languages.target if languages is not None else ""
    raise ModelError(
        f"{name} translates into many languages, and none was named.",
        hint=f"Name one: --target-language CODE, such as {_some([*languages.tokens])}.",
    )


def say_languages(languages: Languages | None, options: GenerationOptions) -> list[str]:
    """What is translated into what, for the user."""
    if languages is None:
        return []
    source = options.source_language or f"{languages.source} (its default; --source-language CODE)"
    return [f"Translates from {source} into {options.target_language or languages.target or 'its own language'}."]


def tell_languages(tokenizer: Any, folder: GenerativeFolder, options: GenerationOptions) -> int | None:
    """Tell the tokenizer the language of the texts; the token that an answer begins with, if a language is asked for.

    The tokenizer has the last word on which there are.
    """
    languages = read_languages(folder) if options.source_language or options.target_language else None
    if languages is None:
        check_languages(folder.root.name, None, options)
        return None
    ids = {}
    for flag, code in (("--source-language", options.source_language), ("--target-language", options.target_language)):
        token = languages.tokens.get(code) or getattr(tokenizer, "lang_code_to_token", {}).get(code, code)
        ids[flag] = tokenizer.convert_tokens_to_ids(token) if code else None
        if code and ids[flag] in (None, tokenizer.unk_token_id):
            raise _unknown(folder.root.name, flag, code, [*languages.tokens])
    if options.source_language:
        tokenizer.src_lang = options.source_language
    return ids["--target-language"]


def _unknown(name: str, flag: str, code: str, known: list[str]) -> ModelError:
    return ModelError(
        f"{flag}: {name} knows no language {code!r}.",
        hint=nearest(code, known) or f"It has {len(known)}, such as {_some(known)}.",
    )


def _some(codes: list[str]) -> str:
    return ", ".join(codes[:: max(1, len(codes) // _SHOWN)][:_SHOWN]) or "the codes in its model card"


def _special_tokens(root: Path, said: dict[str, Any]) -> Iterator[tuple[str, int | None]]:
    """The special tokens that any file of the folder names, with their ids where it has them."""
    for values in (said, _read(root / "special_tokens_map.json")):
        for name in ("additional_special_tokens", "extra_special_tokens"):
            listed = values.get(name) or []
            for each in listed.values() if isinstance(listed, dict) else listed:
                yield str(each["content"] if isinstance(each, dict) else each), None
    for token, number in _read(root / "added_tokens.json").items():
        yield token, number
    for number, each in (said.get("added_tokens_decoder") or {}).items():
        yield str(each["content"]), int(number)
    for each in _read(root / "tokenizer.json").get("added_tokens") or []:
        yield str(each["content"]), int(each["id"])


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}
