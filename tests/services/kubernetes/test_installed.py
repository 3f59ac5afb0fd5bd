"""What the chart and the overlays install, on a real cluster: pools and workflows that do a run to its end."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.engines.kubernetes.api import ClusterApi
from shardmill.engines.kubernetes.argo import EMBED
from shardmill.engines.kubernetes.monitor import MONITOR
from shardmill.engines.kubernetes.scaling import POOL
from shardmill.run import Run, start
from shardmill.store import open_store
from tests.support.argo_reader import ArgoReader
from tests.support.chart import merge_values, render_chart
from tests.support.kube_cluster import SECRET, watch_for
from tests.support.kube_installed import GPU, Json, fit, kustomize, name_image, put_keys, shrink, yaml
from tests.support.kube_nodes import labelled, node_on_demand
from tests.support.kube_pools import ensure_keda, want
from tests.support.kube_runs import assert_committed_once, put_source, spec_of
from tests.support.shipped import IMAGE, NODES, copy_for_reader
from tests.support.together import TestSite
from tools.manifests import OVERLAYS

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("steady")]

EARLIER = Path(__file__).parents[2] / "data" / "earlier" / "0.2.0" / "kubernetes" / "keda.yaml"


def _values(site: TestSite, folder: str) -> dict[str, Any]:
    name, _, tag = site.cluster.image.rpartition(":")
    registry, _, repository = name.rpartition("/")
    return {
        "folder": folder,
        "image": {"registry": registry, "repository": repository, "tag": tag},
        "secret": SECRET,
        "workers": {"scaler": "hpa", "device": "cpu", "cpu": "100m", "memory": "400Mi"},
    }


def _install(site: TestSite, objects: list[Json]) -> None:
    """As Helm and kubectl do."""
    site.cluster.kubectl("label", "namespace", site.namespace, "pod-security.kubernetes.io/enforce=restricted")
    put_keys(site)
    site.cluster.apply(*objects)


def _replaced(site: TestSite) -> int:
    """How many pods of the pool are there that the Deployment still counts, of its newest template."""
    status = site.cluster.json("-n", site.namespace, "get", "deployment", POOL)["status"]
    return int(status.get("updatedReplicas", 0)) if status.get("availableReplicas") else 0


def _verified(place: str) -> bool:
    return Run(place).verify(report=False).verified


@pytest.fixture
def own(site: TestSite) -> Any:
    """A namespace for one installation."""
    with site.cluster.namespace() as name:
        yield TestSite(site.cluster, name, site.bucket, site.folder)


def test_a_chart_that_is_installed_and_upgraded_does_a_run(own: TestSite) -> None:
    folder = f"{own.bucket}/{own.namespace}/installed"
    run = want(folder, "run", put_source(own.bucket, 1_200))
    objects = fit(own, render_chart(_values(own, folder), own.namespace))
    _install(own, objects)
    watch_for(lambda: run.leases.read())
    find = lambda: own.cluster.json("-n", own.namespace, "get", "deployment", MONITOR)["status"]  # noqa: E731
    watch_for(lambda: find().get("availableReplicas"))
    # The pool is replaced in the middle of the run: its pods give their shards back.
    values = merge_values(_values(own, folder), {"env": {"UPGRADED": "1"}})
    own.cluster.apply(*fit(own, render_chart(values, own.namespace)))
    watch_for(lambda: run.state.look().state == "done")
    assert_committed_once(run)
    assert _verified(f"{folder}/run")
    watch_for(lambda: _replaced(own) == 1)


@pytest.mark.by_command
def test_a_chart_with_keda_scales_from_zero_nodes_for_the_engine_pool(own: TestSite) -> None:
    """No worker, and no node for one: the backlog brings the first, and a pod that waits the second."""
    ensure_keda(own.cluster)
    folder, labels = f"{own.bucket}/{own.namespace}/keda", {"test/pool": own.namespace}
    workers = {"workers": {"scaler": "keda", "most": 2, "shardsPerWorker": 2, "nodeSelector": labels}}
    with node_on_demand(own.cluster, own.namespace, labels) as waited:
        _install(own, fit(own, render_chart(merge_values(_values(own, folder), workers), own.namespace)))
        spec = spec_of(put_source(own.bucket, 400), engine="pool", workers=2, device="cpu")
        run = start(spec, f"{folder}/run")
    assert any(name.startswith(POOL) for name in waited)
    assert_committed_once(run.ledger)
    assert _verified(f"{folder}/run")
    watch_for(lambda: not [pod for pod in own.cluster.pods(own.namespace) if _works(pod)])


def _works(pod: Json) -> bool:
    return pod["metadata"]["name"].startswith(POOL) and pod["status"]["phase"] in ("Pending", "Running")


@pytest.mark.by_command
def test_a_pool_of_an_earlier_version_is_upgraded_in_mid_run(own: TestSite, tmp_path: Path) -> None:
    """The objects that 0.2.0 installed are replaced by those of now: those who work end by themselves."""
    ensure_keda(own.cluster)
    folder = f"{own.bucket}/{own.namespace}/upgraded"
    text = EARLIER.read_text().replace("s3://my-bucket/runs", folder).replace("shardmill:0.2.0", own.cluster.image)
    text = text.replace("namespace: shardmill\n", f"namespace: {own.namespace}\n")
    before = [each for each in yaml.safe_load_all(text) if each["kind"] != "Namespace"]
    home = copy_for_reader(tmp_path / "kubernetes", own.namespace, folder)
    run = want(folder, "run", put_source(own.bucket, 1_600))

    def jobs() -> list[Json]:
        return list(own.cluster.json("-n", own.namespace, "get", "jobs")["items"])

    _install(own, fit(own, before))
    watch_for(lambda: len({lease.worker for lease in run.leases.read().values()}) > 1 and run.commits.shards())
    at_work = {each["metadata"]["uid"] for each in jobs() if each["status"].get("active")}
    own.cluster.apply(*fit(own, _with_image(own, kustomize(own.cluster, home / "overlays" / "keda"))))
    assert run.state.look().state != "done"
    watch_for(lambda: run.state.look().state == "done")
    assert_committed_once(run)
    assert _verified(f"{folder}/run")
    watch_for(lambda: not any(each["status"].get("active") for each in jobs()))
    assert at_work <= {each["metadata"]["uid"] for each in jobs() if each["status"].get("succeeded")}
    # The pool of now serves the next run.
    second = want(folder, "second", put_source(own.bucket, 200))
    watch_for(lambda: second.state.look().state == "done")
    assert_committed_once(second)


def _with_image(site: TestSite, objects: list[Json]) -> list[Json]:
    """The reader's image is on the cluster, or, where none may be added, the cluster's is in its place."""
    there = name_image(site.cluster, IMAGE)
    return list(json.loads(json.dumps(objects).replace(IMAGE, there)))


@pytest.mark.by_command
@pytest.mark.parametrize("overlay", [name for name, parts in OVERLAYS.items() if {"pool", "keda"} & {*parts}])
def test_an_overlay_does_a_run_as_it_is_installed(own: TestSite, tmp_path: Path, overlay: str) -> None:
    """With an image name of the reader's own, on a node with the labels of the cloud."""
    folder, parts = f"{own.bucket}/{own.namespace}/{overlay}", OVERLAYS[overlay]
    home = copy_for_reader(tmp_path / "kubernetes", own.namespace, folder)
    objects = fit(own, _with_image(own, kustomize(own.cluster, home / "overlays" / overlay)))
    run = want(folder, "run", put_source(own.bucket, 200))
    cloud = next((part for part in parts if part in NODES), "")
    with contextlib.ExitStack() as stack:
        if "keda" in parts:
            ensure_keda(own.cluster)
        if cloud:
            stack.enter_context(labelled(own.cluster, NODES[cloud]))
        _install(own, objects)
        try:
            watch_for(lambda: run.state.look().state == "done")
        finally:
            _forget_pools(own, objects)
    assert_committed_once(run)
    assert _verified(f"{folder}/run")


