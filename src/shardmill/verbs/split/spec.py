"""The settings of a split: where to cut, what to write, in which order, into which parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import SpecError, nearest

FORMATS = ["parquet", "json", "jsonl"]
COMPRESSIONS = ["none", "gzip", "zstd"]
DEFAULT_ITEMS = 10_000
WHOLE = ""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Cut:
    """The size of a chunk: a number of items, of bytes of JSON lines, or one chunk per worker."""

    items: int | None = None
    bytes: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.items, self.bytes, self.workers) if value is not None]
        if len(given) != 1:
            raise SpecError("Give one of --items, --bytes and --chunks.")
        if given[0] < 1:
            raise SpecError(f"A chunk cannot be of size {given[0]}.", hint="Give a number of at least 1.")


@dataclass(frozen=True, slots=True)
class SplitSpec:
    """All settings that determine the output; the same spec and source always give the same bytes.

    `splits` names the parts with their shares; `by` is `random:SEED` or `hash:FIELD`.
    """

    name: str
    cut: Cut = Cut(items=DEFAULT_ITEMS)
    format: str = "parquet"
    compress: str = ""
    shuffle: int | None = None
    splits: tuple[tuple[str, float], ...] = ()
    by: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SpecError(
                f"{self.name!r} is not a valid dataset name.",
                hint="Use letters, digits, dots, - and _: --name reviews",
            )
        if self.format not in FORMATS:
            raise SpecError(f"{self.format!r} is not a supported format.", hint=nearest(self.format, FORMATS))
        if not self.compress:
            object.__setattr__(self, "compress", "zstd" if self.format == "parquet" else "none")
        if self.compress not in COMPRESSIONS:
            raise SpecError(f"{self.compress!r} is not a compression.", hint=nearest(self.compress, COMPRESSIONS))
        for part in dict(self.splits):
            if not _NAME.fullmatch(part):
                raise SpecError(f"{part!r} is not a valid name of a part.", hint=_SPLITS_HINT)
        if self.by and not self.splits:
            raise SpecError("--by needs --splits.", hint="For example --splits train=0.9,test=0.1")
        if self.splits and not self.by:
            object.__setattr__(self, "by", "random:0")
        parse_by(self.by)

    @property
    def parts(self) -> list[str]:
        """The names of the parts; without splits, one part without a name."""
        return [name for name, _ in self.splits] or [WHOLE]

    def to_json(self) -> dict[str, Any]:
        return {
            "items": self.cut.items,
            "bytes": self.cut.bytes,
            "workers": self.cut.workers,
            "format": self.format,
            "compress": self.compress,
            "shuffle": self.shuffle,
            "splits": dict(self.splits),
            "by": self.by,
        }


def parse_bytes(text: str) -> int:
    """Parse a number of bytes with an optional unit.

    >>> parse_bytes("64MB"), parse_bytes("1.5 GiB"), parse_bytes("500")
    (64000000, 1610612736, 500)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if not match or match[2].upper() not in _UNITS:
        raise SpecError(f"{text!r} is not a size.", hint="Write for example 64MB, 1GB or 500000.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_splits(text: str) -> tuple[tuple[str, float], ...]:
    """Parse the names and shares of the parts.

    >>> parse_splits("train=0.8,validation=0.1,test=0.1")
    (('train', 0.8), ('validation', 0.1), ('test', 0.1))
    """
    found: dict[str, float] = {}
    for entry in text.split(","):
        name, _, share = (part.strip() for part in entry.partition("="))
        if name in found:
            raise SpecError(f"--splits {text!r}: {name!r} is named twice.", hint="Give every part a name of its own.")
        try:
            found[name] = float(share)
        except ValueError:
            raise SpecError(f"--splits {text!r}: {entry!r} is not a name and a share.", hint=_SPLITS_HINT) from None
        if not _NAME.fullmatch(name) or name == "chunks" or not 0 < found[name] <= 1:
            raise SpecError(f"--splits {text!r}: {entry!r} is not a name and a share.", hint=_SPLITS_HINT)
    if abs(sum(found.values()) - 1) > 1e-9:
        raise SpecError(f"--splits {text!r}: the shares add up to {sum(found.values()):g}, not 1.", hint=_SPLITS_HINT)
    return tuple(found.items())


_SPLITS_HINT = "Write for example train=0.8,validation=0.1,test=0.1"


def parse_by(text: str) -> tuple[str, str]:
    """Parse `random:SEED` or `hash:FIELD` into kind and argument."""
    kind, _, argument = text.partition(":")
    if text and not (kind == "hash" and argument) and not (kind == "random" and re.fullmatch(r"-?\d+", argument)):
        raise SpecError(f"--by {text!r} is not a way to split.", hint="Write random:SEED or hash:FIELD.")
    return kind, argument
