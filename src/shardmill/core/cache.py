"""The user's cache folder, and small JSON files in it, shared by all processes. Read and write errors are ignored."""

from __future__ import annotations

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
    """Values by name in one file, under one heading. A broken file, or one of another version, counts as empty.

    Only the user may read it. Of more than `most` values, the oldest are dropped.
    """

    file: str
    heading: str
    version: int = 1
    most: int = 1000

    @property
    def path(self) -> Path:
        return cache_folder() / self.file

    def read(self) -> dict[str, Any]:
        try:
            held = json.loads(self.path.read_bytes())
            return dict(held[self.heading]) if held["version"] == self.version else {}
        except (OSError, RuntimeError, LookupError, TypeError, ValueError):
            return {}

    def put(self, name: str, value: Any) -> str:
        """Store `value` next to the values of other processes; why not, if the file cannot be written, else ""."""
        import fcntl

        try:
            path = self.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(path.with_suffix(".lock"), "ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                staged = path.with_suffix(".partial")
                held = [*((n, v) for n, v in self.read().items() if n != name), (name, value)][-self.most :]
                with open(staged, "w", opener=_open_private) as file:
                    json.dump({"version": self.version, self.heading: dict(held)}, file, indent=1)
                os.replace(staged, path)
        except (OSError, RuntimeError) as error:
            said = getattr(error, "strerror", None) or type(error).__name__
            return f"{self.file} in the user's cache cannot be written ({said})"
        return ""


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
