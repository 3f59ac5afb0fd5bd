"""The known devices: memory, bandwidth, peaks, prices. They are in `catalogue.toml`; your own file can add more.

catalogue = load_catalogue()
catalogue.named("T4").usd
catalogue.find("NVIDIA A100-SXM4-80GB").name
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardmill.core.errors import SpecError, UsageError, nearest

CPU = "CPU"


class Chip(BaseModel):
    """One kind of device. Peaks are dense TFLOP/s; prices are USD per device and hour, None if unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    seen: tuple[str, ...] = ()
    not_seen: tuple[str, ...] = ()
    memory_gb: float = Field(gt=0)
    bandwidth_gb_s: float = Field(gt=0)
    fp32: float = Field(gt=0)
    tf32: float | None = Field(None, gt=0)
    fp16: float | None = Field(None, gt=0)
    bf16: float | None = Field(None, gt=0)
    packed: bool = True
    listed: bool = True
    instance: str = ""
    gpus: int = Field(1, ge=1)
    cores: int = Field(4, ge=1)
    usd: float | None = Field(None, ge=0)
    spot_usd: float | None = Field(None, ge=0)
    date: str = ""
    source: str = ""

    @property
    def half_tflops(self) -> float:
        """The peak in half precision, or in float32 if there is no other."""
        return max(self.fp16 or 0.0, self.bf16 or 0.0) or self.fp32

    def rented(self, count: int) -> int:
        """How many are paid for if `count` are used: instances are rented whole.

        >>> Chip(name="x", memory_gb=1, bandwidth_gb_s=1, fp32=1, gpus=8).rented(9)
        16
        """
        return self.gpus * math.ceil(count / self.gpus)

    def is_named(self, name: str) -> bool:
        words = set(re.split(r"[\s-]+", name))
        return not words.intersection(self.not_seen) and any(words.issuperset(entry.split()) for entry in self.seen)


class Catalogue:
    """The known chips, by name."""

    def __init__(self, chips: Mapping[str, Chip]) -> None:
        self._chips = dict(chips)

    def named(self, name: str) -> Chip:
        """The chip called `name`, ignoring case."""
        for known, chip in self._chips.items():
            if known.lower() == name.lower():
                return chip
        raise UsageError(
            f"{name!r} is not in the catalogue of devices.",
            hint=f"{nearest(name, [chip.name for chip in self.listed])} Add others with --catalogue FILE.",
        )

    def find(self, name: str) -> Chip | None:
        """The chip for a device name reported by the driver; None if unknown, such as a MIG slice."""
        if "MIG" in re.split(r"[\s-]+", name):
            return None
        return next((chip for chip in self._chips.values() if chip.is_named(name)), None)

    @property
    def listed(self) -> list[Chip]:
        return [chip for chip in self._chips.values() if chip.listed]


def load_catalogue(more: Path | None = None) -> Catalogue:
    """The built-in catalogue, overridden by the user's own file, then by `more`."""
    chips = dict(_ours())
    own = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "shardmill" / "devices.toml"
    for path in ([own] if own.is_file() else []) + ([more] if more else []):
        chips = _over(chips, path)
    return Catalogue(chips)


@cache
def _ours() -> dict[str, Chip]:
    tables = tomllib.loads((files("shardmill.plan.sizing") / "catalogue.toml").read_text())
    return {entry["name"]: Chip(**entry) for entry in tables["device"]}


def _over(chips: dict[str, Chip], path: Path) -> dict[str, Chip]:
    """Override entries by name: for a known device, a price alone is enough."""
    merged = dict(chips)
    for entry in _entries(path):
        name = str(entry.get("name", ""))
        before = merged[name].model_dump() if name in merged else {}
        try:
            merged[name] = Chip(**{**before, **entry})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise SpecError(f"{path}: device {name!r}: {where}: {first['msg'].lower()}.") from error
    own = [name for name in merged if name not in chips]
    return {name: merged[name] for name in [*own, *chips]}


def _entries(path: Path) -> list[dict[str, Any]]:
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: {error}.") from error
    entries = tables.get("device", [])
    if set(tables) - {"device"} or not isinstance(entries, list):
        raise SpecError(f"{path}: a catalogue may contain [[device]] tables only.")
    return entries
