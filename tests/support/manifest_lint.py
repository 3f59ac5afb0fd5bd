"""What a schema cannot see in our manifests: references that lead nowhere, sizes, and fields that safety needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
# Made by hand, as the guide says: what they hold is in no manifest.
SECRETS = {"shardmill-monitor"}
SUBMITTED_BYTES, OBJECT_BYTES = 16 << 10, 200 << 10
_LEAST_GRACE_S = 15
_CRON_NAME_CHARS = 52
_TAG = re.compile(r"\{\{([^{}]+)\}\}")
_KNOWN_TAGS = re.compile(
    r"workflow\.(name|namespace|status|creationTimestamp\.[Ymd])|workflow\.parameters\.(?P<name>[\w-]+)"
)


def lint(objects: Iterable[Json], secrets: Iterable[str] = (), *, openshift: bool = False) -> list[str]:
    """What is wrong with objects that are applied together; `secrets` are there already. OpenShift sets users."""
    found = list(objects)
    names = {(each["kind"], each["metadata"]["name"]) for each in found}
    known = names | {("Secret", name) for name in {*SECRETS, *secrets}}
    wrong: list[str] = []
    for each in found:
        what = f"{each['kind']} {each['metadata']['name']}"
        wrong += [f"{what}: {said}" for said in _lint_one(each, found, known, openshift=openshift)]
    return wrong


def _lint_one(made: Json, found: list[Json], known: set[tuple[str, str]], *, openshift: bool) -> Iterator[str]:
    size, kind = len(json.dumps(made)), made["kind"]
    if size > (SUBMITTED_BYTES if kind == "Workflow" else OBJECT_BYTES):
        yield f"{size} bytes"
    if kind == "Secret" and (made.get("data") or made.get("stringData")):
        yield "a secret in a manifest"
    for pod in _pods(made):
        in_argo = kind in ("WorkflowTemplate", "CronWorkflow")
        yield from _lint_pod(pod, known, in_argo=in_argo, openshift=openshift)
    if kind in ("WorkflowTemplate", "CronWorkflow"):
        yield from _lint_workflow(made["spec"].get("workflowSpec", made["spec"]), known)
    if kind in ("CronJob", "CronWorkflow"):
        yield from _lint_cron(made)
    if kind == "Deployment":
        template = made["spec"]["template"]["metadata"]["labels"]
        if made["spec"]["selector"]["matchLabels"].items() - template.items():
            yield "its selector does not select its pods"
    if kind in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
        chosen = made["spec"].get("selector") or made["spec"]["podSelector"]
        chosen = chosen.get("matchLabels", chosen)
        labels = [pod["metadata"]["labels"] for each in found for pod in _pods(each)]
        if not any(chosen.items() <= each.items() for each in labels):
            yield "it selects no pod"
    if kind == "HorizontalPodAutoscaler":
        target = made["spec"]["scaleTargetRef"]
        if (target["kind"], target["name"]) not in known:
            yield f"there is no {target['kind']} {target['name']}"
    if kind == "TriggerAuthentication":
        for each in made["spec"]["secretTargetRef"]:
            if ("Secret", each["name"]) not in known:
                yield f"there is no Secret {each['name']}"
    if kind == "ScaledJob":
        yield from _lint_scaled(made["spec"], found, known)
    if kind == "RoleBinding":
        for each in made["subjects"]:
            if each["kind"] == "ServiceAccount" and ("ServiceAccount", each["name"]) not in known:
                yield f"there is no account {each['name']}"
        if (made["roleRef"]["kind"], made["roleRef"]["name"]) not in known:
            yield f"there is no Role {made['roleRef']['name']}"
    if kind == "Role":
        for rule in made["rules"]:
            if "*" in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]:
                yield "rights to everything"
    if kind == "NodePool":
        reference = made["spec"]["template"]["spec"]["nodeClassRef"]
        if (reference["kind"], reference["name"]) not in known:
            yield f"there is no {reference['kind']} {reference['name']}"


def _lint_cron(made: Json) -> Iterator[str]:
    if made["spec"].get("concurrencyPolicy") != "Forbid":
        yield "two turns at once"
    if len(made["metadata"]["name"]) > _CRON_NAME_CHARS:
        yield "its Jobs have no room for a name"
    if made["kind"] == "CronJob" and "activeDeadlineSeconds" not in made["spec"]["jobTemplate"]["spec"]:
        yield "no activeDeadlineSeconds"


def _lint_scaled(spec: Json, found: list[Json], known: set[tuple[str, str]]) -> Iterator[str]:
    if spec.get("rollout", {}).get("strategy") != "gradual":
        yield "a change would end its workers"
    for trigger in spec["triggers"]:
        if ("TriggerAuthentication", trigger["authenticationRef"]["name"]) not in known:
            yield "there is no TriggerAuthentication of that name"
        host = trigger["metadata"]["url"].partition("://")[2].partition("/")[0]
        service, port = host.partition(".")[0], host.partition(":")[2]
        ports = [str(p["port"]) for each in found if each["kind"] == "Service" for p in each["spec"]["ports"]]
        if ("Service", service) not in known or port not in ports:
            yield f"its backlog {host} is no Service here"


def _pods(made: Json) -> list[Json]:
    """The pod templates of an object; those of a workflow are made of its parts, as Argo does."""
    spec = made.get("spec") or {}
    if made["kind"] in ("WorkflowTemplate", "CronWorkflow"):
        spec = spec.get("workflowSpec", spec)
        kept = ("securityContext", "serviceAccountName", "volumes")
        pod = {name: spec[name] for name in kept if name in spec} | json.loads(spec.get("podSpecPatch", "{}"))
        steps = [each["container"] for each in spec["templates"] if "container" in each]
        return [{"metadata": spec["podMetadata"], "spec": {**pod, "containers": [each]}} for each in steps]
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    template = spec.get("template") or spec.get("jobTargetRef", {}).get("template")
    return [template] if template and "containers" in template.get("spec", {}) else []


def _lint_pod(pod: Json, known: set[tuple[str, str]], *, in_argo: bool, openshift: bool) -> Iterator[str]:
    spec = pod["spec"]
    context = spec.get("securityContext", {})
    if not context.get("runAsNonRoot") or not (openshift or context.get("runAsUser")):
        yield "it may run as root"
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccomp profile"
    # Argo's executor reports with the token of the account, which may do nothing else.
    if not in_argo and spec.get("automountServiceAccountToken") is not False:
        yield "it has the token of its account"
    if spec.get("terminationGracePeriodSeconds", 0) < _LEAST_GRACE_S:
        yield "too little time to give shards back"
    account = spec.get("serviceAccountName")
    if account and ("ServiceAccount", account) not in known:
        yield f"there is no account {account}"
    volumes = {each["name"]: each for each in spec.get("volumes", ())}
    for each in volumes.values():
        if "secret" in each and ("Secret", each["secret"]["secretName"]) not in known:
            yield f"there is no Secret {each['secret']['secretName']}"
        if "hostPath" in each:
            yield "it mounts a folder of the node"
    for container in spec["containers"]:
        yield from _lint_container(container, volumes, known)


def _lint_container(container: Json, volumes: Json, known: set[tuple[str, str]]) -> Iterator[str]:
    context = container.get("securityContext", {})
    if context.get("allowPrivilegeEscalation") is not False or not context.get("readOnlyRootFilesystem"):
        yield "it may change its root, or its rights"
    if context.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "it keeps capabilities"
    if container.get("command") != ["shardmill"]:
        yield "its command is not set"
    if container["image"].endswith(":latest") or ":" not in container["image"]:
        yield f"the image {container['image']} is not pinned"
    for mount in container.get("volumeMounts", ()):
        if mount["name"] not in volumes:
            yield f"there is no volume {mount['name']}"
    if not any(mount["mountPath"] == "/tmp" for mount in container.get("volumeMounts", ())):
        yield "nowhere to write"
    for each in container.get("env", ()):
        if re.search("SECRET|PASSWORD|TOKEN", each["name"]) and "value" in each:
            yield f"{each['name']} in plain text"
        reference = each.get("valueFrom", {}).get("configMapKeyRef")
        if reference and ("ConfigMap", reference["name"]) not in known:
            yield f"there is no ConfigMap {reference['name']}"
    for each in container.get("envFrom", ()):
        if not each["secretRef"].get("optional") and ("Secret", each["secretRef"]["name"]) not in known:
            yield f"there is no Secret {each['secretRef']['name']}"
    resources = container.get("resources", {})
    for name, value in resources.get("limits", {}).items():
        if resources.get("requests", {}).get(name) != value:
            yield f"{name} is limited to what is not requested"


def _lint_workflow(spec: Json, known: set[tuple[str, str]]) -> Iterator[str]:
    templates = {each["name"]: each for each in spec["templates"]}
    given = {each["name"] for each in spec.get("arguments", {}).get("parameters", ())}
    for name in (spec["entrypoint"], spec["onExit"]):
        if name not in templates:
            yield f"there is no template {name}"
    for field in ("activeDeadlineSeconds", "podGC", "ttlStrategy"):
        if field not in spec:
            yield f"no {field}"
    for name, template in templates.items():
        for said in _lint_template(template, templates, given):
            yield f"{name}: {said}"


def _lint_template(template: Json, templates: Json, given: set[str]) -> Iterator[str]:
    nodes = {"tolerations", "nodeSelector", "affinity"}
    for odd in template.keys() - {"name", "dag", "container", "retryStrategy", "pendingTimeout", *nodes}:
        yield f"{odd} is not for us"
    for tag in _TAG.findall(json.dumps(template)):
        match = _KNOWN_TAGS.fullmatch(tag)
        if match is None or (match["name"] and match["name"] not in given):
            yield f"there is no {tag}"
    if "dag" in template:
        tasks = [each["name"] for each in template["dag"]["tasks"]]
        for each in template["dag"]["tasks"]:
            if each["template"] not in templates:
                yield f"there is no template {each['template']}"
            if (above := each.get("depends", "").partition(".")[0]) and above not in tasks:
                yield f"there is no task {above}"
        return
    retry = template.get("retryStrategy", {})
    if not retry.get("expression") or int(retry.get("limit", 0)) < 10 or "affinity" in retry:
        yield "it is not retried as it should be"
    if "pendingTimeout" not in template:
        yield "it may wait for ever"
    for argument in template["container"]["args"]:
        if _TAG.search(argument) and not re.fullmatch(r"(--[a-z-]+=(merge:)?)?(\{\{[^{}]+\}\}[/.\w-]*)+", argument):
            yield f"{argument} mixes a parameter with something else"
