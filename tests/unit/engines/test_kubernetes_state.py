"""What pods and Jobs say of themselves, as the cluster writes it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.libraries import needed

needed("lightkube")

from shardmill.engines.kubernetes.state import (  # noqa: E402
    describe,
    end_of_pod,
    job_end,
    start_trouble,
)


def pod(
    phase: str = "Running", state: dict[str, Any] | None = None, *, deleted: bool = False, **more: Any
) -> dict[str, Any]:
    statuses = [{"name": "worker", "state": state}] if state is not None else []
    metadata = {"name": "wiki-0-abcde", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})}
    return {"metadata": metadata, "status": {"phase": phase, "containerStatuses": statuses, **more}}


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


TARGET = [{"type": "DisruptionTarget", "status": "True"}]


@pytest.mark.parametrize(
    ("seen", "status", "disrupted"),
    [
        (pod("Succeeded", ended(0, "Completed")), 0, False),
        (pod("Failed", ended(137)), -9, False),
        (pod("Failed", ended(137, "OOMKilled")), -9, False),
        (pod("Failed", ended(2)), 2, False),
        # A plain delete: no condition says so, only the time of the deletion.
        (pod("Failed", ended(75), deleted=True), 75, True),
        (pod("Failed", ended(143), conditions=TARGET), -15, True),
        # A node that was lost: nothing is known of the container.
        (pod("Failed", None, conditions=TARGET, reason="NodeLost"), -9, True),
        # Out of memory counts even if the pod is being deleted at the same time.
        (pod("Failed", ended(137, "OOMKilled"), deleted=True), -9, False),
    ],
)
def test_the_end_of_a_pod(seen: dict[str, Any], status: int, disrupted: bool) -> None:
    end = end_of_pod(seen)
    assert end is not None
    assert (end.status, end.disrupted) == (status, disrupted)


def test_a_pod_that_runs_has_not_ended_unless_it_is_gone() -> None:
    running = pod(state={"running": {}})
    assert end_of_pod(running) is None
    assert end_of_pod(running, gone=True) is not None


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return pod("Pending", {"waiting": {"reason": reason, "message": message}})


@pytest.mark.parametrize(
    ("seen", "events", "words", "lasting"),
    [
        (waiting("ErrImagePull", "no such host"), [], "ErrImagePull: no such host", True),
        (waiting("CreateContainerConfigError", 'secret "x" not found'), [], 'secret "x" not found', True),
        (waiting("ContainerCreating"), [{"reason": "FailedMount", "message": "timed out"}], "FailedMount", False),
    ],
)
def test_why_a_pod_does_not_start(
    seen: dict[str, Any], events: list[dict[str, Any]], words: str, lasting: bool
) -> None:
    trouble = start_trouble(seen, events)
    assert trouble is not None
    assert words in str(trouble)
    assert trouble.lasting is lasting
    assert trouble.hint


def test_a_node_that_an_autoscaler_makes_is_worth_waiting_for() -> None:
    lacks = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
    unplaced = pod("Pending", None, conditions=lacks)
    assert "0/3 nodes" in str(start_trouble(unplaced))
    assert "a node is being made" in str(start_trouble(unplaced, [{"reason": "TriggeredScaleUp"}]))


@pytest.mark.parametrize("state", [{"waiting": {"reason": "ContainerCreating"}}, {"running": {}}, ended(1)])
def test_a_pod_on_its_way_is_in_no_trouble(state: dict[str, Any]) -> None:
    assert start_trouble(pod("Pending", state)) is None


def test_the_end_of_a_job() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 2"}
    assert job_end({"status": {"conditions": [failed]}}) == ("Failed", "PodFailurePolicy: exit code 2")
    assert job_end({"status": {}}) == ("", "")
    assert job_end({"status": {"conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]}})[0] == ""


def test_a_job_in_one_line() -> None:
    trouble = start_trouble(waiting("ErrImagePull"))
    assert trouble is not None
    running = pod(state={"running": {}})
    assert describe("wiki", [running, waiting("ErrImagePull")], [trouble], False) == (
        "kubernetes job wiki: 1 running, 1 pending (ErrImagePull)"
    )
    assert "suspended" in describe("wiki", [], [], True)
