"""The Indexed Job whose pods are the workers of one run, alone or in a JobSet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from shardmill.core.errors import EXIT_DONE, EXIT_TRY_AGAIN, Cure, UsageError
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import CONTAINER, GENERATION, RUN, make_labels, make_pod

# Failures of an index are counted over the whole run and never forgotten; workers themselves notice a crash loop.
_FAILURES_PER_INDEX = 1000
# A finished Job stays this long, so that a command that comes back finds how it ended.
_KEPT_S = 24 * 3600
# A Job's name, an index and five more characters make the name of a pod, which is at most 63 long.
_NAME_CHARS = 36
# A JobSet puts it, and a number, into these names: it is as short as can be.
_ONLY = "w"


def job_name(run: str) -> str:
    """The name of a run's Job, derived from its folder, so that a restarted command finds it.

    >>> job_name("s3://bucket/runs/My wiki")
    'my-wiki-dbe48770'
    """
    last = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower()).strip("-")[:_NAME_CHARS].strip("-")
    return f"{last or 'run'}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"


def check_reachable(run: str) -> None:
    """Refuse a run folder that pods cannot see."""
    if "://" not in run:
        raise UsageError(
            f"{run} is a folder of this machine, which pods do not see.", hint="Give a URL: --out s3://BUCKET/RUN"
        )


def make_job(
    run: str,
    options: PodOptions,
    workers: int,
    *,
    generation: str = "",
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The Job of a run. Exit status 0 of one worker means that the whole run is done, so the others may be ended."""
    name = job_name(run)
    labels = {**options.labels, **make_labels(name)}
    pod = make_pod(options, work_arguments(run, options), instance=name, env=env)
    pod["metadata"]["annotations"][RUN] = run
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            **({"namespace": options.namespace} if options.namespace else {}),
            "labels": labels,
            "annotations": {RUN: run, **({GENERATION: generation} if generation else {})},
        },
        "spec": {
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "podReplacementPolicy": "Failed",
            "backoffLimitPerIndex": _FAILURES_PER_INDEX,
            "maxFailedIndexes": workers - 1,
            "successPolicy": {"rules": [{"succeededCount": 1}]},
            "podFailurePolicy": {"rules": failure_rules()},
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": pod,
        },
    }


def make_job_set(run: str, options: PodOptions, workers: int) -> dict[str, Any]:
    """The same workers as the only Job of a JobSet, for queues that admit nothing else.

    It is over when its Job is, which starts its pods itself and needs no names of them.
    """
    job = make_job(run, options, workers)
    spec = job["spec"]
    kept_s = spec.pop("ttlSecondsAfterFinished")
    metadata = {name: job["metadata"][name] for name in ("labels", "annotations")}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": job["metadata"],
        "spec": {
            "replicatedJobs": [{"name": _ONLY, "replicas": 1, "template": {"metadata": metadata, "spec": spec}}],
            "network": {"enableDNSHostnames": False},
            "ttlSecondsAfterFinished": kept_s,
        },
    }


def work_arguments(run: str, options: PodOptions) -> list[str]:
    """The arguments of a worker. A pod with several GPUs runs one worker on each."""
    device = "cuda" if options.gpus else "cpu"
    return ["work", run, "--device", device, *(["--workers", str(options.gpus)] if options.gpus > 1 else [])]


def failure_rules() -> list[dict[str, Any]]:
    """What an end of a pod means for the Job; the first rule that applies decides.

    A pod that is deleted has no DisruptionTarget, but its worker ends with 75. The last rule names what the Job would
    do anyway: it is counted.
    """

    def by_status(action: str, operator: str, status: int) -> dict[str, Any]:
        exits = {"containerName": CONTAINER, "operator": operator, "values": [status]}
        return {"action": action, "onExitCodes": exits}

    return [
        by_status("FailJob", "In", int(Cure.FINAL)),
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        by_status("Ignore", "In", EXIT_TRY_AGAIN),
        by_status("Count", "NotIn", EXIT_DONE),
    ]
