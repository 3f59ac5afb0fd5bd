"""The batch script that each task of the array runs on its node."""

from __future__ import annotations

import shlex

from shardmill.core.devices import Device
from shardmill.engines.process import MODULE, worker_environment
from shardmill.engines.slurm.options import SlurmOptions

# Slurm sets the GPU and CPUs of a task; the worker looks up the GPU's name itself.
_LEFT_TO_THE_NODE = {"CUDA_VISIBLE_DEVICES", "SHARDMILL_CPUS", "SHARDMILL_DEVICE_NAME"}
_SLOTS = 1_000_000


def make_script(run: str, options: SlurmOptions, kind: str, offset: int, seats: int) -> str:
    """The script for the seats from `offset` on, out of `seats`.

    The worker replaces the shell (exec), so that it receives Slurm's signals and its exit status is the task's.
    """
    environment = worker_environment("$worker", Device(kind, kind), 0.0)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {directive}" for directive in options.directives),
        f'worker="${{SLURMD_NODENAME:-node}}-{worker_ending("${SLURM_ARRAY_JOB_ID}", "${SLURM_ARRAY_TASK_ID}")}"',
        f"slot=$(printf 0.%06d $((({offset} + SLURM_ARRAY_TASK_ID) * {_SLOTS} / {seats})))",
        'threads="${SLURM_CPUS_ON_NODE:-1}"',
    ]
    for name, value in environment.items():
        if name in _LEFT_TO_THE_NODE:
            continue
        value = "$threads" if name.endswith("_THREADS") else "$slot" if name == "SHARDMILL_SLOT" else value
        lines.append(f'export {name}="{value}"')
    lines += options.setup
    lines.append(f"exec {options.wrap} {shlex.quote(options.python)} -m {MODULE} {shlex.quote(run)}")
    return "\n".join(lines) + "\n"


def worker_ending(job: int | str, index: int | str, restarts: int | str = "${SLURM_RESTART_COUNT:-0}") -> str:
    """The end of a worker's name, which identifies its task; a requeued task is a new worker."""
    return f"{job}_{index}-{restarts}"
