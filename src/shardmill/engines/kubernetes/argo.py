"""Argo Workflows: templates whose every step is `shardmill` with arguments, and the workflow that uses one.

A parameter is always the whole value of an option or the last argument, never a part of a script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardmill.core.errors import EXIT_FAILED, Cure
from shardmill.engines.kubernetes.manifests import job_name
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import RUN, make_labels, make_pod

API = "argoproj.io/v1alpha1"
EMBED, EMBED_PARALLEL = "gpu-embedding-generation", "gpu-embedding-generation-parallel"
SUMMARIZE = "gpu-document-summarization"
# The entry point for a run whose plan is already in its folder.
PLANNED = "planned"
# The account of the pods: Argo's executor reports through it. Two verbs on one kind are all it may do.
ACCOUNT = "shardmill-argo"
# Evictions count, too. The status of a workflow holds a node for each retry.
RETRIES = 20
# From the recorded run of Argo 4.1.2: bytes that a node of the status takes, and what the rest of it takes at most.
NODE_BYTES, STATUS_BYTES = 870, 1 << 20
_REST_BYTES = 64 << 10
_PENDING, _DEADLINE_S = "30m", 7 * 24 * 3600
_KEPT_S, _KEPT_FAILED_S = 24 * 3600, 7 * 24 * 3600
# How late a turn may begin, and how many that ended are kept to be looked at.
CRON_LIMITS = {"startingDeadlineSeconds": 3600, "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 7}
# Told to stop, out of memory, killed, lost: all is tried again, also what left no status (-1). A final error is not,
# nor is a pod that could not start in time.
_AGAIN = (
    f"not (lastRetry.exitCode in ['{EXIT_FAILED}', '{int(Cure.FINAL)}']) and not (lastRetry.message matches '^timeout')"
)
# What a workflow has a place for, and what Argo sets itself; the rest of the pod is a patch.
_OF_WORKFLOW = ("securityContext", "nodeSelector", "tolerations", "imagePullSecrets", "volumes")
_OF_EXECUTOR = ("automountServiceAccountToken", "restartPolicy", "serviceAccountName", "priorityClassName")


@dataclass(frozen=True, slots=True)
class ArgoTask:
    """What a template runs: a verb of `shardmill`, with options that are fixed and options that are parameters.

    Options in `given` have to be given when a workflow is submitted, as the source and the run have, unless they have a
    default; those in `free` may be empty.
    """

    name: str
    verb: str
    parallel: bool = False
    given: tuple[str, ...] = ("text", "model")
    free: tuple[str, ...] = ("id", "keep")
    fixed: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def required(self) -> tuple[str, ...]:
        return ("source", *self.given, "run", "merged")


TASKS = (ArgoTask(EMBED, "embed"), ArgoTask(SUMMARIZE, "summarize"), ArgoTask(EMBED_PARALLEL, "embed", parallel=True))


def most_workers(retries: int) -> int:
    """How many workers a workflow may have if each is retried so often and the status is to stay under 1 MiB.

    >>> most_workers(0), most_workers(2)
    (564, 282)
    """
    return (STATUS_BYTES - _REST_BYTES) // NODE_BYTES // (2 + retries)


def make_template(task: ArgoTask, options: PodOptions) -> dict[str, Any]:
    """The WorkflowTemplate of a task."""
    return {
        "apiVersion": API,
        "kind": "WorkflowTemplate",
        "metadata": make_metadata(task.name, options),
        "spec": _make_spec(task, options, "{{workflow.parameters.run}}"),
    }


def make_cron(task: ArgoTask, options: PodOptions, schedule: str, timezone: str = "") -> dict[str, Any]:
    """A CronWorkflow: each night a new run, in a folder named by the day below the parameter `run`."""
    night = "-".join(f"{{{{workflow.creationTimestamp.{part}}}}}" for part in "Ymd")
    spec = _make_spec(task, options, f"{{{{workflow.parameters.run}}}}/{night}", merged=f"/{night}.parquet")
    return wrap_cron(make_metadata(f"{task.name}-nightly", options), spec, schedule, timezone)


def wrap_cron(
    metadata: Mapping[str, Any], spec: Mapping[str, Any], schedule: str, timezone: str = ""
) -> dict[str, Any]:
    """A CronWorkflow that starts a workflow by a schedule, one at a time."""
    return {
        "apiVersion": API,
        "kind": "CronWorkflow",
        "metadata": dict(metadata),
        "spec": {
            "schedules": [schedule],
            **({"timezone": timezone} if timezone else {}),
            "concurrencyPolicy": "Forbid",
            **CRON_LIMITS,
            "workflowSpec": spec,
        },
    }


def make_workflow(run: str, template: Mapping[str, Any], workers: int, namespace: str = "") -> dict[str, Any]:
    """The workflow of a run that is planned. It names its template, so it is small however many workers it has."""
    # A parameter without a default must be given, though this entry point uses only two.
    known = template["spec"].get("arguments", {}).get("parameters", ())
    given = {each["name"]: "-" for each in known if "value" not in each} | {"run": run, "workers": str(workers)}
    return {
        "apiVersion": API,
        "kind": "Workflow",
        "metadata": {
            "name": (name := job_name(run)),
            **({"namespace": namespace} if namespace else {}),
            "labels": make_labels(name, "workflow"),
            "annotations": {RUN: run},
        },
        "spec": {
            "workflowTemplateRef": {"name": template["metadata"]["name"]},
            "entrypoint": PLANNED,
            "arguments": {"parameters": [{"name": name, "value": value} for name, value in given.items()]},
        },
    }


def make_rights(namespace: str = "") -> list[dict[str, Any]]:
    """The account of the pods and what Argo's executor needs: nothing beyond its own reports."""
    metadata = {"name": ACCOUNT, **({"namespace": namespace} if namespace else {}), "labels": make_labels(ACCOUNT)}
    rights = [{"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT}
    bound = {"kind": "ServiceAccount", "name": ACCOUNT, **({"namespace": namespace} if namespace else {})}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": rights},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": role,
            "subjects": [bound],
        },
    ]


