"""Run one worker: `python -m shardmill.worker RUN`. Engines start this and nothing else."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time

from shardmill.devices import Device, cores, gpus, parse_cpus, pin
from shardmill.errors import EXIT_DONE, EXIT_TRY_AGAIN, WORKER_FAILED, Cure, ShardmillError
from shardmill.ledger import Ledger
from shardmill.worker import Worker

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# Engines kill a worker that has not ended ten seconds after they told it to stop.
_END_S = 8.0


def device_from_environment() -> Device:
    """The device that the engine chose for this process, which is pinned to the device's CPUs from now on."""
    kind = os.environ.get("SHARDMILL_DEVICE", "cpu")
    name = os.environ.get("SHARDMILL_DEVICE_NAME") or next((g.name for g in gpus() if kind == "cuda"), kind)
    threads, sharing = (int(os.environ.get(f"SHARDMILL_{n}", d)) for n, d in (("THREADS", cores()), ("SHARING", 1)))
    return Device(kind, name, threads, sharing=sharing, cpus=pin(parse_cpus(os.environ.get("SHARDMILL_CPUS", ""))))


def _heed_signals(worker: Worker) -> None:
    """Stop the worker on a signal, also while its main thread is in native code.

    Python calls a handler on the main thread alone, once that is back from native code. The wakeup descriptor is
    written at once, and another thread reads it.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_stop_on_signal, args=(reader, writer, worker), name="signals", daemon=True).start()


def _stop_on_signal(reader: socket.socket, writer: socket.socket, worker: Worker) -> None:
    while reader.recv(1)[0] not in _SIGNALS:
        continue
    worker.stop()


def _end_in_time(worker: Worker) -> None:
    """End the process if it is told to stop and does not: native code and hanging requests cannot be interrupted."""
    worker.told_to_stop.wait()
    time.sleep(_END_S)
    print(f"did not end within {_END_S:.0f} s of being told to: ended", file=sys.stderr, flush=True)
    os._exit(EXIT_TRY_AGAIN)


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: python -m shardmill.worker RUN", file=sys.stderr)
        return Cure.FINAL
    try:
        parent = os.environ.get("SHARDMILL_PARENT")
        worker = Worker(
            Ledger(argv[1]),
            device=device_from_environment(),
            name=os.environ.get("SHARDMILL_WORKER"),
            slot=float(os.environ.get("SHARDMILL_SLOT") or random.random()),
            parent=int(parent) if parent else None,
        )
        _heed_signals(worker)
        threading.Thread(target=_end_in_time, args=(worker,), name="end", daemon=True).start()
        return EXIT_DONE if worker.work() else EXIT_TRY_AGAIN
    except ShardmillError as error:
        said = {"message": error.message, "hint": error.hint, "cure": error.cure.name}
        print(WORKER_FAILED + json.dumps(said), file=sys.stderr)
        return error.cure


if __name__ == "__main__":
    sys.exit(main(sys.argv))
