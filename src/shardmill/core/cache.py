"""The user's cache folder, and small JSON files in it, shared by all processes. Read and write errors are ignored."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """The folder of shardmill in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shardmill"


@dataclass(frozen=True, slots=True)
class Cache:
    """Values by name in one file, under one heading. A broken file, or one of another version, counts as empty."""

    file: str
    heading: str
    version: int = 1

    @property
    def path(self) -> Path:
        return cache_folder() / self.file

    def read(self) -> dict[str, Any]:
        try:
            held = json.loads(self.path.read_bytes())
            return dict(held[self.heading]) if held["version"] == self.version else {}
        except (OSError, RuntimeError, LookupError, TypeError, ValueError):
            return {}

    def put(self, name: str, value: Any) -> None:
        """Store `value` next to the values of other processes, if the file can be written."""
        import fcntl

        with contextlib.suppress(OSError, RuntimeError):
            path = self.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path.with_suffix(".lock"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                staged = path.with_suffix(".partial")
                held = {"version": self.version, self.heading: {**self.read(), name: value}}
                staged.write_text(json.dumps(held, indent=1))
                os.replace(staged, path)
