"""How tasks end: which of them are queued again without a word, and what is said of those that are not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from shardmill.engines.slurm.options import SlurmOptions
from shardmill.errors import EXIT_TRY_AGAIN, StoreError, WorkerFailed
from shardmill.ledger import Ledger

# Someone wanted it so, or it is done: the seat stays empty.
OVER = {"CANCELLED", "DEADLINE", "REVOKED", "COMPLETED"}
NOT_ITS_FAULT = {"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}

_TOLD_TO = {EXIT_TRY_AGAIN, -signal.SIGUSR1, -signal.SIGTERM}
# What slurmstepd makes of a log file that it cannot open.
_NO_LOG = -53
_TAIL_BYTES, _TAIL_LINES = 8192, 20


def is_out_of_time(state: str, status: int) -> bool:
    """Whether a worker was told that its time is over, or did not hear it."""
    return state == "TIMEOUT" or status in _TOLD_TO


def explain(seat: int, state: str, status: int, failed: WorkerFailed) -> WorkerFailed:
    """What is said of a worker that failed, where Slurm knows more of it than that."""
    if is_out_of_time(state, status):
        return WorkerFailed(
            f"Worker {seat} came to its time limit with nothing done.",
            hint="Give it more with --set time=…, or begin anew with smaller --shard-bytes. What is done is kept.",
        )
    if state == "OUT_OF_MEMORY":
        return WorkerFailed(f"Worker {seat} needed more memory than Slurm gives it.", hint="Give more: --set mem=32G")
    return failed


def refuse_without_log(status: int, folder: Path) -> None:
    if status == _NO_LOG:
        raise WorkerFailed(
            f"A node could not write the log of its task into {folder}.",
            hint="The run's folder has to be on a disk that nodes see; or give such a folder: --set logs=FOLDER",
        )


def log_folder(ledger: Ledger, options: SlurmOptions) -> Path:
    """Where tasks write what their workers say: in the run's folder if it is one, as nodes see that."""
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
