"""How tasks end: which of them are queued again silently, and how the others are reported."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from shardmill.core.errors import EXIT_TRY_AGAIN, StoreError, WorkerFailed
from shardmill.engines.slurm.options import SlurmOptions
from shardmill.ledger import Ledger

# On purpose: the seat stays empty.
CANCELLED = {"CANCELLED", "DEADLINE", "REVOKED"}
NOT_ITS_FAULT = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}

_TOLD_TO = {EXIT_TRY_AGAIN, -signal.SIGUSR1, -signal.SIGTERM}
# The status that slurmstepd reports if it cannot open the log file.
_NO_LOG = -53
_TAIL_BYTES, _TAIL_LINES = 8192, 20


def is_out_of_time(state: str, status: int) -> bool:
    """Whether a worker reached its time limit, and ended on the signal before it or was killed."""
    return state == "TIMEOUT" or status in _TOLD_TO


def explain(seat: int, state: str, status: int, failed: WorkerFailed) -> WorkerFailed:
    """The error of a worker that failed, more precise if Slurm knows the cause."""
    if is_out_of_time(state, status):
        return WorkerFailed(
            f"Worker {seat} reached its time limit without committing a shard.",
            hint="Allow more with --set time=…, or start over with smaller --shard-bytes. Committed shards are kept.",
        )
    if state == "OUT_OF_MEMORY":
        return WorkerFailed(f"Worker {seat} needed more memory than Slurm allows it.", hint="Allow more: --set mem=32G")
    return failed


def refuse_without_log(status: int, folder: Path) -> None:
    if status == _NO_LOG:
        raise WorkerFailed(
            f"A node could not write its task's log to {folder}.",
            hint="Put the run folder on a disk that all nodes see, or name such a folder: --set logs=FOLDER",
        )


def log_folder(ledger: Ledger, options: SlurmOptions) -> Path:
    """The folder for the logs of tasks: --set logs, else the run folder if it is a local path."""
    own = ledger.folder.log_path("slurm")
    folder = Path(options.logs or (own.parent if own is not None else "shardmill-logs")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}.") from error
    return folder


def last_lines(folder: Path, job: int, index: int) -> list[str]:
    try:
        with open(folder / f"slurm-{job}_{index}.log", "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