def make_metadata(name: str, options: PodOptions) -> dict[str, Any]:
    labels = {**options.labels, **make_labels(name, "workflow")}
    return {"name": name, **({"namespace": options.namespace} if options.namespace else {}), "labels": labels}


def _make_spec(task: ArgoTask, options: PodOptions, run: str, merged: str = "") -> dict[str, Any]:
    defaults = {"workers": "1", **dict.fromkeys(task.free, ""), **task.defaults}
    names = [*task.required, *(["workers"] if task.parallel else []), *task.free]
    parameters = [{"name": name, **({"value": defaults[name]} if name in defaults else {})} for name in names]
    templates = _make_steps(task, options, run, "{{workflow.parameters.merged}}" + merged)
    return wrap_steps(task.name, task.verb, parameters, templates, options)


def wrap_steps(
    name: str,
    entrypoint: str,
    parameters: Sequence[Mapping[str, str]],
    templates: Sequence[Mapping[str, Any]],
    options: PodOptions,
) -> dict[str, Any]:
    """The spec of a workflow: its parameters and its steps, with what all its pods share."""
    options = replace(options, service_account=options.service_account or ACCOUNT)
    pod = make_pod(options, (), instance=name)
    # Pods with GPUs have their own tolerations; the others stay away from such nodes.
    pod["spec"]["tolerations"] = [dict(each) for each in options.tolerations]
    moved = {each: pod["spec"][each] for each in _OF_WORKFLOW if pod["spec"].get(each)}
    known = ("containers", *_OF_WORKFLOW, *_OF_EXECUTOR)
    patch = {each: value for each, value in pod["spec"].items() if each not in known}
    return {
        "entrypoint": entrypoint,
        "onExit": "report",
        "serviceAccountName": options.service_account,
        "arguments": {"parameters": list(parameters)},
        "activeDeadlineSeconds": _DEADLINE_S,
        "podGC": {"strategy": "OnPodSuccess", "deleteDelayDuration": "10m"},
        "ttlStrategy": {"secondsAfterSuccess": _KEPT_S, "secondsAfterFailure": _KEPT_FAILED_S},
        "podMetadata": pod["metadata"],
        **moved,
        **({"podPriorityClassName": options.priority_class} if options.priority_class else {}),
        "podSpecPatch": json.dumps(patch, sort_keys=True),
        "templates": list(templates),
    }


def _make_steps(task: ArgoTask, options: PodOptions, run: str, merged: str) -> list[dict[str, Any]]:
    """The templates of a workflow. Only workers, and a pod that does all by itself, have GPUs."""
    light = options.light()
    device = "--device=cuda" if options.gpus else "--device=cpu"
    value = "{{workflow.parameters.%s}}"
    of_items = [f"--{name}={value % name}" for name in (*task.given, *task.free)] + list(task.fixed)
    source = ["--", value % "source"]
    ended = "--workflow={{workflow.namespace}}/{{workflow.name}}"
    report = make_step("report", light, ["kubernetes", "report", ended, "--status={{workflow.status}}", "--", run])
    if not task.parallel:
        then = ["--then=verify", f"--then=merge:{merged}"]
        return [make_step(task.verb, options, [task.verb, *of_items, device, f"--out={run}", *then, *source]), report]
    workers = f"--workers={value % 'workers'}"
    return [
        make_dag(task.verb, [("plan", ""), ("work", "plan"), ("merge", "work.AnySucceeded"), ("verify", "merge")]),
        make_dag(PLANNED, [("work", ""), ("finish", "work.AnySucceeded")]),
        make_step("plan", light, ["plan", *of_items, "--engine=pool", workers, device, f"--out={run}", *source]),
        make_step("work", options, _work(options, device, run)),
        make_step("merge", light, ["merge", f"--out={merged}", "--", run]),
        make_step("verify", light, ["verify", "--", run]),
        # The run is done by then: this worker finds that, or does what a lost one left of the steps at the end.
        make_step("finish", light, ["work", "--device=cpu", "--", run]),
        report,
    ]


def _work(options: PodOptions, device: str, run: str) -> list[str]:
    several = [f"--workers={options.gpus}"] if options.gpus > 1 else []
    return ["work", device, *several, "--", run]


def make_dag(name: str, tasks: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Tasks and what each depends on. One exhausted worker is no failed run: others may have finished it."""
    made = []
    for task, depends in tasks:
        several = {"withSequence": {"count": "{{workflow.parameters.workers}}"}} if task == "work" else {}
        made.append({"name": task, "template": task, **({"depends": depends} if depends else {}), **several})
    return {"name": name, "dag": {"failFast": False, "tasks": made}}


def make_step(name: str, options: PodOptions, arguments: Sequence[str]) -> dict[str, Any]:
    pod = make_pod(options, arguments, instance=name)["spec"]
    (container,) = pod["containers"]
    # Argo names it itself.
    del container["name"]
    return {
        "name": name,
        **({"tolerations": pod["tolerations"]} if options.gpus else {}),
        "pendingTimeout": _PENDING,
        "retryStrategy": {
            "limit": str(RETRIES),
            "retryPolicy": "Always",
            "expression": _AGAIN,
            "backoff": {"duration": "10s", "factor": 2, "cap": "5m"},
        },
        "container": container,
    }
