"""Why pods do not start, and when that is no longer worth waiting for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from shardmill.core.errors import EngineRefused, EngineSilent
from shardmill.engines.kubernetes.api import ApiRefused, ClusterApi, Json
from shardmill.engines.kubernetes.state import StartTrouble, event_trouble, is_running, start_trouble

_LOOK_S, _ASKED_ABOUT = 3.0, 3
# A registry or a volume may need a moment. Beyond this the first worker of a run will not start by itself.
_LASTING_S, _PASSING_S, _SCALED_S = 12.0, 30.0, 25.0
_OF_EVERY_NODE = ("cpu", "memory", "ephemeral-storage")


class StartWatch:
    """Asks for the events of pods that wait. If no worker has ever begun and none can, it raises.

    It waits `wait_s` for that, or as long as such a trouble usually lasts if that is longer.
    """

    def __init__(self, api: ClusterApi, job: str, wait_s: float) -> None:
        self._api, self._job, self._wait_s = api, job, wait_s
        self._since: float | None = None
        self._asked_at = 0.0
        self._events: dict[str, list[Json]] = {}

    def look(self, pods: Sequence[Json], begun: bool, workers: int) -> list[StartTrouble]:
        """What is wrong with pods that wait."""
        waiting = [pod for pod in pods if not is_running(pod)]
        if not waiting and len(pods) >= workers:
            self._since = None
            return []
        if time.monotonic() - self._asked_at >= _LOOK_S:
            self._asked_at = time.monotonic()
            self._ask([self._job] if not pods else [pod["metadata"]["name"] for pod in waiting[:_ASKED_ABOUT]])
        troubles = [t for pod in waiting if (t := start_trouble(pod, self._events.get(pod["metadata"]["name"], ())))]
        if not pods and (trouble := event_trouble(self._events.get(self._job, ()))) is not None:
            troubles.append(trouble)
        if begun or not troubles or len(troubles) < len(pods):
            self._since = None
            return troubles
        self._since = self._since or time.monotonic()
        self._give_up(troubles[0], waiting, time.monotonic() - self._since)
        return troubles

    def _give_up(self, trouble: StartTrouble, waiting: Sequence[Json], waited_s: float) -> None:
        waits_s = _LASTING_S if trouble.lasting else _PASSING_S if trouble.volume else _SCALED_S
        if waited_s < max(waits_s, self._wait_s):
            return
        if trouble.lasting or trouble.volume:
            raise EngineRefused(f"No pod can start: {trouble}", hint=trouble.hint)
        if not trouble.awaits_node and waiting and (lack := self._lack_of_gpus(waiting[0])):
            raise EngineRefused(f"No pod can start: {lack}.", hint=trouble.hint)

    def _lack_of_gpus(self, pod: Json) -> str:
        """That no node has as many GPUs as a pod asks for; "" if one has, or nodes may not be listed."""
        limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
        for resource, wanted in limits.items():
            if resource in _OF_EVERY_NODE:
                continue
            try:
                most = most_gpus(self._api, resource)
            except (ApiRefused, EngineSilent):
                continue
            if most < int(wanted):
                return f"a pod asks for {wanted} {resource}, and no node has more than {most}"
        return ""

    def _ask(self, names: Sequence[str]) -> None:
        """Ask for the events of some objects only: a namespace may have thousands."""
        for name in names:
            with suppress(ApiRefused, EngineSilent):
                selected = f"involvedObject.name={name}"
                self._events[name], _ = self._api.items(self._api.path("events"), fieldSelector=selected)


def most_gpus(api: ClusterApi, resource: str) -> int:
    """How many GPUs the largest node has."""
    nodes, _ = api.items("/api/v1/nodes")
    return max((int((node["status"].get("allocatable") or {}).get(resource, 0)) for node in nodes), default=0)
