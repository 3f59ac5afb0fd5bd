"""The engine `argo`: the workers of a run are a workflow, made from a template that is installed on the cluster."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, fields

from shardmill.core import passwords
from shardmill.core.console import say
from shardmill.core.devices import Device
from shardmill.core.dialect import shell_command
from shardmill.core.errors import EngineRefused, EngineSilent, StoreError, UsageError, WorkerFailed, nearest
from shardmill.engines.base import check_options
from shardmill.engines.kubernetes.api import ApiRefused, ClusterApi, Json, patiently
from shardmill.engines.kubernetes.argo import API, EMBED_PARALLEL, PLANNED, make_workflow
from shardmill.engines.kubernetes.job import PATIENCE_S
from shardmill.engines.kubernetes.manifests import check_reachable, job_name
from shardmill.engines.kubernetes.pod import RUN
from shardmill.engines.kubernetes.start import StartWatch
from shardmill.engines.kubernetes.state import StartTrouble, has_begun
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Execution

WORKFLOWS, TEMPLATES = f"{API}/workflows", f"{API}/workflowtemplates"
_ENDED = ("Succeeded", "Failed", "Error")
_LOOK_S, _SAY_AGAIN_S = 2.0, 20.0
# Argo's controller takes up a workflow within seconds.
_TAKEN_UP_S = 45.0
_GONE_S = 120.0
_FOREGROUND = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}


@dataclass(frozen=True, slots=True)
class ArgoOptions:
    """Where the template is installed. What its pods are like is the template's affair.

    If no pod can start, the command waits `wait_s` before it gives up.
    """

    template: str = EMBED_PARALLEL
    namespace: str = ""
    context: str = ""
    wait_s: str = "0"

    @classmethod
    def of(cls, execution: Execution) -> ArgoOptions:
        check_options("argo", execution.engine_options, (f.name for f in fields(cls)))
        found = cls(**{name: str(value) for name, value in execution.engine_options.items()})
        if not found.wait_s.isdecimal():
            raise UsageError(f"wait_s={found.wait_s} is not a number of seconds.", hint="For example --set wait_s=600")
        return found

    def connect(self) -> ClusterApi:
        return ClusterApi(self.context, self.namespace)


class ArgoEngine:
    quiet = True

    def __init__(self, execution: Execution) -> None:
        self.options = ArgoOptions.of(execution)
        self._workers = execution.workers or 1
        self._kind = "cpu" if execution.device == "cpu" else "cuda"
        if passwords.environment():
            raise UsageError(
                "A password in a URL cannot be passed to a workflow: its object would show it.",
                hint="Remove it from the URL, and put PGPASSWORD or MYSQL_PWD into the Secret of the template.",
            )
        self._api = self.options.connect()
        self._template = self._find_template()

    def _find_template(self) -> Json:
        """The installed template. Refuse one that is not there, or has no entry point for a run that is planned."""
        api, name = self._api, self.options.template
        found = patiently(lambda: api.find(api.path(TEMPLATES, name)), PATIENCE_S)
        if found is None:
            try:
                known = [each["metadata"]["name"] for each in api.items(api.path(TEMPLATES))[0]]
            except ApiRefused as error:
                if error.status != 404:
                    raise
                raise EngineRefused(
                    "Argo Workflows is not installed on the cluster.",
                    hint="Install it, or use --engine kubernetes, which needs nothing.",
                ) from error
            if not known:
                self._check_namespace()
            install = "Install ours: shardmill kubernetes render argo --spec FILE --out RUN | kubectl apply -f -"
            raise EngineRefused(
                f"The namespace {api.namespace!r} has no template {name!r}.",
                hint=nearest(name, sorted(known)) if known else install,
            )
        if PLANNED not in [each["name"] for each in found["spec"].get("templates", ())]:
            raise EngineRefused(
                f"The template {name!r} has no entry point {PLANNED!r}, for a run that is planned.",
                hint=f"Use {EMBED_PARALLEL}, whose workers do any task: --set template={EMBED_PARALLEL}",
            )
        return found

    def _check_namespace(self) -> None:
        """Refuse a namespace that does not exist. Its lists are empty; only a request to create something says so."""
        probe = {"apiVersion": API, "kind": "Workflow", "metadata": {"generateName": "probe-"}, "spec": {}}
        try:
            self._api.ask("POST", self._api.path(WORKFLOWS), probe, params={"dryRun": "All"})
        except ApiRefused as error:
            if error.status == 404:
                raise

    @property
    def devices(self) -> list[Device]:
        """One per worker; which device it has is known once Argo has placed it."""
        return [Device(self._kind, f"argo {self.options.template}", 1, visible=str(i)) for i in range(self._workers)]

    def start(self, run: str) -> WorkflowPlacement:
        check_reachable(run)
        workflow = RunWorkflow(self._api, run)
        workflow.place(self._template, self._workers)
        return WorkflowPlacement(workflow, self.options)


class RunWorkflow:
    """A workflow by the name that its run gives it. Another run's workflow of that name is left alone."""

    def __init__(self, api: ClusterApi, run: str) -> None:
        self.api, self.run, self.name = api, run, job_name(run)
        self._path = api.path(WORKFLOWS, self.name)

    def find(self) -> Json | None:
        found = patiently(lambda: self.api.find(self._path), PATIENCE_S)
        other = (found["metadata"].get("annotations") or {}).get(RUN) if found is not None else self.run
        if other != self.run:
            raise EngineRefused(
                f"The name {self.name!r} in the namespace {self.api.namespace!r} is taken by a workflow of "
                f"{other or 'somebody else'}.",
                hint=f"See: kubectl -n {self.api.namespace} get workflow {self.name}; or --set namespace=ANOTHER",
            )
        return found

    def place(self, template: Json, workers: int) -> None:
        """Create the workflow, or adopt the one that still runs. One that ended is deleted first."""
        found = self.find()
        if found is not None and phase_of(found) in _ENDED:
            self.delete()
            found = None
        if found is not None:
            if (placed := _workers_of(found)) != str(workers):
                say(f"The workflow {self.name} goes on with its {placed or 'own'} workers: Argo cannot change that.")
            return
        made = make_workflow(self.run, template, workers, self.api.namespace)
        try:
            patiently(lambda: self.api.ask("POST", self.api.path(WORKFLOWS), made), PATIENCE_S)
        except ApiRefused as error:
            # Another command was first, or the answer to our own request was lost.
            if error.status != 409 or self.find() is None:
                raise

    def pods(self) -> list[Json]:
        label = f"workflows.argoproj.io/workflow={self.name}"
        return self.api.items(self.api.path("pods"), labelSelector=label)[0]

    def delete(self) -> int:
        """Delete the workflow and its pods, and wait until they have ended; the number of pods that still ran."""
        if self.find() is None:
            return 0
        running = sum((pod.get("status") or {}).get("phase") in ("Pending", "Running") for pod in self.pods())
        try:
            patiently(lambda: self.api.ask("DELETE", self._path, dict(_FOREGROUND)), PATIENCE_S)
        except ApiRefused as error:
            if error.status != 404:
                raise
        deadline = time.monotonic() + _GONE_S
        while self.find() is not None:
            if time.monotonic() > deadline:
                raise EngineSilent(
                    f"The cluster has not ended the workflow {self.name} in {_GONE_S:.0f} s.",
                    hint=f"See: kubectl -n {self.api.namespace} get workflow {self.name}",
                )
            time.sleep(0.3)
        return running


