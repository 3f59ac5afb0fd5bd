"""How a queue is told in a line, and which reasons for waiting do not pass by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shardmill.engines.slurm.commands import ENDING, PENDING, ArrayTask

# By how Slurm's reasons begin.
_LASTING = {
    "PartitionTimeLimit": "the time limit is over the partition's",
    "PartitionNodeLimit": "the partition has too few nodes",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is not active",
    "ReqNodeNotAvail": "nodes it asks for are down or reserved",
    "BadConstraints": "no node is as it asks for",
    "AccountNotAllowed": "the account may not use this partition",
    "InvalidAccount": "the account is not known",
    "InvalidQOS": "the QOS is not known",
    "QOSNotAllowed": "the QOS may not be used here",
    "Assoc": "a limit of the account is reached",
    "QOS": "a limit of the QOS is reached",
    "MaxMemPerLimit": "it asks for more memory than is allowed",
    "JobHeld": "it is held: scontrol release lets it go",
    "launch_failed_requeued_held": "it could not be started and is held",
    "DependencyNeverSatisfied": "what it depends on will not happen",
}


def describe(tasks: Sequence[ArrayTask]) -> str:
    """The queue in a line: slurm job 123: 3 running, 5 pending (Resources)."""
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
    """A reason for waiting, and what it means where it does not pass by itself.

    >>> explain("Resources"), explain("PartitionTimeLimit")
    ('Resources', "PartitionTimeLimit: the time limit is over the partition's")
    """
    meaning = next((text for start, text in _LASTING.items() if reason.startswith(start)), "")
    return f"{reason}: {meaning}" if meaning else reason
