"""A process that is one worker, whether an engine started it or a person did."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from shardmill.console import Bar
from shardmill.errors import EXIT_TRY_AGAIN
from shardmill.steps import finish
from shardmill.worker.pipeline import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Engines kill a worker that has not ended ten seconds after they told it to stop.
_END_S = 8.0
_SHOW_EVERY_S = 0.5


def work(worker: Worker, *, alone: bool = False, quiet: bool = True) -> bool:
    """Work until all shards are committed (True) or the worker is told to stop (False).

    A worker that is `alone`, or whose run is detached, also does the steps that follow, or waits until they are done.
    A branch has none: its home does them.
    """
    with _showing(worker, quiet):
        if not worker.work():
            return False
    ledger = worker.ledger
    if ledger.branch.assignment() is not None or not (alone or ledger.execution().get("detach")):
        return True
    return finish(ledger, worker.plan, worker.execution, worker.name, stop=worker.told_to_stop, quiet=quiet)


@contextmanager
def _showing(worker: Worker, quiet: bool) -> Iterator[None]:
    """Show what the worker itself knows: a thousand workers that ask for the state of the run would be a storm."""
    ended = threading.Event()

    def show() -> None:
        with Bar(worker.plan.work.task, quiet=quiet) as bar:
            while not ended.wait(_SHOW_EVERY_S):
                bar.at(*worker.progress())
            bar.at(*worker.progress())

    shower = threading.Thread(target=show, name="progress", daemon=True)
    if not quiet:
        shower.start()
    try:
        yield
    finally:
        ended.set()
        if not quiet:
            shower.join()


def heed_signals(worker: Worker) -> threading.Event:
    """Stop the worker on a signal, also while its main thread is in native code. Returns an event: set after Ctrl-C.

    Python calls a handler on the main thread alone, once that is back from native code. The wakeup descriptor is
    written at once, and another thread reads it. For a process that is a worker and nothing else: it ends if the
    worker does not.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    interrupted = threading.Event()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    args = (reader, writer, worker, interrupted)
    threading.Thread(target=_stop_on_signal, args=args, name="signals", daemon=True).start()
    threading.Thread(target=_end_in_time, args=(worker,), name="end", daemon=True).start()
    return interrupted


def _stop_on_signal(reader: socket.socket, writer: socket.socket, worker: Worker, interrupted: threading.Event) -> None:
    while (number := reader.recv(1)[0]) not in _SIGNALS:
        continue
    if number == signal.SIGINT:
        interrupted.set()
    worker.stop()


def _end_in_time(worker: Worker) -> None:
    """End the process if it is told to stop and does not: native code and hanging requests cannot be interrupted."""
    worker.told_to_stop.wait()
    time.sleep(_END_S)
    print(f"did not end within {_END_S:.0f} s of being told to: ended", file=sys.stderr, flush=True)
    os._exit(EXIT_TRY_AGAIN)
