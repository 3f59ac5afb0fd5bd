"""A training run whose processes are pods."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.store import open_store
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_runs import on_pods
from tests.support.libraries import needed

needed("torch")

from tests.support import training_gang as gang  # noqa: E402
from tests.support.training import a_model, topic_pairs  # noqa: E402

pytestmark = [pytest.mark.services, pytest.mark.by_command]


def test_a_training_run_loses_a_pod(
    cluster: KubeCluster, namespace: str, s3_server: str, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    folder, model = f"{s3_server}/{uuid.uuid4().hex}", a_model(tmp_path / "model")
    store = open_store(folder)
    store.put("pairs.jsonl", write_jsonl(topic_pairs(40)).read_bytes())
    for file in (each for each in model.rglob("*") if each.is_file()):
        store.put(f"model/{file.relative_to(model).as_posix()}", file.read_bytes())
    options = on_pods(cluster, namespace, memory="1Gi")["engine_options"]
    place = ["--engine", "kubernetes", *(f"--set={name}={value}" for name, value in options.items())]
    source, out = f"{folder}/pairs.jsonl", f"{folder}/run"
    started = gang.start_training(source, f"{folder}/model", out, tmp_path / "spec.toml", *place)
    try:
        lost = gang.wait_for_pair(out, started)
        cluster.kubectl(
            "-n", namespace, "delete", "pod", lost.members[1], "--grace-period=0", "--force", "--wait=false"
        )
        run = gang.finish_training(out, started, lost)
    finally:
        started.kill()
    gang.assert_same_losses(run, gang.train_undisturbed(source, str(model), tmp_path / "whole"))
