"""A small reader of our Argo templates. It creates their pods on a real cluster and ends as Argo's rules say.

It knows what our templates use (dag, depends, withSequence, retryStrategy, onExit, container), and refuses anything
else. Phases, messages and names of nodes are those of Argo 4.1.2. Its executor is left out: a pod has only its main
container.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shardmill.engines.kubernetes.api import ApiRefused, ClusterApi, patiently
from tests.support.waiting import PATIENCE_S

Json = dict[str, Any]
# Called with the name of a node and its pod before the pod is created: a test changes there what the pod does.
Inject = Callable[[str, Json], None]

_SPEC = {
    *("arguments", "entrypoint", "onExit", "serviceAccountName", "templates", "workflowTemplateRef", "parallelism"),
    *("activeDeadlineSeconds", "podGC", "ttlStrategy", "podMetadata", "podSpecPatch", "podPriorityClassName"),
    *("securityContext", "nodeSelector", "tolerations", "imagePullSecrets", "volumes"),
}
_TEMPLATE = {"name", "dag", "container", "inputs", "retryStrategy", "pendingTimeout", "volumes", "failFast"}
_TEMPLATE |= {"tolerations", "nodeSelector", "affinity"}
_TASK = {"name", "template", "depends", "withSequence", "arguments"}
_RETRY = {"limit", "retryPolicy", "expression", "backoff"}
_ENDED = ("Succeeded", "Failed", "Error")
_TAG = re.compile(r"\{\{([^{}]+)\}\}")


class Unreadable(Exception):
    """Something that this reader does not know."""


@dataclass
class Node:
    """A node of a workflow's status."""

    name: str
    type: str
    phase: str = "Running"
    message: str | None = None
    exit_code: str | None = None
    children: list[Node] = field(default_factory=list)
    ended_at: float = 0.0
    pod: str = ""

    @property
    def over(self) -> bool:
        return self.phase in _ENDED

    def end(self, phase: str, message: str | None = None) -> None:
        self.phase, self.message, self.ended_at = phase, message, time.monotonic()


