"""The task that a process keeps open from one search or question to the next: loading a model takes seconds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardmill.core.devices import Device
from shardmill.tasks import open_here, open_task
from shardmill.tasks.base import Task


class KeptTask:
    """At most one open task of this process. Threads take turns with it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._named = ""
        self._open: tuple[Task, Device] | None = None

    @contextmanager
    def use(self, name: str, params: dict[str, Any], *, precise: bool) -> Iterator[tuple[Task, Device]]:
        """The task `name`, open here, and its device: the one that is kept if it is the same and has the same model."""
        task = open_task(name, params)
        named = json.dumps([name, params, task.fingerprint(), precise], sort_keys=True, default=str)
        with self._lock:
            if self._open is None or self._named != named:
                self.close()
                self._open, self._named = (task, open_here(task, precise=precise)), named
            yield self._open

    def close(self) -> None:
        """Free the device."""
        with self._lock:
            kept, self._open = self._open, None
            if kept is not None:
                kept[0].close()


KEPT = KeptTask()
