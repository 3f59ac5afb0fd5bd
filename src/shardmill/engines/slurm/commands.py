"""Slurm's own commands: asked, and their answers read."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from shardmill.errors import EngineRefused, EngineSilent, ShardmillError, UsageError, nearest

PENDING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}
ENDING = {"COMPLETING"}

_ANSWER_S = 90.0
_FIELDS = ("ArrayJobID", "ArrayTaskID", "State", "exit_code", "RestartCnt", "Name", "Reason")
_SILENCE = ("Unable to contact", "timed out", "onnection", "onfiguration file", "configuration source")
# Indices of an array are below MaxArraySize; this is the default of Slurm.
_ARRAY_SIZE = 1001


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One task of an array, as squeue has it. `status` is an exit status, or minus a signal."""

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
            "There is no sbatch here: --engine slurm queues its workers with Slurm's own commands.",
            hint="Run the command on a login node of the cluster, or put Slurm's programs on PATH.",
        )


def tasks(names: Sequence[str]) -> list[ArrayTask]:
    """Our tasks by the names of their jobs, those too that ended within the last minutes (Slurm's MinJobAge)."""
    form = ",".join(f"{field}:|" for field in _FIELDS)
    lines = _ask("squeue", "--me", "-h", "-r", "--states=all", f"--name={','.join(names)}", "-O", form).splitlines()
    found = []
    for line in lines:
        job, index, state, status, restarts, name, reason = line.split("|")[: len(_FIELDS)]
        # Tasks that were cancelled before they began are one line together, without an index.
        if index.isdecimal():
            found.append(ArrayTask(int(job), int(index), state, _exit_status(int(status)), int(restarts), name, reason))
    return found


def submit(flags: Sequence[str], script: str) -> int:
    """Queue an array; its job id."""
    answer = _ask("sbatch", "--parsable", *flags, feed=script)
    return int(answer.strip().partition(";")[0])


def cancel(*words: str) -> None:
    """What is gone already needs no cancelling."""
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
    # A home that is in a job itself has that job's settings about it, which are none of ours.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") or k == "SLURM_CONF"}
    try:
        done = subprocess.run(
            command, input=feed, env=environment, capture_output=True, text=True, errors="replace", timeout=_ANSWER_S
        )
    except subprocess.TimeoutExpired:
        raise EngineSilent(
            f"{command[0]} did not answer in {_ANSWER_S:.0f} s.",
            hint="The same command goes on, with what is queued by then.",
        ) from None
    except OSError as error:
        raise EngineSilent(f"{command[0]} does not run: {error.strerror}.") from error
    if done.returncode == 0:
        return done.stdout
    raise _explain(command, done.stderr)


def _explain(command: Sequence[str], stderr: str) -> ShardmillError:
    """Slurm's own words, and what to do about them."""
    said = [re.sub(r"^\w+: (error: |fatal: )?", "", line).strip() for line in stderr.splitlines() if line.strip()]
    words = "; ".join(dict.fromkeys(said)) or "it says nothing"
    if command[0] == "squeue" or any(sign in words for sign in _SILENCE):
        return EngineSilent(f"{command[0]}: {words}.", hint="See whether Slurm is up: scontrol ping")
    return EngineRefused(f"Slurm says no ({command[0]}): {words}.", hint=_hint(command, words.lower()))


def _hint(command: Sequence[str], words: str) -> str:
    if "policy" in words:
        return "A limit of the account or QOS is in the way: ask for fewer --workers, or less --set time=…"
    if "account" in words:
        return "Give one of yours with --set account=NAME: sacctmgr show associations user=$USER lists them."
    if "partition" in words and "time limit" not in words:
        given = next((c.partition("=")[2] for c in command if c.startswith("--partition=")), "")
        with contextlib.suppress(ShardmillError):
            return nearest(given, sorted(set(_ask("sinfo", "-h", "-o", "%R").split())))
    if "time limit" in words:
        return "Give a shorter one with --set time=…: sinfo -o '%P %l' shows how long each partition allows."
    if "gres" in words or "node configuration" in words:
        return "See what nodes have: sinfo -o '%P %G %c %m'. Ask for less: --set gres=…, cpus=… or mem=…."
    if "qos" in words:
        return "Give another with --set qos=NAME, or fewer --workers."
    return "Options of sbatch are given with --set, such as --set account=NAME or --set directives='--constraint=a100'."
