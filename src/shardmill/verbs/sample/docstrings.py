"""The docstrings of a folder of modules, read without importing any."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from shardmill.core.errors import SourceError

_PARAGRAPHS = 2
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Docstring(NamedTuple):
    name: str
    """The dotted name of what it documents."""

    text: str
    """Its first paragraphs."""


def read_docstrings(folder: Path, on_progress: Callable[[int, int], None]) -> list[Docstring]:
    """The docstrings below a folder, in the order of the names of files; of those with the same text, the first."""
    files = sorted(f for f in folder.rglob("*.py") if not _SKIPPED.intersection(f.relative_to(folder).parts))
    seen: dict[str, Docstring] = {}
    for done, file in enumerate(files, 1):
        for found in _read(file, folder):
            seen.setdefault(found.text, found)
        on_progress(done, len(files))
    if not seen:
        raise SourceError(
            f"{folder} has no modules with docstrings: this Python comes without the source of its standard library.",
            hint="Run shardmill with another Python.",
        )
    return list(seen.values())


def _read(file: Path, folder: Path) -> Iterator[Docstring]:
    with warnings.catch_warnings():
        # Of escapes in texts that were right when they were written.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return
    parts = file.relative_to(folder).with_suffix("").parts
    yield from _walk(tree, ".".join(part for part in parts if part != "__init__"))


def _walk(node: ast.AST, name: str) -> Iterator[Docstring]:
    if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
        yield Docstring(name, "\n\n".join(text.split("\n\n")[:_PARAGRAPHS]))
    for child in ast.iter_child_nodes(node):
        own = f"{name}.{child.name}" if isinstance(child, _DOCUMENTED[1:]) else name
        yield from _walk(child, own)