class WorkflowPlacement:
    """Watches the workflow of a run. Argo retries pods; this process reports, and may go at any time."""

    def __init__(self, workflow: RunWorkflow, options: ArgoOptions) -> None:
        self._workflow, self._ledger, self._template = workflow, Ledger(workflow.run), options.template
        self._start = StartWatch(workflow.api, workflow.name, float(options.wait_s))
        self._began = time.monotonic()
        self._looked_at = self._said_at = 0.0
        self._goes_on = self._has_pods = self._has_begun = False
        self._line = self.note = ""

    def poll(self) -> bool:
        if time.monotonic() - self._looked_at < _LOOK_S:
            return self._goes_on
        self._looked_at = time.monotonic()
        try:
            found, pods = self._workflow.find(), self._workflow.pods()
        except EngineSilent as error:
            self._say(f"argo workflow {self._workflow.name}: {error.message}")
            return True
        self._goes_on = found is not None and self._judge(found, pods)
        return self._goes_on

    def _judge(self, found: Json, pods: list[Json]) -> bool:
        """Whether the workflow goes on; raises why it failed, or why it cannot begin."""
        name, phase = self._workflow.name, phase_of(found)
        self._has_pods = self._has_pods or bool(pods)
        if phase == "Succeeded":
            return False
        if phase in _ENDED:
            raise WorkerFailed(f"The workflow {name} ended as {phase}: {why(found)}", hint=self._see())
        if not phase and not pods and time.monotonic() - self._began > _TAKEN_UP_S:
            raise EngineSilent(
                f"No controller has taken up the workflow {name} in {_TAKEN_UP_S:.0f} s.",
                hint="Check Argo's controller: kubectl -n argo get deployment workflow-controller",
            )
        if denied := _denied_report(found):
            raise EngineRefused(
                f"The account of the workflow's pods may not report to Argo: {denied}",
                hint="Give it the rights that come with the templates: "
                "shardmill kubernetes render argo --spec FILE --out RUN | kubectl apply -f -",
            )
        troubles = self._look_at_start(pods)
        counts = Counter((pod.get("status") or {}).get("phase", "Pending").lower() for pod in pods)
        said = ", ".join(f"{counts[each]} {each}" for each in ("running", "pending") if counts[each])
        none = "between two steps" if self._has_begun else "no pod yet"
        step = "".join(f"step {each}, " for each in steps_of(found))
        self._say(f"argo workflow {name}: {step}{said or none}" + (f" ({troubles[0]})" if troubles else ""))
        return True

    def _look_at_start(self, pods: list[Json]) -> list[StartTrouble]:
        """What is wrong with pods that wait; raises if none can start."""
        self._has_begun = self._has_begun or any(map(has_begun, pods))
        try:
            return self._start.look(pods, self._has_begun, len(pods))
        except EngineRefused as error:
            mend = f"Mend the template, then repeat: kubectl -n {self._workflow.api.namespace} edit workflowtemplate "
            raise EngineRefused(error.message, hint=mend + self._template) from error

    def detach(self) -> None:
        """Wait until Argo has taken it up, or raise why not."""
        while self.poll() and not self._has_pods:
            time.sleep(_LOOK_S / 10)

    def leave(self) -> None:
        """Leave the workers to Argo, as the user does, and say how to come back."""
        run = self._workflow.run
        say(f"The workers go on without this command ({self._line or f'argo workflow {self._workflow.name}'}).")
        say(f"Come back: {shell_command('resume', run)}   End them: {shell_command('stop', run)}")

    def stop(self) -> None:
        """Delete the workflow, unless it has ended: then it tells how, until Argo removes it."""
        found = self._workflow.find()
        if found is not None and phase_of(found) not in _ENDED:
            self._workflow.delete()
        self._say("")

    def _see(self) -> str:
        api, name = self._workflow.api, self._workflow.name
        return f"See logs/ of the run folder, or: kubectl -n {api.namespace} get workflow {name} -o yaml"

    def _say(self, line: str) -> None:
        """Store the line for people who watch; no run ends because of it."""
        now = time.monotonic()
        self.note = f" · {line}" if any(word in line for word in (": step ", "pending", "no pod")) else ""
        if line != self._line or now - self._said_at > _SAY_AGAIN_S:
            self._line, self._said_at = line, now
            with contextlib.suppress(StoreError):
                self._ledger.notes.put_placement(line)


