"""Calls Slurm's own commands and parses their output."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from shardmill.core.errors import EngineRefused, EngineSilent, ShardmillError, UsageError, nearest

PENDING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
ENDING = {"COMPLETING"}

_ANSWER_S = 90.0
_FIELDS = ("ArrayJobID", "ArrayTaskID", "State", "exit_code", "RestartCnt", "Name", "Reason")
_SILENCE = ("Unable to contact", "timed out", "onnection", "onfiguration file", "configuration source")
# Array indices are below MaxArraySize; this is Slurm's default.
_ARRAY_SIZE = 1001


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One task of an array, as squeue shows it. `status` is an exit status, or minus a signal."""

    job: int
    index: int
    state: str
    status: int
    restarts: int
    name: str
    reason: str

    @property
    def active(self) -> bool:
        return self.state in PENDING | RUNNING | ENDING


def check_installed() -> None:
    if shutil.which("sbatch") is None:
        raise UsageError(
            "sbatch was not found: --engine slurm needs Slurm's own commands.",
            hint="Run the command on a login node of the cluster, or put Slurm's programs on PATH.",
        )


def tasks(names: Sequence[str]) -> list[ArrayTask]:
    """Our tasks by job name, including those that ended within the last minutes (Slurm's MinJobAge)."""
    form = ",".join(f"{field}:|" for field in _FIELDS)
    lines = _ask("squeue", "--me", "-h", "-r", "--states=all", f"--name={','.join(names)}", "-O", form).splitlines()
    found = []
    for line in lines:
        job, index, state, status, restarts, name, reason = line.split("|")[: len(_FIELDS)]
        # squeue shows tasks that were cancelled before they started as one line without an index.
        if index.isdecimal():
            found.append(ArrayTask(int(job), int(index), state, _exit_status(int(status)), int(restarts), name, reason))
    return found


def submit(flags: Sequence[str], script: str) -> int:
    """Queue an array; returns its job id."""
    answer = _ask("sbatch", "--parsable", *flags, feed=script)
    return int(answer.strip().partition(";")[0])


def cancel(*words: str) -> None:
    """Cancel jobs or tasks; those that have already ended are ignored."""
    with contextlib.suppress(EngineRefused):
        _ask("scancel", "--quiet", *words)


def array_size() -> int:
    """How many tasks one array can have."""
    with contextlib.suppress(ShardmillError):
        if match := re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.MULTILINE):
            return max(1, int(match[1]))
    return _ARRAY_SIZE


def _exit_status(waited: int) -> int:
    return -(waited & 0x7F) if waited & 0x7F else waited >> 8


def _ask(*command: str, feed: str = "") -> str:
    # If this process itself runs in a Slurm job, that job's SLURM_ variables must not affect ours.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
    try:
        done = subprocess.run(
            command, input=feed, env=environment, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S
        )
    except subprocess.TimeoutExpired:
        raise EngineSilent(
            f"{command[0]} did not answer in {_ANSWER_S:.0f} s.",
            hint="Run the same command again: it resumes, with the jobs already queued.",
        ) from None
    except OSError as error:
        raise EngineSilent(f"{command[0]} cannot be run: {error.strerror}.") from error
    if done.returncode == 0:
        return done.stdout
    raise _explain(command, done.stderr)


def _explain(command: Sequence[str], stderr: str) -> ShardmillError:
    """An error with Slurm's own message and a hint."""
    said = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in stderr.splitlines() if line.strip()]
    words = "; ".join(dict.fromkeys(said)) or "no message"
    if command[0] == "squeue" or any(sign in words for sign in _SILENCE):
        return EngineSilent(f"{command[0]}: {words}.", hint="Check that Slurm is up: scontrol ping")
    return EngineRefused(f"Slurm refused ({command[0]}): {words}.", hint=_hint(command, words.lower()))


def _hint(command: Sequence[str], words: str) -> str:
    if "policy" in words:
        return "A limit of the account or QOS is reached: use fewer --workers, or a shorter --set time=…"
    if "account" in words:
        return "Set one of yours with --set account=NAME: sacctmgr show associations user=$USER lists them."
    if "partition" in words and "time limit" not in words:
        given = next((c.partition("=")[2] for c in command if c.startswith("--partition=")), "")
        with contextlib.suppress(ShardmillError):
            return nearest(given, sorted(set(_ask("sinfo", "-h", "-o", "%R").split())))
    if "time limit" in words:
        return "Set a shorter one with --set time=…: sinfo -o '%P %l' shows the limit of each partition."
    if "gres" in words or "node configuration" in words:
        return "sinfo -o '%P %G %c %m' shows what nodes have. Ask for less: --set gres=…, cpus=… or mem=…."
    if "qos" in words:
        return "Set another with --set qos=NAME, or use fewer --workers."
    return "Pass options of sbatch with --set, such as --set account=NAME or --set directives='--constraint=a100'."