class ArgoReader:
    """One workflow. `hurry` divides the pauses between retries and the time that a pod may be pending.

    Pods of the nodes in `evicts` are evicted once they run, those in `deletes` deleted.
    """

    def __init__(
        self, api: ClusterApi, workflow: Json, template: Json | None, inject: Inject, *, hurry: float = 10.0
    ) -> None:
        self.api, self.inject, self.hurry = api, inject, hurry
        self.evicts, self.deletes = set[str](), set[str]()
        self.name, self.namespace = workflow["metadata"]["name"], workflow["metadata"].get("namespace", "default")
        spec = dict(workflow["spec"])
        if reference := spec.pop("workflowTemplateRef", None):
            if template is None or template["metadata"]["name"] != reference["name"]:
                raise Unreadable(f"no template {reference['name']}")
            spec = {**template["spec"], **spec, "arguments": _merge(template["spec"], spec)}
        _check("spec", spec, _SPEC)
        self.spec, self.nodes = spec, dict[str, Node]()
        self.templates = {each["name"]: each for each in spec["templates"]}
        for each in self.templates.values():
            _check(f"template {each['name']}", each, _TEMPLATE)
        self.values = {"workflow.name": self.name, "workflow.namespace": self.namespace}
        for each in spec.get("arguments", {}).get("parameters", ()):
            if "value" not in each:
                raise Unreadable(f"the parameter {each['name']} has no value")
            self.values[f"workflow.parameters.{each['name']}"] = each["value"]
        for part in "Ymd":
            self.values[f"workflow.creationTimestamp.{part}"] = time.strftime(f"%{part}", time.gmtime())
        self._pods: dict[str, Json] = {}
        self._pending_since: dict[str, float] = {}

    def begin(self) -> None:
        """Create the first pods."""
        self._execute(self.name, self.templates[self.spec["entrypoint"]], {})

    def run(self) -> Node:
        """Run the workflow to its end, and its exit handler."""
        entry, deadline = self.spec["entrypoint"], time.monotonic() + PATIENCE_S
        root = self._advance_until(self.name, entry, deadline)
        self.values["workflow.status"] = root.phase
        if "onExit" in self.spec:
            self._advance_until(f"{self.name}.onExit", self.spec["onExit"], deadline)
        return root

    def _advance_until(self, name: str, template: str, deadline: float) -> Node:
        while not (node := self._execute(name, self.templates[template], {})).over:
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{name} did not end: {[(n.name, n.phase, n.message) for n in self.nodes.values()]}"
                )
            time.sleep(1.0)
            self._look()
        return node

    def _execute(self, name: str, template: Json, given: dict[str, str]) -> Node:
        if "retryStrategy" in template:
            return self._execute_retry(name, template, given)
        if "dag" in template:
            return self._execute_dag(name, template)
        if "container" in template:
            return self._execute_pod(name, template, given)
        raise Unreadable(f"template {template['name']}")

    def _node(self, name: str, kind: str) -> Node:
        return self.nodes.setdefault(name, Node(name, kind))

    # A dag: its phase is that of its last tasks; a task that did not run has the phase of what it depends on.

    def _execute_dag(self, name: str, template: Json) -> Node:
        node, dag = self._node(name, "DAG"), template["dag"]
        _check("dag", dag, {"tasks", "failFast"})
        phases: dict[str, Node | None] = {}
        inherited: dict[str, str] = {}
        waiting = False
        for task in dag["tasks"]:
            _check(f"task {task['name']}", task, _TASK)
            above, _, wanted = task.get("depends", "").partition(".")
            if above and above not in phases:
                raise Unreadable(f"depends: {task['depends']}")
            before = phases.get(above) if above else None
            if above and before is None and above in inherited:
                phases[task["name"]], inherited[task["name"]] = None, inherited[above]
            elif above and (before is None or not before.over):
                phases[task["name"]], waiting = None, True
            elif before is not None and not _holds(before, wanted):
                # Omitted.
                phases[task["name"]], inherited[task["name"]] = None, before.phase
            else:
                phases[task["name"]] = self._execute_task(f"{name}.{task['name']}", task)
        used = {task.get("depends", "").partition(".")[0] for task in dag["tasks"]}
        ended = []
        for task in [task["name"] for task in dag["tasks"] if task["name"] not in used]:
            last = phases[task]
            ended.append(inherited.get(task, "") if last is None else last.phase if last.over else "")
        if not waiting and all(ended):
            node.end(next((phase for phase in ended if phase != "Succeeded"), "Succeeded"))
        return node

    def _execute_task(self, name: str, task: Json) -> Node:
        template = self.templates[task["template"]]
        if "withSequence" not in task:
            return self._execute(name, template, self._arguments(task, {}))
        _check("withSequence", task["withSequence"], {"count"})
        group = self._node(name, "TaskGroup")
        count = int(self._fill(task["withSequence"]["count"], {}))
        group.children = []
        for i in range(count):
            given = self._arguments(task, {"item": str(i)})
            running = sum(n.type == "Pod" and not n.over for n in self.nodes.values())
            if f"{name}({i}:{i})" not in self.nodes and running >= self.spec.get("parallelism", count):
                continue
            group.children.append(self._execute(f"{name}({i}:{i})", template, given))
        if len(group.children) == count and all(child.over for child in group.children) and not group.over:
            failed = [child.phase for child in group.children if child.phase != "Succeeded"]
            group.end(failed[0] if failed else "Succeeded")
        return group

    def _arguments(self, task: Json, item: dict[str, str]) -> dict[str, str]:
        given = task.get("arguments", {}).get("parameters", ())
        return {f"inputs.parameters.{each['name']}": self._fill(each["value"], item) for each in given}

    # Retries

    def _execute_retry(self, name: str, template: Json, given: dict[str, str]) -> Node:
        node, strategy = self._node(name, "Retry"), template["retryStrategy"]
        _check("retryStrategy", strategy, _RETRY)
        _check("backoff", strategy["backoff"], {"duration", "factor", "cap", "maxDuration"})
        if strategy["retryPolicy"] != "Always":
            raise Unreadable(strategy["retryPolicy"])
        if node.over:
            return node
        last = node.children[-1] if node.children else None
        if last is not None and last.over and not self._is_again(node, last, strategy):
            return node
        if last is None or last.over:
            last = self._node(f"{name}({len(node.children)})", "Pod")
            node.children.append(last)
        retries = {"retries": str(len(node.children) - 1)}
        self._execute_pod(last.name, template, {**given, **retries})
        return node

    def _is_again(self, node: Node, last: Node, strategy: Json) -> bool:
        node.exit_code = last.exit_code
        if last.phase == "Succeeded":
            node.end("Succeeded")
            return False
        pause = _seconds(strategy["backoff"]["duration"]) * int(strategy["backoff"].get("factor", 1)) ** (
            len(node.children) - 1
        )
        if cap := strategy["backoff"].get("cap"):
            pause = min(pause, _seconds(cap))
        if time.monotonic() < last.ended_at + pause / self.hurry:
            return False
        if len(node.children) > int(strategy["limit"]):
            node.end(last.phase, "No more retries left")
            return False
        if not _evaluate(strategy["expression"], last):
            node.end(last.phase, "retryStrategy.expression evaluated to false")
            return False
        return True

    # Pods

    def _execute_pod(self, name: str, template: Json, given: dict[str, str]) -> Node:
        node = self._node(name, "Pod")
        if not node.pod:
            digest = hashlib.sha256(name.encode()).hexdigest()[:10]
            node.pod = f"{self.name}-{template['name']}-{digest}"
            self._create(node, template, given)
        elif not node.over:
            self._judge(node, template)
        return node

    def _create(self, node: Node, template: Json, given: dict[str, str]) -> None:
        _check("inputs", template.get("inputs", {}), {"parameters"})
        container = json.loads(json.dumps(template["container"]))
        if not container.get("command"):
            raise Unreadable(f"{node.name}: no command")
        container["name"] = "main"
        container["args"] = [self._fill(each, given) for each in container.get("args", ())]
        kept = ("securityContext", "nodeSelector", "tolerations", "imagePullSecrets", "serviceAccountName")
        spec = {name: self.spec[name] for name in kept if name in self.spec}
        spec |= {name: template[name] for name in ("tolerations", "nodeSelector", "affinity") if name in template}
        spec |= {"restartPolicy": "Never", "containers": [container]}
        spec["volumes"] = [*self.spec.get("volumes", ()), *template.get("volumes", ())]
        spec |= json.loads(self.spec.get("podSpecPatch", "{}"))
        metadata = json.loads(json.dumps(self.spec.get("podMetadata", {})))
        labels = {**metadata.get("labels", {}), "workflows.argoproj.io/workflow": self.name}
        notes = {**metadata.get("annotations", {}), "workflows.argoproj.io/node-name": node.name}
        metadata = {"name": node.pod, "namespace": self.namespace, "labels": labels, "annotations": notes}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.inject(node.name, pod)
        self._ask("POST", self.api.path("pods"), pod)
        self._pods[node.pod] = pod
        self._pending_since[node.pod] = time.monotonic()

    def _judge(self, node: Node, template: Json) -> None:
        pod = self._pods.get(node.pod)
        if pod is None or ("deletionTimestamp" in pod["metadata"] and pod["status"]["phase"] in ("Pending", "Running")):
            if pod is None:
                node.end("Error", "pod deleted")
            return
        status = pod.get("status", {})
        phase = status.get("phase", "Pending")
        patience = _seconds(template["pendingTimeout"]) / self.hurry if "pendingTimeout" in template else None
        if phase == "Pending" and patience is not None:
            if time.monotonic() - self._pending_since[node.pod] > patience:
                self._ask("DELETE", self.api.path("pods", node.pod), {"gracePeriodSeconds": 0})
                node.end("Failed", "timeout")
            return
        if phase not in ("Succeeded", "Failed"):
            return
        ended = [c["state"]["terminated"] for c in status.get("containerStatuses", ()) if "terminated" in c["state"]]
        if "deletionTimestamp" in pod["metadata"]:
            # Argo sees the pod once more only if the controller looks before it is gone.
            return
        for end in ended:
            node.exit_code = str(end["exitCode"])
        if phase == "Succeeded":
            node.end("Succeeded")
        elif ended and not status.get("message"):
            node.end("Failed", f"main: {ended[0]['reason']} (exit code {ended[0]['exitCode']})")
        else:
            node.end("Failed", status.get("message"))

    def _look(self) -> None:
        selected = f"workflows.argoproj.io/workflow={self.name}"
        found, _ = patiently(lambda: self.api.items(self.api.path("pods"), labelSelector=selected), PATIENCE_S)
        self._pods = {pod["metadata"]["name"]: pod for pod in found}
        for ends, end in ((self.evicts, self._evict), (self.deletes, self._delete)):
            for node in [node for node in self.nodes.values() if self._within(node) in ends]:
                if self._pods.get(node.pod, {}).get("status", {}).get("phase") == "Running":
                    ends.remove(self._within(node))
                    end(node.pod)

    def _within(self, node: Node) -> str:
        """The name of a node without that of its workflow."""
        return node.name.removeprefix(self.name).removeprefix(".")

    def _delete(self, pod: str) -> None:
        self._ask("DELETE", self.api.path("pods", pod), {"gracePeriodSeconds": 1})

    def _evict(self, pod: str) -> None:
        grace = {"gracePeriodSeconds": 1}
        order = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}, "deleteOptions": grace}
        self._ask("POST", f"{self.api.path('pods', pod)}/eviction", order)

    def _ask(self, method: str, path: str, body: Json) -> None:
        """Ask again while the API server is away: a test beside this one may have stopped it."""
        try:
            patiently(lambda: self.api.ask(method, path, body), PATIENCE_S)
        except ApiRefused as error:
            # The answer to an earlier request was lost.
            if error.status not in (404, 409):
                raise

    def _fill(self, text: str, given: dict[str, str]) -> str:
        known = {**self.values, **given}

        def value(match: re.Match[str]) -> str:
            if match[1] not in known:
                raise Unreadable(match[0])
            return known[match[1]]

        return _TAG.sub(value, text)


