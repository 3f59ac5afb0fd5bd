"""A context in memory, for tests of tasks that run for hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from shardmill.tasks.context import Group


@dataclass(frozen=True, slots=True)
class FakeCheckpoint:
    """What was kept in a `FakeContext`."""

    step: int
    files: Mapping[str, bytes]

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.files)

    def read(self, name: str) -> bytes:
        return self.files[name]

    def fetch(self, folder: Path) -> None:
        for name, data in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)


class FakeContext:
    """A context in memory, to test a task that runs for hours without a run. `stop` makes it ask the task to stop."""

    def __init__(self, shard: int = 0) -> None:
        self.shard = shard
        self.reports: list[tuple[int, dict[str, float]]] = []
        self.kept: FakeCheckpoint | None = None
        self.published: dict[str, bytes] = {}
        self.stop = False

    def report(self, step: int, figures: Mapping[str, float], *, steps: int | None = None) -> None:
        self.reports.append((step, dict(figures)))

    def checkpoint(self) -> FakeCheckpoint | None:
        return self.kept

    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> None:
        self.kept = FakeCheckpoint(step, {n: f if isinstance(f, bytes) else f.read_bytes() for n, f in files.items()})

    def publish(self, folder: Path) -> None:
        files = (path for path in folder.rglob("*") if path.is_file())
        self.published = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def join(self) -> AbstractContextManager[Group]:
        return nullcontext(Group.alone())

    def should_stop(self) -> bool:
        return self.stop
