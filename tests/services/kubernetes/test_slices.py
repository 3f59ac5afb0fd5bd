"""Slices of GPUs and shared ones on the real kubelet: pods get what they ask for, and no more than there is."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from shardmill import prepare
from shardmill.engines.kubernetes.manifests import job_name, make_job
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.pod import make_pod
from tests.support.cli import Cli
from tests.support.engine_contract import assert_complete
from tests.support.kube_cluster import SECRET, watch_for
from tests.support.kube_nodes import forget, name_of_node
from tests.support.kube_runs import assert_committed_once, put_source, spec_of
from tests.support.libraries import needed
from tests.support.together import TestSite

pytestmark = [pytest.mark.services, pytest.mark.by_command, pytest.mark.usefixtures("steady")]
needed("grpc")
from tests.support.device_plugin import FOLDER, VISIBLE, device_plugin  # noqa: E402

MIG, SHARED = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
SLICES = ("MIG-1111-0", "MIG-1111-1")
# The plug-in shares one GPU among three.
REPLICAS = ("GPU-2222::0", "GPU-2222::1", "GPU-2222::2")
TELLS = f"import os, time; print(os.environ['{VISIBLE}'], flush=True); time.sleep(600)"


def _place(site: TestSite, resource: str, names: list[str]) -> None:
    """Pods that tell what they were given."""
    options = PodOptions(site.cluster.image, site.namespace, gpu_resource=resource, memory="64Mi", grace_s=15)
    for name in names:
        pod = make_pod(options, [], instance=name)
        pod["spec"]["containers"][0] |= {"command": ["python3", "-c", TELLS]}
        pod["metadata"] |= {"name": name, "namespace": site.namespace}
        site.cluster.apply({"apiVersion": "v1", "kind": "Pod", **pod})


def _said(site: TestSite, name: str) -> str:
    def ask() -> str:
        status = site.cluster.json("-n", site.namespace, "get", "pod", name)["status"]
        running = status["phase"] == "Running"
        return site.cluster.kubectl("-n", site.namespace, "logs", name, check=False).strip() if running else ""

    return str(watch_for(ask))


def test_pods_get_the_slices_that_they_ask_for(site: TestSite, shardmill: Cli) -> None:
    cluster = site.cluster
    if cluster.folder is None:
        pytest.skip("the kubelet of another machine does not see a plug-in of this one")
    assert FOLDER.is_dir()
    source = put_source(site.bucket, 300)
    place = f"{source}-slices"
    run = prepare(spec_of(source, 0.02, workers=2, device="cpu"), place)
    run.ledger.state.want("anna@desk")
    with ExitStack() as stack:
        for resource, devices in ((MIG, SLICES), (SHARED, REPLICAS)):
            stack.enter_context(device_plugin(resource, devices))
            stack.callback(forget, cluster, name_of_node(cluster), [resource])
        node = ("get", "node", name_of_node(cluster))
        watch_for(lambda: cluster.json(*node)["status"]["allocatable"].get(SHARED) == "3")
        watch_for(lambda: cluster.json(*node)["status"]["allocatable"].get(MIG) == "2")

        given = ["--namespace", site.namespace, "--image", cluster.image, f"--set=secret={SECRET}"]
        checked = shardmill("kubernetes", "check", *given, f"--set=gpu_resource={MIG}", "--set=memory=400Mi")
        assert checked.status == 0, checked
        assert f"the largest node has 2 {MIG}, a pod asks for 1" in checked.out

        # The workers of a run have a slice each. There is no device behind it, so they use the CPU.
        options = PodOptions(cluster.image, site.namespace, gpu_resource=MIG, memory="400Mi", secret=SECRET)
        job = make_job(place, options, 2)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        container["args"] = ["cpu" if word == "cuda" else word for word in container["args"]]
        cluster.apply(job)
        watch_for(lambda: run.ledger.state.look().state == "done")
        assert_complete(run, 300)
        assert_committed_once(run.ledger)
        cluster.kubectl("-n", site.namespace, "delete", "job", job_name(place))

        _place(site, MIG, ["slice-0", "slice-1"])
        assert {_said(site, "slice-0"), _said(site, "slice-1")} == set(SLICES), "no slice is given twice"
        _place(site, MIG, ["slice-2"])
        _place(site, SHARED, ["shared-0", "shared-1"])
        assert {_said(site, "shared-0"), _said(site, "shared-1")} == {"GPU-2222"}, "two pods share one GPU"
        found = cluster.json("-n", site.namespace, "get", "pod", "slice-2")["status"]
        assert f"Insufficient {MIG}" in found["conditions"][0]["message"]
