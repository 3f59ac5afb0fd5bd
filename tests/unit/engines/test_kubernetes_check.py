"""What a check of a cluster says without one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardmill.core.errors import EngineRefused
from tests.support.libraries import needed

needed("lightkube")

from shardmill.engines.kubernetes import checking, start  # noqa: E402
from shardmill.engines.kubernetes.api import ClusterApi  # noqa: E402
from shardmill.engines.kubernetes.checking import _gpus, _judge_pod, find_fronts  # noqa: E402
from shardmill.engines.kubernetes.options import PodOptions, amount  # noqa: E402
from shardmill.engines.kubernetes.scaling import MACHINES, POOL_LABEL, make_node_pools  # noqa: E402
from shardmill.engines.kubernetes.state import PodEnd  # noqa: E402
from shardmill.plan.sizing.catalogue import load_catalogue  # noqa: E402


class _Offering:
    """An API server that offers kinds of objects, by group."""

    def __init__(self, **kinds: list[str]) -> None:
        self._kinds = kinds

    def find(self, path: str) -> dict[str, Any] | None:
        kinds = self._kinds.get(path.split("/")[2].partition(".")[0])
        return None if kinds is None else {"resources": [{"name": kind} for kind in kinds]}


def test_a_group_that_another_program_installed_is_no_front() -> None:
    """Argo CD has the group of Argo Workflows, and none of its kinds."""
    said = [fact.said for fact in find_fronts(cast(ClusterApi, _Offering(argoproj=["applications"])))]
    assert said == [
        "not installed: --engine argo cannot be used",
        "not installed: an autoscaled pool cannot be used",
    ]
    both = _Offering(argoproj=["applications", "workflowtemplates"], keda=["scaledjobs"])
    assert [fact.said for fact in find_fronts(cast(ClusterApi, both))] == ["installed", "installed"]


class _Empty(_Offering):
    """A cluster without a node that has GPUs, with pools of nodes."""

    def __init__(self, *pools: dict[str, Any]) -> None:
        super().__init__(karpenter=["nodepools"] if pools else [])
        self._pools = pools

    def ask(self, method: str, path: str, body: Any) -> Any:
        return {"status": {"allowed": True}}

    def items(self, path: str) -> tuple[list[Any], str]:
        return ([*self._pools] if path.endswith("/nodepools") else [{"status": {"allocatable": {"cpu": "4"}}}]), ""

    namespace = "ml"


def _said(api: _Empty, **options: Any) -> tuple[bool, str]:
    fact = _gpus(cast(ClusterApi, api), PodOptions("example.org/shardmill:1", **options))
    return fact.ok, fact.said


def test_nodes_that_a_pool_makes_are_waited_for() -> None:
    """From zero: no node has a GPU before the first pod asks for one."""
    pools = _Empty(*(each for each in make_node_pools("c", "r") if each["kind"] == "NodePool"))
    assert _said(pools) == (
        True,
        "the largest node has 0 nvidia.com/gpu, a pod asks for 1; "
        "the node pool shardmill-small-spot may make one that has them",
    )
    ok, said = _said(pools, selector={POOL_LABEL: "shardmill-large", "topology.kubernetes.io/zone": "a"})
    assert ok
    assert "the node pool shardmill-large-spot may" in said


def test_a_limit_of_a_pool_is_a_number_of_gpus() -> None:
    pool = make_node_pools("c", "r")[1]
    pool["spec"]["limits"] = {"nvidia.com/mig-1g.10gb": "2"}
    assert _said(_Empty(pool), gpu_resource="nvidia.com/mig-1g.10gb", gpus=2)[0]
    assert not _said(_Empty(pool), gpu_resource="nvidia.com/mig-1g.10gb", gpus=3)[0]


def test_a_kind_that_no_pool_has_fails_at_once() -> None:
    pools = _Empty(*(each for each in make_node_pools("c", "r") if each["kind"] == "NodePool"))
    for wrong in (
        {"gpu_resource": "nvidia.com/gpuu"},
        {"gpus": 64},
        {"gpus": 2},
        {"selector": {POOL_LABEL: "shardmill-tiny"}},
    ):
        assert not _said(pools, **wrong)[0]
        # No waiting helps.
        assert _said(pools, **wrong, wait_s=600)[0] is False
    assert "nor may one of the 6 node pools make one" in _said(pools, gpu_resource="nvidia.com/gpuu")[1]
    # A cluster whose pools are of other machines may get its GPUs from elsewhere, but not kinds that nobody has.
    others = _Empty(_own_pool([_among("karpenter.k8s.aws/instance-family", "m7i")]))
    assert _said(others, wait_s=600)[0]
    assert not _said(others, wait_s=600, gpu_resource="nvidia.com/gpuu")[0]
    assert not _said(_Empty())[0]
    assert _said(_Empty(), wait_s=600) == (
        True,
        "the largest node has 0 nvidia.com/gpu, a pod asks for 1; waiting up to 600 s for one that has them",
    )


def _own_pool(requirements: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    template = {"metadata": {}, "spec": {"requirements": requirements, **spec}}
    return {"metadata": {"name": "own"}, "spec": {"template": template, "limits": {"cpu": "1k"}}}


def _among(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [*values]}


@pytest.mark.parametrize(
    ("pool", "options", "may"),
    [
        # Pools of a reader's own seldom limit GPUs.
        (_own_pool([_among("karpenter.k8s.aws/instance-gpu-count", "1", "4")]), {"gpus": 4}, True),
        (_own_pool([_among("karpenter.k8s.aws/instance-gpu-count", "1", "4")]), {"gpus": 8}, False),
        (_own_pool([_among("karpenter.k8s.aws/instance-gpu-name", "l4")]), {}, True),
        (_own_pool([], taints=[{"key": "nvidia.com/gpu"}]), {}, True),
        (_own_pool([_among("karpenter.k8s.aws/instance-family", "m7i")]), {}, False),
        (_own_pool([{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "DoesNotExist"}]), {}, False),
        (
            _own_pool([_among("team", "search", "ads")], taints=[{"key": "nvidia.com/gpu"}]),
            {"selector": {"team": "search"}},
            True,
        ),
        (
            _own_pool([_among("team", "ads")], taints=[{"key": "nvidia.com/gpu"}]),
            {"selector": {"team": "search"}},
            False,
        ),
        (
            {"metadata": {"name": "own"}, "spec": {"limits": {"nvidia.com/gpu": "1k"}}},
            {"gpus": 8},
            True,
        ),
    ],
)
def test_a_pool_of_the_readers_own_is_read_by_what_it_says(
    pool: dict[str, Any], options: dict[str, Any], may: bool
) -> None:
    assert _said(_Empty(pool), **options)[0] is may


def test_pools_make_no_machine_that_is_larger_than_a_worker() -> None:
    pools = [each for each in make_node_pools("c", "r") if each["kind"] == "NodePool"]
    wanted = [{r["key"]: r["values"] for r in each["spec"]["template"]["spec"]["requirements"]} for each in pools]
    machines = [{*each["node.kubernetes.io/instance-type"]} for each in wanted]
    assert all(each["karpenter.k8s.aws/instance-gpu-count"] == ["1"] for each in wanted)
    for one, labels in zip(machines, pools, strict=True):
        for other, others in zip(machines, pools, strict=True):
            mine, theirs = (p["spec"]["template"]["metadata"]["labels"][POOL_LABEL] for p in (labels, others))
            assert (one == other) if mine == theirs else one.isdisjoint(other)


def test_a_worker_fits_on_the_cheapest_machine_of_the_estimate() -> None:
    """It has 4 cores and 16 GiB, of which the hypervisor, the kubelet and agents take their part."""
    from tools.manifests import CPU, MEMORY

    chips = [chip for chip in load_catalogue().listed if chip.usd is not None and chip.name != "CPU"]
    cheapest = min(chips, key=lambda chip: chip.usd or 0.0)
    assert cheapest.instance.rpartition(" ")[2] in next(iter(MACHINES.values()))
    assert cheapest.cores == 4
    whole, agents = 16 * 1024, 600
    # MiB, as their documentation says: EKS by the number of pods, GKE by the memory. Both evict at 100 MiB.
    eks = whole * 0.925 - (255 + 11 * 29) - 100
    gke = whole - (0.25 * 4096 + 0.20 * 4096 + 0.10 * 8192) - 100
    assert amount(MEMORY) / 2**20 <= min(eks, gke) - agents
    assert amount(CPU) <= 3.92 - 1


def test_a_check_names_the_account_that_the_store_refuses() -> None:
    end = PodEnd(2, "Error", ("s3://b/runs: access is denied.",), disrupted=False)
    options = PodOptions("example.org/shardmill:1", service_account="shardmill-argo")
    facts = [*_judge_pod(end, options, "s3://b/runs")]
    assert not facts[-1].ok
    assert facts[-1].said.startswith("a pod of the account shardmill-argo: ")


def test_a_small_machine_on_demand_comes_before_a_large_one_on_spot() -> None:
    pools = [each for each in make_node_pools("c", "r") if each["kind"] == "NodePool"]
    ranked = sorted(pools, key=lambda each: -each["spec"]["weight"])
    assert [each["metadata"]["name"] for each in ranked][:3] == [
        "shardmill-small-spot",
        "shardmill-small-on-demand",
        "shardmill-medium-spot",
    ]
    assert len({each["spec"]["weight"] for each in pools}) == len(pools)


class _Starting(_Empty):
    """A cluster on which the pod of a check waits for a node, and what its autoscaler says of that."""

    def __init__(self, said: str) -> None:
        super().__init__()
        self._said = said

    def path(self, *parts: str) -> str:
        return "/".join(("", *parts))

    def items(self, path: str, **_: Any) -> tuple[list[Any], str]:
        if path == "/events":
            return [{"reason": "NotTriggerScaleUp", "message": self._said}], ""
        if path == "/pods":
            lacks = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes."}
            spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpuu": "1"}}}]}
            return [{"metadata": {"name": "check-0"}, "spec": spec, "status": {"conditions": [lacks]}}], ""
        return super().items(path)


@pytest.mark.parametrize(
    ("said", "waits_s"),
    [
        ("pod didn't trigger scale-up: 2 Insufficient nvidia.com/gpuu", 60),
        ("pod didn't trigger scale-up: 1 max node group size reached, 1 Insufficient nvidia.com/gpuu", 600),
        ("pod didn't trigger scale-up: 1 in backoff after failed scale-up", 600),
    ],
)
def test_a_check_heeds_what_the_autoscaler_says(said: str, waits_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is played."""
    now = [0.0]
    for module in (checking, start):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda s: _pass(now, s)))
    options = PodOptions("example.org/shardmill:1", gpu_resource="nvidia.com/gpuu", wait_s=600)
    with pytest.raises(EngineRefused) as told:
        checking._wait_for_pod(cast(ClusterApi, _Starting(said)), "check", options)
    assert waits_s - 10 <= now[0] <= waits_s + 10
    if waits_s < options.wait_s:
        assert f"The autoscaler: {said}" in str(told.value)


def _pass(now: list[float], seconds: float) -> None:
    now[0] += seconds