def _merge(template: Json, spec: Json) -> Json:
    """The parameters of a template with the values of a workflow."""
    own = {each["name"]: each for each in spec.get("arguments", {}).get("parameters", ())}
    known = template.get("arguments", {}).get("parameters", ())
    if unknown := own.keys() - {each["name"] for each in known}:
        raise Unreadable(f"parameters {sorted(unknown)}")
    return {"parameters": [own.get(each["name"], each) for each in known]}


def _check(what: str, given: Json, known: set[str]) -> None:
    if unknown := given.keys() - known:
        raise Unreadable(f"{what}: {', '.join(sorted(unknown))}")


def _holds(node: Node, wanted: str) -> bool:
    if wanted == "AnySucceeded":
        return any(child.phase == "Succeeded" for child in node.children)
    if wanted in ("", "Succeeded"):
        return node.phase == "Succeeded"
    raise Unreadable(wanted)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)(s|m|h)?", text)
    if match is None:
        raise Unreadable(text)
    return int(match[1]) * {"h": 3600, "m": 60}.get(match[2] or "s", 1)


def _evaluate(expression: str, last: Node) -> bool:
    """An expression of the few forms that our templates have; a missing exit code is -1, as in Argo."""
    python = re.sub(r"([\w.]+) matches ('[^']*')", r"matches(\1, \2)", expression)
    python = python.replace("lastRetry.exitCode", "exit_code").replace("lastRetry.message", "message")
    allowed = (
        *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.Compare, ast.Eq, ast.NotEq, ast.In),
        *(ast.List, ast.Constant, ast.Name, ast.Load, ast.Call),
    )
    tree = ast.parse(python, mode="eval")
    if odd := next((n for n in ast.walk(tree) if not isinstance(n, allowed)), None):
        raise Unreadable(ast.unparse(odd))
    names = {
        "exit_code": last.exit_code or "-1",
        "message": last.message or "",
        "asInt": int,
        "matches": lambda text, pattern: re.search(pattern, text) is not None,
    }
    return bool(eval(compile(tree, "expression", "eval"), {"__builtins__": {}}, names))
