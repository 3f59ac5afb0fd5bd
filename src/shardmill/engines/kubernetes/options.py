"""The options of a pod, as a spec, `--set` or Python gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.engines.base import check_options
from shardmill.plan.spec import Execution

_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kKMGTPE]i?)?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9]+[\w./:@-]*", re.ASCII)
_TAINT = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^:]*))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SECRET = re.compile(r"SECRET|PASSWORD|TOKEN|ACCESS_KEY|API_KEY|CREDENTIAL", re.IGNORECASE)

PLAIN_GPU = "nvidia.com/gpu"
_NUMBERS = ("gpus", "grace_s", "wait_s")
_QUANTITIES = ("cpu", "memory", "shm")
_NAMES = ("namespace", "secret", "service_account", "pull_secret", "priority_class")
_MAPPINGS = ("selector", "labels", "annotations", "env")
_SHORTEST_GRACE_S = 15
# Planning, merging and verifying take one core, and memory that does not grow with the data.
_LIGHT_CPU, _LIGHT_MEMORY = "1", "4Gi"


@dataclass(frozen=True, slots=True)
class PodVolume:
    """Where a folder of the pod comes from: memory or disk of the node, a claim, or an image."""

    kind: str = "empty"
    name: str = ""
    size: str = ""

    @classmethod
    def parse(cls, option: str, text: str) -> PodVolume:
        """Read a size of the node's disk, pvc:CLAIM, or image:REFERENCE.

        >>> PodVolume.parse("cache", "pvc:models")
        PodVolume(kind='pvc', name='models', size='')
        """
        kind, colon, name = text.partition(":")
        if kind == "pvc" and _NAME.fullmatch(name):
            return cls("pvc", name)
        if kind == "image" and _IMAGE.fullmatch(name):
            return cls("image", name)
        if not colon and _QUANTITY.fullmatch(text):
            return cls(size=text)
        raise SpecError(
            f"{option}={text} is not a volume.", hint="Write a size (50Gi), pvc:CLAIM, or image:REFERENCE for models."
        )


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What may differ from pod to pod. Nothing here is a secret: `secret` is the name of one.

    `gpus`, `cpu` and `memory` are per pod. `spread` is the topology key over which pods are spread if possible. `cache`
    holds models between pods, `scratch` is the pod's own. A pod that is told to end has `grace_s` to give its leases
    back. If no pod can start, the command waits `wait_s` before it gives up.
    """

    image: str
    namespace: str = ""
    context: str = ""
    gpus: int = 1
    gpu_resource: str = PLAIN_GPU
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    scratch: PodVolume = PodVolume()
    cache: PodVolume | None = None
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, str], ...] = ()
    spread: str = ""
    secret: str = ""
    service_account: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secret: str = ""
    priority_class: str = ""
    grace_s: int = 30
    wait_s: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    def light(self) -> PodOptions:
        """Of a pod that plans, merges or verifies: no GPU, and on any node that has a core and some memory."""
        cpu, memory = _least(self.cpu, _LIGHT_CPU), _least(self.memory, _LIGHT_MEMORY)
        return replace(self, gpus=0, cpu=cpu, memory=memory)


def _least(given: str, enough: str) -> str:
    return min(given, enough, key=amount) if given else ""


def amount(quantity: str) -> float:
    """The number that a quantity stands for.

    >>> amount("2"), amount("500m"), amount("4k")
    (2.0, 0.5, 4000.0)
    >>> amount("500m") < amount("1") < amount("4G") < amount("4Gi")
    True
    """
    number, unit = re.fullmatch(r"([\d.]+)(\D*)", quantity).groups()  # type: ignore[union-attr]
    power = "kmgtpe".find(unit[:1].lower()) + 1 if unit else 0
    return float(number) * (1e-3 if unit == "m" else (1024 if unit.endswith("i") else 1000) ** power)


