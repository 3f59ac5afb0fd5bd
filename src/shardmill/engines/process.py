"""The worker process that every engine starts: one command, configured by its environment."""

from __future__ import annotations

import os
import socket
import uuid

from shardmill.core import passwords, permission, spot
from shardmill.core.devices import Device, format_cpus

MODULE = "shardmill.worker"
# The variable with the file that a cluster reads the cause of a worker's end from.
TERMINATION_LOG = "SHARDMILL_TERMINATION_LOG"


def name_worker(seat: int, host: str = "") -> str:
    """A name that no worker had before, on any host of this name."""
    # In a pod that runs several workers, they have the pod's name in theirs.
    host = host or os.environ.get("SHARDMILL_WORKER") or socket.gethostname()
    return f"{host}-{seat}-{uuid.uuid4().hex[:12]}"


def handed_on() -> dict[str, str]:
    """Variables for workers elsewhere: passwords, the permission to import code, and whose notices are heeded."""
    return {**passwords.environment(), **permission.environment(), **spot.environment()}


def worker_environment(
    worker: str, device: Device, slot: float, parent: int | None = None, detached: bool = False, log: str = ""
) -> dict[str, str]:
    """Variables for a worker, added to its machine's own. `slot`, 0 to 1, is where it starts to look for shards.

    If `parent` is given, the worker ends when that process does. A `detached` one says so in its heartbeat, and judges
    its run by itself. `log` is the name of its log in the run folder.
    """
    return {
        **handed_on(),
        "SHARDMILL_WORKER": worker,
        "SHARDMILL_DEVICE": device.kind,
        "SHARDMILL_DEVICE_NAME": device.name,
        "SHARDMILL_THREADS": str(device.threads),
        "SHARDMILL_SHARING": str(device.sharing),
        "SHARDMILL_CPUS": format_cpus(device.cpus),
        "SHARDMILL_SLOT": str(slot),
        **({"SHARDMILL_PARENT": str(parent)} if parent is not None else {}),
        **({"SHARDMILL_DETACHED": "1"} if detached else {}),
        **({"SHARDMILL_LOG": log} if log else {}),
        "OMP_NUM_THREADS": str(device.threads),
        "OPENBLAS_NUM_THREADS": str(device.threads),
        "MKL_NUM_THREADS": str(device.threads),
        "RAYON_NUM_THREADS": str(device.threads),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": device.visible,
        "PYTHONUNBUFFERED": "1",
    }
