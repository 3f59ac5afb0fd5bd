"""The options of the Slurm engine, and the flags of sbatch made from them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.engines.base import check_options

_FLAGS = {"partition", "account", "qos", "time", "gres", "mem"}


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """`gres` is per worker. `setup` are shell lines run before the worker, `wrap` is put before its command.

    A worker gets a signal `signal_s` before the time limit. At most `array_limit` tasks run at once. `logs` is a folder
    that nodes and this machine both see, for a run whose own folder is in a store.
    """

    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    gres: str = "gpu:1"
    mem: str = ""
    cpus: int = 0
    array_limit: int = 0
    signal_s: int = 120
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    wrap: str = ""
    python: str = sys.executable
    logs: str = ""

    def flags(self) -> list[str]:
        """The options that become flags of sbatch."""
        given = [f"--{name}={value}" for name in sorted(_FLAGS) if (value := getattr(self, name))]
        return [*given, *([f"--cpus-per-task={self.cpus}"] if self.cpus else [])]


def read_options(given: Mapping[str, Any], device: str) -> SlurmOptions:
    """Read the options from the command line, where all values are text, or from Python."""
    check_options("slurm", given, (f.name for f in fields(SlurmOptions)))
    if device == "all":
        raise SpecError("--device all is not for Slurm: each task gets what it asks for.", hint="Use cuda or cpu.")
    if device == "cpu" and given.get("gres"):
        raise SpecError(f"gres={given['gres']} is for workers on a GPU, but --device is cpu.")
    values: dict[str, Any] = {"gres": ""} if device == "cpu" else {}
    for name, value in given.items():
        if name in ("cpus", "array_limit", "signal_s"):
            values[name] = _number(name, value)
        elif name == "setup":
            values[name] = _lines(value, "\n")
        elif name == "directives":
            values[name] = tuple(d.removeprefix("#SBATCH").strip() for d in _lines(value, "\n|;"))
        else:
            values[name] = _one_line(name, value)
    return SlurmOptions(**values)


def _number(name: str, value: Any) -> int:
    text = str(value).strip()
    if not text.isdecimal():
        raise SpecError(f"The option {name}={value} of the engine 'slurm' is not a whole number.")
    return int(text)


def _lines(value: str | Sequence[str], cut: str) -> tuple[str, ...]:
    whole = value if isinstance(value, str) else "\n".join(value)
    return tuple(line.strip() for line in re.split(cut, whole) if line.strip())


def _one_line(name: str, value: Any) -> str:
    if "\n" in str(value):
        raise SpecError(f"The option {name} of the engine 'slurm' has more than one line.")
    return str(value)