def read_pod_options(execution: Execution, more: Iterable[str] = ()) -> PodOptions:
    """The options of the pods of a run. `more` are options that belong to the engine alone, and are left out."""
    known = set(more)
    given = {name: value for name, value in execution.engine_options.items() if name not in known}
    check_options(execution.engine, execution.engine_options, [*(f.name for f in fields(PodOptions)), *known])
    if not given.get("image"):
        raise SpecError("No image was given for the pods.", hint="Name one that has shardmill in it: --image REFERENCE")
    if execution.device == "all":
        raise SpecError("--device all is not for pods: each gets what it asks for.", hint="Use cuda or cpu.")
    values = {name: _read(name, value) for name, value in given.items() if value not in ("", None)}
    if execution.device == "cpu":
        if values.get("gpus"):
            raise SpecError(f"gpus={values['gpus']} is for workers on a GPU, but --device is cpu.")
        values["gpus"] = 0
    return PodOptions(**values)


def _read(name: str, value: Any) -> Any:
    if name in _MAPPINGS:
        return _mapping(name, value)
    if name == "tolerations":
        return _tolerations(value)
    text = str(value).strip()
    if name in ("scratch", "cache"):
        return _volume(name, text)
    if name in _NUMBERS:
        return _number(name, text)
    checks = {**dict.fromkeys(_QUANTITIES, _QUANTITY), **dict.fromkeys(_NAMES, _NAME), "image": _IMAGE}
    if name in checks and not checks[name].fullmatch(text):
        raise SpecError(f"{name}={text} is not valid.", hint=_HINTS.get(name, "Sizes are written as 500m, 4 or 16Gi."))
    if name == "pull_policy" and text not in ("Always", "IfNotPresent", "Never"):
        raise SpecError(f"pull_policy={text} is not valid.", hint="It is Always, IfNotPresent or Never.")
    return text


_HINTS = {
    "image": "An image is written as registry.example.org/shardmill:1.0 or with @sha256:…",
    **dict.fromkeys(_NAMES, "Names of objects have small letters, digits, '-' and '.'."),
}


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise SpecError(f"{name}={text} is not a whole number.")
    if name == "grace_s" and int(text) < _SHORTEST_GRACE_S:
        raise SpecError(
            f"grace_s={text} is too short: a worker takes up to 10 s to give its shards back.",
            hint=f"Allow {_SHORTEST_GRACE_S} or more.",
        )
    return int(text)


def _volume(name: str, text: str) -> PodVolume:
    found = PodVolume.parse(name, text)
    if name == "scratch" and found.kind == "image":
        raise SpecError("scratch cannot be an image: workers write there.", hint="Write a size or pvc:CLAIM.")
    return found


def _mapping(name: str, value: Any) -> dict[str, str]:
    """Read a table, or "key=value,key=value"."""
    if isinstance(value, Mapping):
        found = {str(key): str(each) for key, each in value.items()}
    else:
        pairs = [part.partition("=") for part in _parts(value)]
        if not all(equals for _, equals, _ in pairs):
            raise SpecError(f"{name}={value} is not KEY=VALUE,KEY=VALUE.")
        found = {key.strip(): each.strip() for key, _, each in pairs}
    for key in found if name == "env" else ():
        if not _VARIABLE.fullmatch(key):
            raise SpecError(f"env: {key!r} is not the name of a variable.")
        if _SECRET.search(key):
            raise SpecError(
                f"env: {key} looks like a secret, which a manifest would show.",
                hint=f"kubectl create secret generic NAME --from-literal={key}=… and --set secret=NAME",
            )
    return found


def _tolerations(value: Any) -> tuple[dict[str, str], ...]:
    """Read a list of tables, or "key=value:NoSchedule,key"."""
    if not isinstance(value, str) and all(isinstance(each, Mapping) for each in value):
        return tuple({str(k): str(v) for k, v in each.items()} for each in value)
    return tuple(_toleration(part) for part in _parts(value))


def _toleration(text: str) -> dict[str, str]:
    match = _TAINT.fullmatch(text)
    if match is None:
        raise SpecError(f"tolerations={text} is not a taint.", hint="Write KEY, KEY=VALUE or KEY=VALUE:NoSchedule.")
    found = {"key": match["key"], "operator": "Exists" if match["value"] is None else "Equal"}
    return found | {name: match[name] for name in ("value", "effect") if match[name]}


def _parts(value: str | Sequence[str]) -> list[str]:
    whole = value if isinstance(value, str) else ",".join(map(str, value))
    return [part.strip() for part in whole.split(",") if part.strip()]