def _forget_pools(site: TestSite, objects: list[Json]) -> None:
    """Nodes are of no namespace, so they do not go with it."""
    for each in objects:
        if each["kind"] in ("NodePool", "EC2NodeClass"):
            site.cluster.kubectl("delete", each["kind"].lower(), each["metadata"]["name"], "--wait=false")


@pytest.mark.by_command
@pytest.mark.parametrize("installed", ["eks-argo", "gke-argo", "chart"])
def test_templates_of_argo_do_a_run_as_they_are_installed(own: TestSite, tmp_path: Path, installed: str) -> None:
    """With an image name of the reader's own, on nodes with the labels of the cloud, and as the shipped account."""
    folder, cloud = f"{own.bucket}/{own.namespace}", installed.partition("-")[0]
    if installed == "chart":
        values = {"workers": {"scaler": "none", "device": "cpu"}, "monitor": {"enabled": False}}
        given = merge_values(_values(own, folder), values, {"argo": {"enabled": True}})
        objects = render_chart(given, own.namespace)
    else:
        home = copy_for_reader(tmp_path / "kubernetes", own.namespace, folder)
        objects = _with_image(own, kustomize(own.cluster, home / "overlays" / installed))
    _install(own, objects)
    assert any(each["kind"] == "NodePool" for each in objects) == (cloud == "eks")
    (template,) = [each for each in objects if each["metadata"]["name"] == EMBED]
    try:
        if cloud in NODES:
            with labelled(own.cluster, NODES[cloud]):
                _embedded(own, template)
        else:
            _embedded(own, template)
    finally:
        _forget_pools(own, objects)


def _embedded(site: TestSite, template: Json) -> None:
    """A workflow of the template for vectors, whose pod has what the template says, but computes on the CPU."""
    from tests.support.tiny_models import MINILM

    store, folder = open_store(site.bucket), f"{site.namespace}/{template['metadata']['name']}"
    for file in (each for each in MINILM.rglob("*") if each.is_file()):
        store.put(f"{folder}/model/{file.relative_to(MINILM).as_posix()}", file.read_bytes())
    place, source = f"{site.bucket}/{folder}", put_source(site.bucket, 60)
    given = {"source": source, "text": "text", "id": "id", "model": f"{place}/model", "run": f"{place}/run"}
    given["merged"] = f"{place}/merged.parquet"
    spec = {
        "workflowTemplateRef": {"name": EMBED},
        "arguments": {"parameters": [{"name": name, "value": value} for name, value in given.items()]},
    }
    workflow = {"kind": "Workflow", "metadata": {"name": "embed", "namespace": site.namespace}, "spec": spec}
    # The scheduler finds it a GPU, and a node with the labels.
    keep = (GPU,) if GPU in json.dumps(template) else ()

    def inject(_: str, pod: Json) -> None:
        shrink(pod["spec"], keep)

    reader = ArgoReader(ClusterApi(namespace=site.namespace), workflow, template, inject)
    assert reader.run().phase == "Succeeded", [(n.name, n.phase, n.message) for n in reader.nodes.values()]
    assert Run(f"{place}/run").table(["id"]).num_rows == 60
    assert _verified(f"{place}/run")
