"""The pod, and what its options may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.engines.kubernetes.manifests import job_name, make_job, make_job_set, work_arguments
from shardmill.engines.kubernetes.options import PodOptions, read_pod_options
from shardmill.engines.kubernetes.pod import make_pod
from shardmill.plan.spec import Execution
from tests.support.libraries import needed

RUN = "s3://bucket/runs/wiki"
JOB_SETS = Path(__file__).parents[2] / "data" / "jobset.json"


def options(device: str = "auto", **given: Any) -> PodOptions:
    return read_pod_options(
        Execution(engine="kubernetes", device=device, engine_options={"image": "registry/shardmill:1", **given})
    )


def spec_of(**given: Any) -> dict[str, Any]:
    return dict(make_pod(options(**given), ["work", RUN], instance="wiki")["spec"])


def test_a_pod_may_do_nothing_that_a_worker_does_not_need() -> None:
    spec = spec_of()
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_pod_gets_the_gpus_it_asks_for_and_shared_memory_for_torch() -> None:
    spec = spec_of(gpus="2", memory="16Gi", cpu="4")
    resources = spec["containers"][0]["resources"]
    assert resources["limits"] == {"memory": "16Gi", "nvidia.com/gpu": "2"}
    assert resources["requests"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]
    assert "resources" not in spec_of(device="cpu")["containers"][0]


def test_a_pod_with_several_gpus_has_a_worker_on_each() -> None:
    assert work_arguments(RUN, options(gpus=4)) == ["work", RUN, "--device", "cuda", "--workers", "4"]
    assert work_arguments(RUN, options(device="cpu")) == ["work", RUN, "--device", "cpu"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("5Gi", {"emptyDir": {"sizeLimit": "5Gi"}}),
        ("pvc:models", {"persistentVolumeClaim": {"claimName": "models"}}),
        ("image:registry/m:1", {"image": {"reference": "registry/m:1", "pullPolicy": "IfNotPresent"}}),
    ],
)
def test_a_model_cache_is_a_volume(given: str, expected: dict[str, Any]) -> None:
    assert {"name": "cache", **expected} in spec_of(cache=given)["volumes"]


def test_credentials_come_by_name_alone() -> None:
    spec = spec_of(secret="bucket-keys", service_account="reader")
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]
    assert spec["serviceAccountName"] == "reader"


def test_placement_comes_from_the_options() -> None:
    spec = spec_of(selector="pool=gpu", tolerations="nvidia.com/gpu,spot=true:NoSchedule", spread="zone")
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]
    assert spec["topologySpreadConstraints"][0]["topologyKey"] == "zone"


@pytest.mark.parametrize(
    ("resource", "tolerated"),
    [
        ("nvidia.com/gpu", ["nvidia.com/gpu"]),
        ("nvidia.com/mig-1g.10gb", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"]),
        ("nvidia.com/gpu.shared", ["nvidia.com/gpu.shared", "nvidia.com/gpu"]),
        ("amd.com/gpu", ["amd.com/gpu"]),
    ],
)
def test_a_slice_of_a_gpu_tolerates_the_taint_of_whole_ones(resource: str, tolerated: list[str]) -> None:
    spec = spec_of(gpu_resource=resource)
    assert [each["key"] for each in spec["tolerations"]] == tolerated
    assert spec["containers"][0]["resources"]["limits"] == {resource: "1"}


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, None),
        ({"scratch": "50Gi"}, "50Gi"),
        ({"scratch": "50Gi", "cache": "20Gi"}, "71680Mi"),
        ({"scratch": "pvc:work", "cache": "20Gi"}, "20Gi"),
    ],
)
def test_folders_with_a_size_ask_for_a_node_with_the_room(given: dict[str, str], asked: str | None) -> None:
    resources = spec_of(memory="16Gi", **given)["containers"][0]["resources"]
    assert resources["requests"].get("ephemeral-storage") == asked
    assert "ephemeral-storage" not in resources["limits"]


def test_tables_of_a_spec_are_read_as_text_is() -> None:
    tables = options(selector={"pool": "gpu"}, tolerations=[{"key": "spot", "operator": "Exists"}])
    assert tables == options(selector="pool=gpu", tolerations="spot")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image": ""}, "--image"),
        ({"image": "not an image"}, "image=not an image"),
        ({"gpus": "two"}, "gpus=two"),
        ({"gpus": 1, "device": "cpu"}, "--device is cpu"),
        ({"device": "all"}, "--device all"),
        ({"memory": "16 GB"}, "memory=16 GB"),
        ({"cache": "nfs:there"}, "cache=nfs:there"),
        ({"scratch": "image:a/b"}, "scratch"),
        ({"grace_s": 5}, "grace_s=5"),
        ({"namespace": "Not_A_Name"}, "namespace=Not_A_Name"),
        ({"selector": "gpu"}, "selector=gpu"),
        ({"tolerations": "a=b:Never"}, "tolerations=a=b:Never"),
        ({"env": "AWS_SECRET_ACCESS_KEY=abc"}, "kubectl create secret"),
        ({"env": {"A B": "c"}}, "A B"),
        ({"pull_policy": "Sometimes"}, "pull_policy=Sometimes"),
        ({"imagge": "x"}, "imagge"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        options(**given)
    assert words in str(refused.value)


def test_a_secret_value_is_not_repeated() -> None:
    with pytest.raises(SpecError) as refused:
        options(env="DB_PASSWORD=hunter2")
    assert "hunter2" not in str(refused.value)


def test_the_name_of_a_job_fits_and_differs_by_run() -> None:
    names = {job_name(f"s3://bucket/{folder}/{'Very long name ' * 9}") for folder in "abc"}
    assert len(names) == 3
    assert all(len(name) <= 45 for name in names)
    assert job_name("s3://b/...").startswith("run-")


def test_a_job_is_ended_by_the_first_worker_that_is_done() -> None:
    spec = make_job(RUN, options(), 8)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["maxFailedIndexes"]) == (8, 8, 7)
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    actions = [
        (rule["action"], (rule.get("onExitCodes") or {}).get("values")) for rule in spec["podFailurePolicy"]["rules"]
    ]
    assert actions == [("FailJob", [2]), ("Ignore", None), ("Ignore", [75]), ("Count", [0])]
    assert spec["template"]["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of a kind of object as `--validate=strict` reads it: what it does not name may not be."""
    made = {name: closed(each) if isinstance(each, dict) else each for name, each in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made |= {"additionalProperties": False}
    return made


def test_a_job_set_has_the_same_job_and_names_that_fit() -> None:
    jsonschema = needed("jsonschema")
    (version,) = json.loads(JOB_SETS.read_text())["spec"]["versions"]
    schema = closed(version["schema"]["openAPIV3Schema"])
    made = make_job_set(f"s3://bucket/{'Very long name ' * 9}", options(labels="kueue.x-k8s.io/queue-name=team"), 999)
    metadata = made.pop("metadata")
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    jsonschema.validate(made, schema)
    (only,) = made["spec"]["replicatedJobs"]
    assert len(f"{metadata['name']}-{only['name']}-0-998-abcde") <= 63
    job = make_job(f"s3://bucket/{'Very long name ' * 9}", options(labels="kueue.x-k8s.io/queue-name=team"), 999)
    ttl = made["spec"]["ttlSecondsAfterFinished"]
    assert {**only["template"]["spec"], "ttlSecondsAfterFinished": ttl} == job["spec"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**made, "spec": {**made["spec"], "replicas": 1}}, schema)
