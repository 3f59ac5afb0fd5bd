"""Refreshes of a finished run by a schedule: a CronJob, or a CronWorkflow of Argo. Its workers are in the same pod."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.engines.kubernetes.argo import CRON_LIMITS, make_metadata, make_step, wrap_cron, wrap_steps
from shardmill.engines.kubernetes.manifests import failure_rules, job_name
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import RUN, make_labels, make_pod

# The name of a CronJob has at most 52 characters: its Jobs have eleven more.
_NAME_CHARS = 52
_REFRESH = "refresh"
# Pods that died one after the other. The next turn goes on with the edition that was begun.
_FAILURES = 3
_SHORTEST_S = 60


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a run is refreshed: a line of cron, and how long one refresh may take."""

    cron: str
    timezone: str = ""
    deadline_s: int = 24 * 3600

    def __post_init__(self) -> None:
        if len(self.cron.split()) != 5 and not self.cron.startswith("@"):
            raise SpecError(
                f"schedule={self.cron} is not a schedule of cron.", hint='For example --set "schedule=*/15 * * * *"'
            )
        if self.deadline_s < _SHORTEST_S:
            raise SpecError(
                f"A deadline of {self.deadline_s} s is too short for a refresh.", hint="For example --set deadline=6h"
            )


def refresh_name(run: str) -> str:
    """The name of what refreshes a run, derived from its folder.

    >>> refresh_name("s3://bucket/runs/My wiki")
    'my-wiki-refresh-dbe48770'
    """
    name, _, digest = job_name(run).rpartition("-")
    most = _NAME_CHARS - len(f"-{_REFRESH}-{digest}")
    return f"{name[:most].rstrip('-')}-{_REFRESH}-{digest}"


def make_cron_job(run: str, options: PodOptions, schedule: Schedule, flags: Sequence[str] = ()) -> dict[str, Any]:
    """The CronJob that refreshes a run; `flags` are those of `refresh`.

    A turn that comes before the last one has ended is left out.
    """
    name = refresh_name(run)
    labels = {**options.labels, **make_labels(name, _REFRESH)}
    pod = make_pod(options, _arguments(run, options, flags), instance=name, component=_REFRESH)
    pod["metadata"]["annotations"][RUN] = run
    job = {
        "backoffLimit": _FAILURES,
        "activeDeadlineSeconds": schedule.deadline_s,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": failure_rules()},
        "template": pod,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            "name": name,
            **({"namespace": options.namespace} if options.namespace else {}),
            "labels": labels,
            "annotations": {RUN: run},
        },
        "spec": {
            "schedule": schedule.cron,
            **({"timeZone": schedule.timezone} if schedule.timezone else {}),
            "concurrencyPolicy": "Forbid",
            **CRON_LIMITS,
            "jobTemplate": {"metadata": {"labels": labels, "annotations": {RUN: run}}, "spec": job},
        },
    }


def make_cron_workflow(run: str, options: PodOptions, schedule: Schedule, flags: Sequence[str] = ()) -> dict[str, Any]:
    """The CronWorkflow that refreshes a run; `flags` are those of `refresh`."""
    name, parameter = refresh_name(run), "{{workflow.parameters.run}}"
    ended = "--workflow={{workflow.namespace}}/{{workflow.name}}"
    report = ["kubernetes", "report", ended, "--status={{workflow.status}}", "--", parameter]
    steps = [
        make_step(_REFRESH, options, _arguments(parameter, options, flags)),
        make_step("report", options.light(), report),
    ]
    spec = wrap_steps(name, _REFRESH, [{"name": "run", "value": run}], steps, options)
    spec["activeDeadlineSeconds"] = schedule.deadline_s
    return wrap_cron(make_metadata(name, options), spec, schedule.cron, schedule.timezone)


def _arguments(run: str, options: PodOptions, flags: Sequence[str]) -> list[str]:
    return [_REFRESH, "--engine=local", f"--device={'cuda' if options.gpus else 'cpu'}", *flags, "--", run]
