"""The actor: it starts a worker process on its node and reports how that ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata

import ray

from shardmill.core.devices import Device, gpus
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.engines.process import MODULE, worker_environment
from shardmill.ledger import Ledger

_LINES_KEPT = 20


@dataclass(frozen=True, slots=True)
class Birth:
    """Where an actor started, why no worker can run there, if so, and its worker, if it started one by itself."""

    host: str
    node: str
    trouble: ShardmillError | None
    worker: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """How a worker ended: an exit status or minus a signal, and its last lines of output."""

    status: int
    lines: list[str]


class Post:
    """Runs the worker as its own process: a crash in a native library must not end the actor that reports it."""

    def __init__(self, run: str, generation: str, device: Device, version: str, *, detached: bool = False) -> None:
        self._detached = detached
        self._run, self._generation, self._device = run, generation, device
        self._version = version
        self._worker: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def look(self) -> Birth:
        host, trouble = socket.gethostname(), None
        try:
            self._check_version(host)
            self._check_run(host)
            self._device = _find(self._device, host)
        except ShardmillError as error:
            trouble = error
        return Birth(host, ray.get_runtime_context().get_node_id(), trouble)

    def work(self, name: str, seat: int, slot: float, handed_on: dict[str, str]) -> End:
        """Run a worker until it ends. Its output is also in the actor's log, which Ray shows."""
        environment = worker_environment(name, self._device, slot, os.getpid(), self._detached, f"worker-{seat}")
        self._worker = subprocess.Popen(
            [sys.executable, "-m", MODULE, self._run],
            env={**os.environ, **environment, **handed_on},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if self._stopped:
            self.tell(signal.SIGTERM)
        lines: deque[str] = deque(maxlen=_LINES_KEPT)
        listener = threading.Thread(target=self._listen, args=(self._worker, seat, lines), daemon=True)
        listener.start()
        status = self._worker.wait()
        listener.join(1.0)
        return End(status, list(lines))

    def _listen(self, worker: subprocess.Popen[bytes], seat: int, lines: deque[str]) -> None:
        log = Ledger(self._run).folder.log_path(f"worker-{seat}")
        assert worker.stdout is not None
        for raw in worker.stdout:
            lines.append(raw.decode("utf-8", "replace").rstrip())
            print(lines[-1], flush=True)
            if log is not None:
                with suppress(OSError), open(log, "ab") as file:
                    file.write(raw)

    def tell(self, number: int) -> None:
        """Send the worker a signal; a worker that has not started yet gets SIGTERM when it does."""
        self._stopped = True
        if self._worker is not None and self._worker.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._worker.pid, number)

    def _check_version(self, host: str) -> None:
        if installed() != self._version:
            raise UsageError(
                f"{host} has shardmill {installed()}; the run was started with {self._version}.",
                hint="Install the same version on all nodes, or name it in the runtime_env.",
            )

    def _check_run(self, host: str) -> None:
        found = Ledger(self._run).find_plan()
        if found is None or found.generation != self._generation:
            raise UsageError(
                f"{self._run} is not the run folder on {host}.",
                hint="All nodes need the same folder: use a shared path, or a URL such as s3://…",
            )


def installed() -> str:
    """The version of shardmill in this process."""
    return metadata.version("shardmill")


def _find(device: Device, host: str) -> Device:
    """The device as found on this node."""
    if device.kind != "cuda":
        return replace(device, name=device.kind)
    found = gpus()
    if not found:
        given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        raise UsageError(
            f"{host}: Ray assigned GPU {given or '?'}, but no NVIDIA GPU was found there.",
            hint="Run nvidia-smi there to see why, or use --device cpu.",
        )
    return replace(found[0], threads=device.threads, sharing=device.sharing)
