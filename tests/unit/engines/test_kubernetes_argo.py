"""What Argo needs of us that no cluster is needed for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.libraries import needed

needed("lightkube")

from shardmill.core.errors import EngineRefused, SpecError  # noqa: E402
from shardmill.engines.kubernetes.api import ClusterApi  # noqa: E402
from shardmill.engines.kubernetes.argo import NODE_BYTES  # noqa: E402
from shardmill.engines.kubernetes.render import render  # noqa: E402
from shardmill.engines.kubernetes.workflow import ArgoOptions, RunWorkflow, WorkflowPlacement  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from tests.support.argo_reader import ArgoReader, Unreadable  # noqa: E402

RECORDED = Path(__file__).parents[2] / "data" / "argo" / "recorded.json"


def test_what_the_reader_does_not_know_it_refuses() -> None:
    spec = {"entrypoint": "a", "templates": [{"name": "a", "script": {"image": "b"}}]}
    with pytest.raises(Unreadable, match="script"):
        ArgoReader(cast(ClusterApi, None), {"metadata": {"name": "w"}, "spec": spec}, None, lambda n, p: None)


def test_the_bytes_of_a_node_are_those_recorded() -> None:
    recorded = json.loads(RECORDED.read_text())["embed"]
    assert recorded["bytes"] / len(recorded["nodes"]) <= NODE_BYTES


def _workflow(*nodes: tuple[str, str, str, str]) -> dict[str, Any]:
    names = ("templateName", "type", "phase", "message")
    return {
        "spec": {},
        "status": {
            "phase": "Running",
            "nodes": {str(i): dict(zip(names, n, strict=True)) for i, n in enumerate(nodes)},
        },
    }


def _placement(tmp_path: Path) -> WorkflowPlacement:
    api = SimpleNamespace(namespace="ml", path=lambda *parts: "/".join(parts))
    return WorkflowPlacement(RunWorkflow(cast(ClusterApi, api), str(tmp_path / "run")), ArgoOptions())


def test_the_bar_says_which_step_runs_after_the_last_shard(tmp_path: Path) -> None:
    placement = _placement(tmp_path)
    pod = {"status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}}
    working = [("work", "Pod", "Running", "")]
    assert placement._judge(_workflow(*working), [pod])
    assert placement.note == ""
    merging = [("work", "Pod", "Succeeded", ""), ("merge", "Pod", "Running", ""), ("embed", "DAG", "Running", "")]
    assert placement._judge(_workflow(*merging), [pod])
    assert placement.note.endswith(": step merge, 1 running")


def test_an_account_that_may_not_report_is_named_at_once(tmp_path: Path) -> None:
    said = (
        "Error (exit code 64): workflowtaskresults.argoproj.io is forbidden: "
        'User "system:serviceaccount:ml:default" cannot create resource'
    )
    with pytest.raises(EngineRefused, match='"system:serviceaccount:ml:default" cannot create') as refused:
        _placement(tmp_path)._judge(_workflow(("work", "Pod", "Error", said)), [])
    assert "kubectl apply -f -" in refused.value.hint


def _planned(**execution: object) -> list[str]:
    work = {"source": "s3://b/in.jsonl", "text": "body", "where": "stars <= 2", "params": {"model": "s3://b/m"}}
    spec = make_spec(work, {"workers": 3, "engine_options": {"image": "example.org/x:1"}, **execution})
    steps = render("argo", spec, "s3://b/run")[-1]["spec"]["templates"]
    (words,) = [step["container"]["args"] for step in steps if step["name"] == "plan"]
    return list(words)


def test_a_template_says_all_that_the_spec_says() -> None:
    words = _planned(shard_bytes=5_000_000, batch_tokens=2048, precision="float32")
    assert {"--where=stars <= 2", "--shard-bytes=5000000", "--batch-tokens=2048", "--precision=float32"} <= {*words}


def test_what_a_template_has_no_place_for_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"no place for stuck_s of \[execution\]"):
        _planned(stuck_s=5.0)


def test_steps_without_a_gpu_ask_for_little_and_leave_gpu_nodes_alone() -> None:
    pods = {"image": "example.org/x:1", "memory": "64Gi", "cpu": "8"}
    spec = make_spec({"source": "s3://b/in", "text": "t"}, {"workers": 2, "engine_options": pods})
    made = render("argo", spec, "s3://b/run")[-1]["spec"]
    steps = {step["name"]: step for step in made["templates"] if "container" in step}
    assert "tolerations" not in made
    assert [name for name, step in steps.items() if "tolerations" in step] == ["work"]
    asked = {name: step["container"]["resources"]["requests"] for name, step in steps.items()}
    assert asked.pop("work") == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    assert all(each == {"cpu": "1", "memory": "4Gi"} for each in asked.values())
