"""The command line in this process or in one of its own, and what a good refusal looks like."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.waiting import PATIENCE_S


class Said(NamedTuple):
    status: int
    out: str
    err: str


Cli = Callable[..., Said]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "shardmill", *map(str, words)]


def process(*words: object, **how: Any) -> Said:
    """The command in a process of its own."""
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=PATIENCE_S, **how)
    return Said(done.returncode, done.stdout, done.stderr)


def write_spec(folder: Path, source: Path | str, *, params: str = "", shard_bytes: int = 2_000) -> Path:
    path = folder / "spec.toml"
    path.write_text(
        f'[work]\nsource = "{source}"\ntext = "text"\nid = "id"\ntask = "shardmill.testing:FakeTask"\n'
        f"params = {{{params}}}\n[execution]\nshard_bytes = {shard_bytes}\n"
    )
    return path


def without_progress(err: str) -> str:
    """What was said on stderr, without the lines that a bar prints if the machine is slow."""
    return re.sub(r"^\S+ \d+\.\d% .*\n", "", err, flags=re.MULTILINE)


def assert_told(said: Said, status: int, *words: str) -> None:
    """One or two lines on stderr, nothing on stdout, no traceback."""
    assert said.status == status, said
    assert said.out == ""
    err = without_progress(said.err)
    assert err.startswith("error: "), said.err
    assert 1 <= len(err.splitlines()) <= 2, said.err
    assert "Traceback" not in said.err
    assert "bug in shardmill" not in said.err
    for word in words:
        assert word in said.err, said.err
