"""Writes the sample: the whole file, or nothing."""

from __future__ import annotations

import json
import os
import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.core.console import Bar, count, say
from shardmill.core.errors import UsageError
from shardmill.verbs.sample.docstrings import Docstring, read_docstrings

if TYPE_CHECKING:
    from shardmill.run.request import Request


def start(request: Request) -> None:
    write_sample(Path(request.options.file))


def write_sample(path: Path) -> None:
    """Write the docstrings of the standard library to a file, which is new, or the same already."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", hint=f"Name a file in it: {path / 'docstrings.jsonl'}")
    with Bar("reading docstrings") as bar:
        found = read_docstrings(
            Path(sysconfig.get_paths()["stdlib"]), lambda done, total: bar.count(done, total, "modules")
        )
    _write(path, "".join(map(_line, found)).encode())
    say(f"{count(len(found), 'docstring')} of the standard library: {path}")


def _line(docstring: Docstring) -> str:
    return json.dumps({"name": docstring.name, "doc": docstring.text}, ensure_ascii=False) + "\n"


def _write(path: Path, data: bytes) -> None:
    if path.exists():
        if path.read_bytes() == data:
            return
        raise UsageError(f"{path} exists, with other content. Nothing was written.", hint="Name a new file.")
    staged = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(data)
        os.replace(staged, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", hint="Name a file elsewhere.") from error
    finally:
        with suppress(OSError):
            staged.unlink()
