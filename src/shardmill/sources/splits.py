"""The splits of a folder that is laid out as datasets of the hub are: files for training beside files for testing.

Their names follow the rules of Hugging Face's `datasets`, so that both see the same splits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from shardmill.core.errors import SourceError, nearest

# In place of a split or a config: all files, whatever their splits or configs.
ALL_SPLITS = ALL_CONFIGS = "all"
# Each split, and other words for it.
_WORDS = (
    ("train", "training"),
    ("validation", "valid", "dev", "val"),
    ("test", "testing", "eval", "evaluation"),
)
_NUMBERED = re.compile(r"(?:^|/)data/(?P<split>\w+)-\d{5}-of-\d{5}[^/]*$")
_NAMED = {
    words[0]: re.compile(rf"(?:^|[-._ 0-9/])(?:{'|'.join(words)})(?:[-._ 0-9/]|$)", re.IGNORECASE) for words in _WORDS
}

_File = TypeVar("_File")


def split_of(path: str) -> str:
    """The split of a file by its path in the folder; "" if that names none.

    >>> split_of("data/train-00000-of-00002.parquet"), split_of("fr/dev.jsonl"), split_of("reviews.jsonl")
    ('train', 'validation', '')
    """
    if numbered := _NUMBERED.search(path):
        return numbered["split"]
    return next((split for split, pattern in _NAMED.items() if pattern.search(path)), "")


def choose_split(place: str, files: Sequence[_File], its: Callable[[_File], str], split: str) -> Sequence[_File]:
    """The files of one split, each of which has `its` own; all if there is only one, and none is asked for."""
    if split == ALL_SPLITS:
        return files
    splits = [its(file) for file in files]
    named = sorted({*splits} - {""})
    if split:
        if split not in named:
            raise SourceError(
                f"{place} has no split {split!r}.",
                hint=nearest(split, named) if named else "Its files name none: omit --split.",
            )
        return [file for file, named in zip(files, splits, strict=True) if named == split]
    if len(named) > 1:
        raise SourceError(
            f"{place} has several splits: {', '.join(named)}.",
            hint=f"Choose one with --split {named[-1]}, or take all rows with --split {ALL_SPLITS}.",
        )
    return files
