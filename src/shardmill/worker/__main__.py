"""Run one worker: `python -m shardmill.worker RUN`. Engines start this and nothing else."""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING

from shardmill.core.errors import Cure
from shardmill.worker.signals import Signals

if TYPE_CHECKING:
    from shardmill.core.devices import Device


def device_from_environment() -> Device:
    """The device that the engine chose for this process, which is pinned to the device's CPUs from now on."""
    from shardmill.core.devices import Device, cores, gpus, parse_cpus, pin

    kind = os.environ.get("SHARDMILL_DEVICE", "cpu")
    name = os.environ.get("SHARDMILL_DEVICE_NAME") or next((g.name for g in gpus() if kind == "cuda"), kind)
    threads, sharing = (int(os.environ.get(f"SHARDMILL_{n}", d)) for n, d in (("THREADS", cores()), ("SHARING", 1)))
    return Device(kind, name, threads, sharing=sharing, cpus=pin(parse_cpus(os.environ.get("SHARDMILL_CPUS", ""))))


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print("usage: python -m shardmill.worker RUN", file=sys.stderr)
        return Cure.FINAL
    signals = Signals()
    # Only now: these imports take a second, in which a signal may come.
    from shardmill.ledger import Ledger
    from shardmill.worker import Worker
    from shardmill.worker.process import run_worker

    def make() -> Worker:
        parent = os.environ.get("SHARDMILL_PARENT")
        worker = Worker(
            Ledger(argv[1]),
            device=device_from_environment(),
            name=os.environ.get("SHARDMILL_WORKER"),
            slot=float(os.environ.get("SHARDMILL_SLOT") or random.random()),
            parent=int(parent) if parent else None,
            on_stuck=lambda: os._exit(Cure.HERE),
        )
        signals.hand_over(worker)
        return worker

    return run_worker(make, lambda line: print(line, file=sys.stderr))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
