"""The configs of a dataset: subsets that its README.md declares, or folders that have splits of their own.

A declaration is read by the rules of Hugging Face's `datasets`, so that both see the same files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shardmill.core.errors import SourceError, nearest
from shardmill.core.extras import missing_package
from shardmill.sources.files import read_object
from shardmill.sources.places import Found, translate
from shardmill.sources.splits import ALL_CONFIGS, split_of

_README = "README.md"
_HEAD = re.compile(r"\ufeff?---[ \t]*\r?\n(?P<told>.*?)\n---[ \t]*\r?(?:\n|\Z)", re.DOTALL)
_DECLARES = re.compile(r"^configs:", re.MULTILINE)
_SHOWN = 20


class Config(NamedTuple):
    """The patterns of a config's files, by split; the split is "" if the names of the files tell it."""

    name: str
    patterns: tuple[tuple[str, tuple[str, ...]], ...]


class Subset(NamedTuple):
    """The files of a config, and the splits of those that are declared."""

    files: Sequence[Found]
    splits: Mapping[str, Sequence[str]]


def choose_config(place: str, found: Sequence[Found], config: str, is_data: Callable[[Found], bool]) -> Subset:
    """The files of one config of a folder; all of them if there is only one, and none is asked for."""
    readme = next((f for f in found if f.entry.key == _README), None)
    if readme is not None and (declared := read_configs(place, read_object(readme.place))):
        return _choose_declared(place, found, config, declared)
    if not (name := _pick(place, _folders(filter(is_data, found)), config)):
        return Subset(found, {})
    return Subset([f for f in found if f.entry.key.startswith(f"{name}/")], {})


def _folders(data: Iterable[Found]) -> list[str]:
    """The folders with splits, if there are several, and all data is in them."""
    named = set()
    for f in data:
        if not (folder := _folder_of(f.entry.key)):
            return []
        named.add(folder)
    return sorted(named) if len(named) > 1 else []


def _choose_declared(place: str, found: Sequence[Found], config: str, declared: Sequence[Config]) -> Subset:
    name = _pick(place, [each.name for each in declared], config) or declared[0].name
    patterns = next(each.patterns for each in declared if each.name == name)
    splits: dict[str, list[str]] = {}
    for split, globs in patterns:
        matches = [re.compile(translate(glob.removeprefix("./"))).fullmatch for glob in globs]
        for f in found:
            if any(match(f.entry.key) for match in matches):
                splits.setdefault(f.place, []).append(split or split_of(f.entry.key))
    if not splits:
        raise SourceError(
            f"{place}: no file is where its {_README} says that {name!r} is.",
            hint=f"Name a folder or a glob, or take all rows with --config {ALL_CONFIGS}.",
        )
    return Subset([f for f in found if f.place in splits], splits)


def _pick(place: str, names: Sequence[str], config: str) -> str:
    """The config that is asked for; "" if none is, and there are not several."""
    if config and config not in names:
        raise SourceError(
            f"{place} has no config {config!r}.",
            hint=nearest(config, [*names]) if names else "It is one dataset: omit --config.",
        )
    if not config and len(names) > 1:
        more = ", …" if len(names) > _SHOWN else ""
        raise SourceError(
            f"{place} has several configs: {', '.join(names[:_SHOWN])}{more}.",
            hint=f"Choose one with --config {names[0]}, or take all rows with --config {ALL_CONFIGS}.",
        )
    return config


def _folder_of(key: str) -> str:
    """The first folder of a path, if what follows names a split, and it does not.

    >>> _folder_of("en/train-00000.parquet"), _folder_of("data/train-00000-of-00001.parquet"), _folder_of("test/a.csv")
    ('en', '', '')
    """
    folder, _, inside = key.partition("/")
    plain = folder != "data" and "=" not in folder and not split_of(f"{folder}/")
    return folder if inside and plain and split_of(inside) else ""


def read_configs(place: str, readme: bytes) -> list[Config]:
    """The configs that the head of a README.md declares.

    >>> read_configs("", b"---\\nconfigs:\\n- config_name: en\\n  data_files: en/*.csv\\n---\\n# News")
    [Config(name='en', patterns=(('train', ('en/*.csv',)),))]
    """
    head = _HEAD.match(readme.decode("utf-8", "replace"))
    if head is None or not _DECLARES.search(head["told"]):
        return []
    try:
        import yaml
    except ImportError as error:
        raise missing_package("pyyaml") from error
    try:
        return [_read_config(each) for each in yaml.safe_load(head["told"])["configs"] or ()]
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise SourceError(
            f"{place}: the configs in its {_README} cannot be read.",
            hint=f"Name a folder or a glob, or take all rows with --config {ALL_CONFIGS}.",
        ) from error


def _read_config(told: Mapping[str, Any]) -> Config:
    folder = str(told.get("data_dir") or "").strip("/").removeprefix("./")
    below = f"{folder}/" if folder and folder != "." else ""
    files = told.get("data_files")
    parts: list[tuple[str, Sequence[str]]]
    if not files:
        parts = [("", ["**"])]
    elif isinstance(files, str):
        parts = [("train", [files])]
    elif isinstance(files, Mapping):
        parts = [(str(split), _each(paths)) for split, paths in files.items()]
    elif all(isinstance(each, str) for each in files):
        parts = [("train", files)]
    else:
        parts = [(str(each["split"]), _each(each["path"])) for each in files]
    patterns = tuple((split, tuple(below + path.removeprefix("./") for path in paths)) for split, paths in parts)
    return Config(str(told.get("config_name") or "default"), patterns)


def _each(paths: str | Sequence[str]) -> Sequence[str]:
    return [paths] if isinstance(paths, str) else paths
