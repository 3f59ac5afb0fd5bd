"""How options are called where the reader typed them: `--out` on the command line, `out=` in Python.

Messages are written for the command line. Whoever calls a function reads the same message with the names of Python.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Dialect = Literal["command", "python"]

_current: Dialect = "python"

# Options without a value.
FLAGS = frozenset(
    (
        *("allow-code", "changed-only", "detach", "exact", "fresh", "rebuild-indexes", "resume"),
        *("errors", "hybrid", "json", "sql", "words"),
    )
)
# Options that functions have under another name.
_NAMES = {"set": "engine_options", "param": "arguments", "mark": "marks", "json": "json"}
# A command for a shell stays one, up to the end of its sentence or quotation.
_COMMAND = re.compile(r"(?:shardmill|python|pip) [a-z][^`\n]*")
# Words that are values of options, not words of a sentence.
_WORDS = (
    *("auto", "cpu", "cuda", "all", "float32", "float16", "extractive", "generative", "each", "mean", "update", "skip"),
    *("fail", "local", "ssh", "slurm", "ray", "kubernetes", "argo", "pool", "hnsw", "ivfflat", "none"),
    *("in-batch", "cosent", "cosine", "triplet", "umap", "pacmap", "text", "files"),
)
# A value is in quotes, a metavar, a path or address, a number, the name of a file, or one of the words.
_VALUES = (
    r"\"[^\"]*\"|'[^']*'",
    r"[A-Z][A-Z_.]+(?:,[A-Z_.]+)*\b",
    r"[\w.]+(?:[/:@][\w./:@~-]*)+",
    r"\d[\w.%]*",
    r"[a-z_]\w*\.(?:py|toml|json|txt|parquet)",
    rf"(?:{'|'.join(_WORDS)})\b",
)
_OPTION = re.compile(rf"(?<![\w-])--([a-z][a-z-]*)(?:[ =]({'|'.join(_VALUES)}))?")


def set_dialect(dialect: Dialect) -> None:
    """Say who reads the messages of this process."""
    global _current
    _current = dialect


@contextmanager
def speaking(dialect: Dialect) -> Iterator[None]:
    """Write messages in a dialect for a while."""
    before = _current
    set_dialect(dialect)
    try:
        yield
    finally:
        set_dialect(before)


def name_option(name: str) -> str:
    """An option by its name in Python, as the reader types it.

    >>> with speaking("command"): name_option("batch_tokens")
    '--batch-tokens'
    """
    return f"--{name.rstrip('_').replace('_', '-')}" if _current == "command" else f"{name}="


def shell_command(*words: object) -> str:
    """A command of shardmill as it is pasted into a shell.

    >>> shell_command("verify", "runs/my reviews")
    "shardmill verify 'runs/my reviews'"
    """
    return shlex.join(["shardmill", *map(str, words)])


def speak(text: str) -> str:
    """A message that was written for the command line, in the dialect of the reader.

    >>> with speaking("python"): speak("No --out was given. Name a folder: --out runs/mine")
    'No out= was given. Name a folder: out="runs/mine"'
    """
    if _current == "command" or "--" not in text:
        return text
    kept = [match.span() for match in _COMMAND.finditer(text)]
    return _OPTION.sub(lambda match: _translate(match, kept), text)


def _translate(match: re.Match[str], kept: list[tuple[int, int]]) -> str:
    if any(start <= match.start() < stop for start, stop in kept):
        return match.group(0)
    flag, value = match.group(1), match.group(2)
    name = _NAMES.get(flag, flag.replace("-", "_"))
    if value is None:
        return f"{name}=True" if flag in FLAGS else f"{name}="
    rest = ""
    if value[-1] in ".,:" and value[0] not in "\"'":
        value, rest = value[:-1], value[-1]
    plain = value.isdecimal() or value[0] in "\"'" or value.isupper()
    return f"{name}={value}{rest}" if plain else f'{name}="{value}"{rest}'
