"""Tasks that misbehave in native code: one never returns from it, another dies there."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardmill.core.devices import Device
from shardmill.tasks.base import Output, Prepared
from shardmill.testing import FakeTask


class NativeTask(FakeTask):
    """Hangs in `prepare` or in `run`, as `where` says, and creates the file `mark` before it does.

    No signal handler of Python runs meanwhile, as in a long kernel.
    """

    def __init__(self, where: str, mark: str) -> None:
        super().__init__()
        self.where, self.mark = where, Path(mark)

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        self._hang("prepare")
        return super().prepare(texts)

    def run(self, inputs: Sequence[Any]) -> Output:
        self._hang("run")
        return super().run(inputs)

    def _hang(self, where: str) -> None:
        if self.where == where:
            self.mark.touch()
            hashlib.pbkdf2_hmac("sha256", b"password", b"salt", (1 << 31) - 1)


class KillsAtLoad(FakeTask):
    """Kills its process while it is loaded, as a library that does not suit the machine does."""

    def open(self, device: Device) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
