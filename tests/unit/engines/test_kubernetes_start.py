"""What cannot start is named within a minute, and what may still come is waited for. The clock is played."""

from __future__ import annotations

from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardmill.core.errors import EngineRefused
from tests.support.libraries import needed

needed("lightkube")

from shardmill.engines.kubernetes import start as start_module  # noqa: E402
from shardmill.engines.kubernetes.api import ClusterApi  # noqa: E402
from shardmill.engines.kubernetes.start import StartWatch  # noqa: E402

# What a command needs before its pods are made, and after they cannot start, is no part of the wait.
SPARE_S = 25
LOOKS_EVERY_S = 2


def unplaced(message: str, gpus: int = 1) -> dict[str, Any]:
    lacks = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    limits = {"cpu": "500m", "memory": "8Gi", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": "wiki-0"},
        "spec": {"containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": "Pending", "conditions": [lacks]},
    }


def waiting(reason: str = "ContainerCreating") -> dict[str, Any]:
    state = {"name": "worker", "state": {"waiting": {"reason": reason}}}
    return {"metadata": {"name": "wiki-0"}, "status": {"phase": "Pending", "containerStatuses": [state]}}


class _Cluster:
    """One node with four GPUs, and events."""

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = list(events)

    def path(self, kind: str) -> str:
        return f"/{kind}"

    def items(self, path: str, **_: Any) -> tuple[list[Any], str]:
        node = {"status": {"allocatable": {"nvidia.com/gpu": "4"}}}
        return ([node] if "nodes" in path else self._events), "1"


def gives_up_after(
    monkeypatch: pytest.MonkeyPatch, pods: list[Any], *events: dict[str, Any], wait_s: int = 0
) -> float | None:
    """Seconds until it raises; None if it has not within three minutes."""
    watch = StartWatch(cast(ClusterApi, _Cluster(*events)), "wiki", wait_s)
    for now in count(LOOKS_EVERY_S, LOOKS_EVERY_S):
        monkeypatch.setattr(start_module, "time", SimpleNamespace(monotonic=partial(float, now)))
        try:
            watch.look(pods, False, 1)
        except EngineRefused:
            return float(now)
        if now > 180:
            break
    return None


QUOTA = {"reason": "FailedCreate", "message": "exceeded quota: none"}
MOUNT = {"reason": "FailedMount", "message": 'MountVolume.SetUp failed: secret "x" not found'}
# What follows is about preemption: it is no claim that is not found.
UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
MISSING = '0/1 nodes are available: persistentvolumeclaim "x" not found. not found'


@pytest.mark.parametrize(
    ("pods", "events"),
    [
        ([waiting("ErrImagePull")], []),
        ([waiting("CreateContainerConfigError")], []),
        ([waiting()], [MOUNT]),
        ([], [QUOTA]),
        ([unplaced(UNBOUND)], []),
        ([unplaced(MISSING)], []),
        ([unplaced("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", 99)], []),
    ],
)
def test_what_cannot_start_is_named_within_a_minute(
    monkeypatch: pytest.MonkeyPatch, pods: list[Any], events: list[Any]
) -> None:
    waited_s = gives_up_after(monkeypatch, pods, *events)
    assert waited_s is not None
    assert waited_s <= 60 - SPARE_S
    assert (gives_up_after(monkeypatch, pods, *events, wait_s=100) or 0) >= 100


def test_a_claim_that_does_not_exist_is_named_as_soon_as_a_missing_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = gives_up_after(monkeypatch, [waiting("CreateContainerConfigError")])
    assert gives_up_after(monkeypatch, [unplaced(MISSING)]) == secret
    # One that exists may get its volume a moment later.
    assert secret is not None
    assert (gives_up_after(monkeypatch, [unplaced(UNBOUND)]) or 0) > 2 * secret


@pytest.mark.parametrize("event", [{"reason": "TriggeredScaleUp"}, {"reason": "FailedScheduling"}])
def test_a_cluster_that_is_full_or_grows_is_waited_for(monkeypatch: pytest.MonkeyPatch, event: dict[str, str]) -> None:
    full = unplaced("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", 4)
    assert gives_up_after(monkeypatch, [full], event) is None
