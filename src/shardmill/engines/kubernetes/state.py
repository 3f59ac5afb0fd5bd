"""What a pod and a Job say about themselves: whether they run, how they ended, why they cannot start."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardmill.engines.kubernetes.api import Json
from shardmill.engines.kubernetes.pod import ARGO_CONTAINER, CONTAINER, INDEX

OOM = "OOMKilled"
_SIGNALS_FROM = 128
_IMAGE = "Check the name of the image, and whether the nodes may pull it: --image, --set pull_secret=NAME"
# Reasons for which a container does not start that no waiting cures, and what to do about them.
_LASTING = {
    "ErrImagePull": _IMAGE,
    "ImagePullBackOff": _IMAGE,
    "InvalidImageName": "Check the name of the image: --image REFERENCE",
    "ErrImageNeverPull": "The nodes do not have the image: --image, or --set pull_policy=IfNotPresent",
    "CreateContainerConfigError": "Check the name of the secret: kubectl get secrets; --set secret=NAME",
    "CreateContainerError": "See: kubectl describe pods",
    "RunContainerError": "See: kubectl describe pods; the image needs the command `shardmill`.",
    "StartError": "The image has no command `shardmill`: build it with the Containerfile of shardmill.",
    "ContainerCannotRun": "The image has no command `shardmill`: build it with the Containerfile of shardmill.",
}
_WAITS = {
    "FailedMount": "Check the names of volumes and secrets: kubectl get pvc,secrets",
    "FailedAttachVolume": "Check the volume: kubectl describe pvc",
    "FailedCreate": "Ask for less, or for a larger quota: kubectl describe quota",
    "FailedScheduling": "Ask for less with --set gpus=…, cpu=… or memory=…, or wait for a node: --set wait_s=1800",
}
# An autoscaler is making a node; or it knows of none that would do, and not because there are too many for now.
_COMES = {"TriggeredScaleUp", "Nominated"}
_NO_NODE, _FOR_NOW = "NotTriggerScaleUp", ("max ", "backoff")


@dataclass(frozen=True, slots=True)
class PodEnd:
    """How a pod ended. `status` is its exit status, or minus a signal; `disrupted` means that it was not its fault."""

    status: int
    reason: str
    lines: tuple[str, ...]
    disrupted: bool


@dataclass(frozen=True, slots=True)
class StartTrouble:
    """Why a pod does not start, in the cluster's words, and what to do. Waiting helps unless it is `lasting`.

    A `volume` is made within a moment, or never. A pod that `awaits_node` is one that an autoscaler makes a node for;
    of one with `no_node` it says that no node it could make would do.
    """

    reason: str
    said: str
    hint: str
    lasting: bool = False
    volume: bool = False
    awaits_node: bool = False
    no_node: bool = False

    def __str__(self) -> str:
        return f"{self.reason}: {self.said}" if self.said else self.reason


def index_of(pod: Json) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, 0))


def is_running(pod: Json) -> bool:
    state = _container(pod).get("state") or {}
    return "running" in state


def has_begun(pod: Json) -> bool:
    """Whether its worker runs or ran."""
    state = _container(pod).get("state") or {}
    terminated = state.get("terminated")
    return "running" in state or bool(
        terminated and terminated.get("reason") not in ("StartError", "ContainerCannotRun")
    )


def end_of_pod(pod: Json, gone: bool = False) -> PodEnd | None:
    """How a pod ended; None while it has not. `gone` is one that was deleted, whose last state may be missing."""
    status = pod.get("status") or {}
    over = status.get("phase") in ("Succeeded", "Failed") or gone
    if not over:
        return None
    terminated = (_container(pod).get("state") or {}).get("terminated") or {}
    reason = str(terminated.get("reason") or status.get("reason") or "")
    code = int(terminated.get("exitCode", _SIGNALS_FROM + signal.SIGKILL))
    code = _SIGNALS_FROM - code if code > _SIGNALS_FROM else code
    disrupted = _has_condition(pod, "DisruptionTarget") or bool(pod["metadata"].get("deletionTimestamp"))
    lines = tuple(str(terminated.get("message") or status.get("message") or "").splitlines())
    return PodEnd(code, reason, lines, disrupted and reason != OOM)


def start_trouble(pod: Json, events: Sequence[Json] = ()) -> StartTrouble | None:
    """Why a pod does not start; None if it has started, or is only on its way."""
    state = _container(pod).get("state") or {}
    halted = state.get("waiting") or state.get("terminated") or {}
    reason = str(halted.get("reason") or "")
    if reason in _LASTING:
        return StartTrouble(reason, _short(halted.get("message") or ""), _LASTING[reason], True)
    if "running" in state or "terminated" in state:
        return None
    unplaced = _condition(pod, "PodScheduled")
    if unplaced.get("status") == "False":
        comes = any(event.get("reason") in _COMES for event in events)
        said = "a node is being made" if comes else _short(unplaced.get("message") or "")
        # A name before it: a scheduler that cannot preempt ends with "not found", too.
        missing, unbound = '" not found' in said, "unbound immediate" in said
        hint = _WAITS["FailedMount" if missing or unbound else "FailedScheduling"]
        refused = "" if comes else _refused_by_autoscaler(events)
        said = f"{said} The autoscaler: {refused}" if refused else said
        reason = str(unplaced.get("reason") or "Unschedulable")
        return StartTrouble(reason, said, hint, missing, unbound, comes, bool(refused))
    return event_trouble(events)


def event_trouble(events: Sequence[Json]) -> StartTrouble | None:
    """The last event that says why something does not start."""
    for event in sorted(events, key=_time_of, reverse=True):
        reason = str(event.get("reason") or "")
        if reason in _WAITS:
            said, lasting = _short(event.get("message") or ""), reason == "FailedCreate"
            return StartTrouble(reason, said, _WAITS[reason], lasting, "Mount" in reason or "Volume" in reason)
    return None


def _refused_by_autoscaler(events: Sequence[Json]) -> str:
    """Why no node that the autoscaler could make would do, in its words; "" if it has not said so."""
    said = [str(each.get("message") or "") for each in sorted(events, key=_time_of) if each.get("reason") == _NO_NODE]
    return "" if not said or any(sign in said[-1] for sign in _FOR_NOW) else _short(said[-1])


def is_suspended(job: Json) -> bool:
    return bool(job["spec"].get("suspend"))


def job_end(job: Json) -> tuple[str, str]:
    """ "Complete" or "Failed" and why; "" while the Job goes on."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            said = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            return str(condition["type"]), said
    return "", ""


def describe(name: str, pods: Iterable[Json], troubles: Sequence[StartTrouble], suspended: bool) -> str:
    """The Job in one line: kubernetes job wiki-3f: 3 running, 5 pending (Unschedulable: …)."""
    if suspended:
        return f"kubernetes job {name}: suspended, waiting to be admitted"
    pods = list(pods)
    running = sum(is_running(pod) for pod in pods)
    pending = sum((pod.get("status") or {}).get("phase") in (None, "Pending", "Unknown") for pod in pods)
    why = Counter(map(str, troubles)).most_common(1)
    counts = [f"{running} running"] if running or not pending else []
    counts += [f"{pending} pending" + (f" ({why[0][0]})" if why else "")] if pending or why else []
    return f"kubernetes job {name}: {', '.join(counts)}"


def _container(pod: Json) -> Json:
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((dict(each) for each in found if each["name"] in (CONTAINER, ARGO_CONTAINER)), {})


def _condition(pod: Json, kind: str) -> Json:
    found = (pod.get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in found if each["type"] == kind), {})


def _has_condition(pod: Json, kind: str) -> bool:
    return _condition(pod, kind).get("status") == "True"


def _time_of(event: Json) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _short(text: str, limit: int = 240) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
