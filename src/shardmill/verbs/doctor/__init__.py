"""Looks at this machine as a run would find it: what is fine, what is missing, and the command that helps."""

from __future__ import annotations

from shardmill.plugins.base import MACHINES, Verb

VERB = Verb(
    name="doctor",
    summary="Look at this machine: what is fine, what is missing, and the command that helps.",
    about="It looks at Python, torch, GPU and driver, memory, disk, cores, NUMA, the cache, optional packages, "
    "clusters and plug-ins; and at each PLACE: whether a folder or a bucket can be written and compares before it "
    "swaps, whether a database answers. It changes nothing but one probe that it deletes. The exit status is 1 if "
    "something has to be repaired.",
    family=MACHINES,
    examples=(
        "shardmill doctor",
        "shardmill doctor s3://bucket/runs postgresql://user@host/db",
        "shardmill doctor --json",
    ),
    options="shardmill.verbs.doctor.options:DoctorOptions",
    start="shardmill.verbs.doctor.start:start",
)
