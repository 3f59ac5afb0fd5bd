"""The commands that docs/kubernetes.md tells its reader to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
PROGRAMS = ("shardmill", "kubectl", "helm", "podman", "argo", "eksctl", "eks", "export")
# What the guide leaves to the reader.
_REST = {"embed": ["s3://my-bucket/in.jsonl", "--text", "body", "--out", "s3://my-bucket/runs/a"], "plan": ["in.jsonl"]}


def blocks(heading: str = "") -> list[str]:
    """The blocks of commands, below one heading or on the whole page."""
    text = PAGE.read_text()
    if heading:
        (text,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    return [_outdented(block) for block in re.findall(r"^ *```\w*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)]


def commands(block: str) -> Iterator[list[str]]:
    """Those of a block, without the output that it shows; what is behind a pipe is a command of its own."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    typed = [line[2:] for line in lines if line.startswith("$ ")] or lines
    for line in typed:
        yield from split(line)


def split(line: str) -> Iterator[list[str]]:
    # What a shell puts in is one word.
    for part in re.sub(r"\$\([^)]*\)", "PUT-IN", line).split(" | "):
        if len(part.split()) > 1 and part.split()[0] in PROGRAMS:
            yield shlex.split(part, comments=True)


def inline() -> Iterator[list[str]]:
    """Commands in the text and in tables."""
    text = re.sub(r"^ *```.*?^ *```", "", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", text):
        yield from split(" ".join(code.split()))


def every_command() -> list[list[str]]:
    return [*(words for block in blocks() for words in commands(block)), *inline()]


def given(words: Iterable[str], flag: str) -> list[str]:
    """The values of a flag that may be repeated, written as --flag VALUE or --flag=VALUE."""
    words = list(words)
    found = [words[i + 1] for i, word in enumerate(words[:-1]) if word == flag]
    return found + [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]


def completed(words: list[str]) -> list[str]:
    """A command of ours with something where the guide has an ellipsis: what it works on, or the name of an engine."""
    made: list[str] = []
    for word in words:
        rest = ["kubernetes"] if made and made[-1] == "--engine" else _REST.get(words[1], [])
        made += rest if word == "…" else [word]
    return made


def _outdented(block: str) -> str:
    lines = block.splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[margin:] for line in lines)