def _workers_of(workflow: Json) -> str:
    parameters = (workflow["spec"].get("arguments") or {}).get("parameters") or ()
    return next((str(each.get("value")) for each in parameters if each["name"] == "workers"), "")


def phase_of(workflow: Json) -> str:
    """How a workflow stands; "" if no controller has looked at it."""
    return str((workflow.get("status") or {}).get("phase") or "")


def steps_of(workflow: Json) -> list[str]:
    """The templates, beside that of the workers, whose pods run or wait."""
    nodes = _nodes_of(workflow)
    going = [n for n in nodes if n.get("type") == "Pod" and n.get("phase") in ("Pending", "Running")]
    return sorted({str(n.get("templateName") or "") for n in going} - {"", "work"})


def _denied_report(workflow: Json) -> str:
    """What Argo's executor says if the account of its pods has no rights to report: every retry fails like it."""
    said = [str(n.get("message") or "") for n in _nodes_of(workflow) if n.get("phase") in ("Failed", "Error")]
    return next((each for each in said if "workflowtaskresults" in each and "forbidden" in each), "")


def _nodes_of(workflow: Json) -> list[Json]:
    return list(((workflow.get("status") or {}).get("nodes") or {}).values())


def why(workflow: Json) -> str:
    """What a workflow that failed says of itself, or its first pod that failed for good."""
    status = workflow.get("status") or {}
    said = [
        str(n["message"])
        for n in _nodes_of(workflow)
        if n.get("phase") in ("Failed", "Error") and n.get("type") == "Pod"
    ]
    return str(status.get("message") or next(iter(said), "it does not say why"))


def end_workers(execution: Execution, run: str, plan: Plan) -> int:
    """Delete the workflow of a run and wait until its pods have ended; how many ran."""
    ended = RunWorkflow(ArgoOptions.of(execution).connect(), run).delete()
    Ledger(run).notes.put_placement("")
    return ended
