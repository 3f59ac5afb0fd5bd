"""Waiting for what another process does: long enough for a machine with other work, and never longer than needed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

# Nothing is measured by it: what is slower than this hangs.
PATIENCE_S = 240.0


def wait_for(what: Callable[[], Any], timeout_s: float = PATIENCE_S, *, rest_s: float = 0.02) -> Any:
    """The first true answer. `rest_s` is longer for a question that costs as much as a process."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(rest_s)
    raise AssertionError(f"it did not happen in {timeout_s:.0f} s")


def hear_ctrl_c() -> None:
    """For a child that is to be interrupted: tests run in the background hand on a deaf ear to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
