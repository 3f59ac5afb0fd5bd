"""Describes a queue in one line, and explains reasons for waiting that do not resolve by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardmill.engines.slurm.commands import ENDING, PENDING, ArrayTask

# Keyed by how Slurm's reasons start.
_LASTING = {
    "PartitionTimeLimit": "the time limit exceeds the partition's",
    "PartitionNodeLimit": "the partition has too few nodes",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is not active",
    "ReqNodeNotAvail": "the requested nodes are down or reserved",
    "BadConstraints": "no node matches the request",
    "AccountNotAllowed": "the account may not use this partition",
    "InvalidAccount": "unknown account",
    "InvalidQOS": "unknown QOS",
    "QOSNotAllowed": "the QOS may not be used here",
    "Assoc": "a limit of the account is reached",
    "QOS": "a limit of the QOS is reached",
    "MaxMemPerLimit": "the requested memory exceeds the limit",
    "JobHeld": "the job is held; release it with scontrol release",
    "launch_failed_requeued_held": "the job could not be started and is held",
    "DependencyNeverSatisfied": "its dependency can never be met",
}


def describe(tasks: Sequence[ArrayTask]) -> str:
    """The queue in one line: slurm job 123: 3 running, 5 pending (Resources)."""
    if not tasks:
        return ""
    jobs = sorted({task.job for task in tasks})
    shown = ", ".join(map(str, jobs)) if len(jobs) <= 3 else f"{jobs[0]} … {jobs[-1]}"
    waiting = Counter(task.reason.replace(" ", "_") for task in tasks if task.state in PENDING)
    ending = sum(task.state in ENDING for task in tasks)
    counts = {"running": len(tasks) - waiting.total() - ending, "ending": ending}
    said = [f"{count} {state}" for state, count in counts.items() if count]
    said += [f"{count} pending ({explain(reason)})" for reason, count in waiting.most_common(3)]
    return f"slurm job{'s' * (len(jobs) > 1)} {shown}: {', '.join(said)}"


def explain(reason: str) -> str:
    """A reason for waiting, with an explanation if it does not resolve by itself.

    >>> explain("Resources"), explain("PartitionTimeLimit")
    ('Resources', "PartitionTimeLimit: the time limit exceeds the partition's")
    """
    meaning = next((text for start, text in _LASTING.items() if reason.startswith(start)), "")
    return f"{reason}: {meaning}" if meaning else reason
