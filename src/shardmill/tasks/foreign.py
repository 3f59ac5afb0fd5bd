"""Tasks whose class does not inherit from `Task`: the only place that looks up parts of a task by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.tasks.base import Output, Prepared, Task

_PARTS = frozenset(name for name in {**vars(Task), **Task.__annotations__} if not name.startswith("_")) - {"written"}


class ForeignTask(Task):
    """Wraps an object of any class: uses what the object defines, and `Task`'s defaults for the rest."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def fingerprint(self) -> dict[str, str]:
        found: dict[str, str] = self._own.fingerprint()
        return found

    def open(self, device: Device) -> None:
        self._own.open(device)

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        prepared: Prepared = self._own.prepare(texts) if fields is None else self._own.prepare(texts, fields)
        return prepared

    def run(self, inputs: Sequence[Any]) -> Output:
        output: Output = self._own.run(inputs)
        return output

    def __getattribute__(self, name: str) -> Any:
        """Reads the object each time, since `open` may change a part such as `batch_budget`. None counts as missing."""
        if name not in _PARTS or name in Task.__abstractmethods__:
            return super().__getattribute__(name)
        if getattr(self._own, name, None) is None and hasattr(Task, name):
            return super().__getattribute__(name)
        return getattr(self._own, name)
