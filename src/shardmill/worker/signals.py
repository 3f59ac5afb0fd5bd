"""Signals of a worker process, heeded from its first moment on, before its libraries are imported."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from typing import Protocol

from shardmill.core import spot
from shardmill.core.errors import EXIT_TRY_AGAIN

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Engines kill a worker that has not ended ten seconds after they told it to stop.
_END_S = 8.0


class Stoppable(Protocol):
    """What a signal stops: a worker, or a step after the last shard."""

    told_to_stop: threading.Event

    def stop(self) -> None: ...


class Signals:
    """Ends the process on a signal: at once while there is no worker, in good order later. `interrupted` is Ctrl-C.

    Python calls a handler on the main thread alone, once that is back from native code. The wakeup descriptor is
    written at once, and another thread reads it.
    """

    def __init__(self) -> None:
        self.heard = self.interrupted = False
        self._worker: Stoppable | None = None
        self._lock = threading.Lock()
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._heed, name="signals", daemon=True).start()
        if spot.environment():
            threading.Thread(target=_heed_cloud, name="notice", daemon=True).start()

    def hand_over(self, worker: Stoppable) -> None:
        """From now on a signal stops this worker; the process ends if the worker does not."""
        with self._lock:
            self._worker = worker
        threading.Thread(target=self._end_in_time, args=(worker,), name="end", daemon=True).start()

    def take_back(self) -> None:
        """The worker has ended, and its process lives on: a signal ends it at once, as before there was a worker."""
        with self._lock:
            self._worker = None

    def _heed(self) -> None:
        while (number := self._reader.recv(1)[0]) not in _SIGNALS:
            continue
        self.heard, self.interrupted = True, number == signal.SIGINT
        with self._lock:
            if self._worker is None:
                os._exit(EXIT_TRY_AGAIN)
            worker = self._worker
        worker.stop()

    def _end_in_time(self, worker: Stoppable) -> None:
        """End the process if it is told to stop and does not: native code and hanging requests are not interrupted."""
        worker.told_to_stop.wait()
        time.sleep(_END_S)
        with self._lock:
            if self._worker is not worker:
                return
        print(f"did not end within {_END_S:.0f} s of being told to: ended", file=sys.stderr, flush=True)
        os._exit(EXIT_TRY_AGAIN)


def _heed_cloud() -> None:
    """Stop as on a signal once the cloud says that it takes this machine away."""
    said = spot.wait_for_notice()
    print(f"{said} The shards of this worker are given back.", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
