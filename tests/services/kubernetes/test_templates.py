"""Every shipped template of Argo through faults, in pods that have the packages of the image and no others."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardmill.engines.kubernetes.api import ClusterApi
from shardmill.engines.kubernetes.argo import EMBED, EMBED_PARALLEL, SUMMARIZE, make_rights
from shardmill.engines.kubernetes.tuning import TUNE, TUNE_PIPELINE
from shardmill.run import Run
from shardmill.store import open_store
from tests.support.argo_reader import ArgoReader, Json
from tests.support.image import SITE, site_of_image
from tests.support.kube_installed import GPU, put_keys, shrink
from tests.support.libraries import needed
from tests.support.together import Ends, Scenario, TestSite, run_together
from tools.manifests import make_objects

pytestmark = [pytest.mark.services, pytest.mark.by_command, pytest.mark.usefixtures("steady")]
needed("torch")
needed("optuna")
from tests.support.training import a_model, topic_pairs  # noqa: E402

NIGHTLY = f"{EMBED_PARALLEL}-nightly"
PATHS = "/opt/image:/opt/src:/opt/site-packages"
# A step that is told to stop, and one that waits for its end.
EXITS = "import sys; sys.exit(75)"
WAITS = "import time; time.sleep(600)"
STUDY = """
[work]
task = "shardmill.testing:FakeLong"
trials = 4
generation = 2
metrics = { sum = "maximize" }
[space]
steps = { low = 1, high = 6 }
"""
STUDY_OF_TRAINING = """
[work]
task = "train"
source = "FOLDER/pairs.jsonl"
trials = 2
metrics = { "mrr@10" = "maximize" }
[work.params]
model = "FOLDER/model"
columns = ["question", "passage"]
held_out = 0.2
[space]
learning_rate = { low = 1e-4, high = 1e-2, log = true }
"""


SHIPPED: dict[str, Json] = {
    each["metadata"]["name"]: each
    for made in map(make_objects().get, ("argo", "nightly"))
    for each in made or ()
    if "Workflow" in each["kind"]
}


def write_site(cluster: Any, namespace: str) -> None:
    """What the two images have, for pods that have all that this machine has."""
    for name, light in (("worker", False), ("light", True)):
        place = {"name": f"image-{name}", "namespace": namespace}
        cluster.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": {SITE: site_of_image(light=light)}}
        )


def fitted(cluster: Any, faults: dict[str, str]) -> Callable[[str, Json], None]:
    """Pods for one small machine, with the packages of their image; `faults` are what some of them do instead."""

    def inject(name: str, pod: Json) -> None:
        spec = pod["spec"]
        (container,) = spec["containers"]
        kind = "worker" if GPU in container["resources"]["limits"] else "light"
        shrink(spec)
        container["resources"]["requests"]["memory"] = "300Mi"
        container["image"] = cluster.image
        container["env"] = [*container["env"], {"name": "PYTHONPATH", "value": PATHS}]
        container["volumeMounts"] = [*container["volumeMounts"], {"name": "image", "mountPath": "/opt/image"}]
        spec["volumes"] = [*spec["volumes"], {"name": "image", "configMap": {"name": f"image-{kind}"}}]
        if script := faults.get(name):
            container |= {"command": ["python3", "-c", script], "args": []}

    return inject


def carry_out(site: TestSite, name: str, given: dict[str, str], step: str) -> ArgoReader:
    """The workflow of a template. One step ends with 75, is evicted, and is deleted, before it is let through."""
    template: Json | None = SHIPPED[name]
    arguments = {"parameters": [{"name": key, "value": value} for key, value in given.items()]}
    spec: Json = {"workflowTemplateRef": {"name": name}, "arguments": arguments}
    if "workflowSpec" in SHIPPED[name]["spec"]:
        spec = {**SHIPPED[name]["spec"]["workflowSpec"]}
        known = {each["name"]: each.get("value", "") for each in spec["arguments"]["parameters"]}
        spec["arguments"] = {"parameters": [{"name": k, "value": v} for k, v in (known | given).items()]}
        template = None
    workflow = {"kind": "Workflow", "metadata": {"name": name, "namespace": site.namespace}, "spec": spec}
    retried = f"{name}.{step}" if step else name
    faults = {f"{retried}(0)": EXITS, f"{retried}(1)": WAITS, f"{retried}(2)": WAITS}
    reader = ArgoReader(ClusterApi(namespace=site.namespace), workflow, template, fitted(site.cluster, faults))
    reader.evicts.add(f"{step}(1)")
    reader.deletes.add(f"{step}(2)")
    seen = lambda: [(n.name, n.phase, n.message) for n in reader.nodes.values()]  # noqa: E731
    assert reader.run().phase == "Succeeded", seen()
    assert [each.phase for each in reader.nodes[retried].children] == ["Failed", "Failed", "Error", "Succeeded"], seen()
    assert reader.nodes[f"{name}.onExit"].phase == "Succeeded", seen()
    return reader


def put_lines(place: str, name: str, rows: list[dict[str, Any]]) -> str:
    open_store(place).put(name, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return f"{place}/{name}"


def put_model(place: str, model: Path) -> str:
    for file in (each for each in model.rglob("*") if each.is_file()):
        open_store(place).put(f"model/{file.relative_to(model).as_posix()}", file.read_bytes())
    return f"{place}/model"


def given_texts(site: TestSite, place: str) -> dict[str, str]:
    model = put_model(place, a_model(site.folder / place.rpartition("/")[2] / "model"))
    rows = [{"id": i, "text": f"river castle {i}. The engine of the market is {i}. A poem."} for i in range(40)]
    given = {"source": put_lines(place, "in.jsonl", rows), "text": "text", "id": "id", "model": model}
    return {**given, "run": f"{place}/run", "merged": f"{place}/merged.parquet"}


def whole(run: str, rows: int) -> bool:
    done = Run(run)
    return (
        (done.status().state, done.ledger.state.look().state) == ("complete", "done")
        and done.table(["id"]).num_rows == rows
        and done.verify(report=False).verified
    )


def of_one_pod(site: TestSite, *, name: str) -> None:
    given = given_texts(site, f"{site.bucket}/{site.namespace}/{name}")
    carry_out(site, name, given, "")
    assert whole(given["run"], 40)
    assert open_store(given["run"].rpartition("/")[0]).head("merged.parquet") is not None


def of_several(site: TestSite) -> None:
    given = given_texts(site, f"{site.bucket}/{site.namespace}/parallel")
    carry_out(site, EMBED_PARALLEL, {**given, "workers": "2"}, "work(1:1)")
    assert whole(given["run"], 40)


def of_a_night(site: TestSite) -> None:
    place = f"{site.bucket}/{site.namespace}/nightly"
    given = given_texts(site, place)
    reader = carry_out(site, NIGHTLY, {**given, "workers": "2"}, "plan")
    night = "-".join(reader.values[f"workflow.creationTimestamp.{part}"] for part in "Ymd")
    assert whole(f"{given['run']}/{night}", 40)
    assert open_store(place).head(f"merged.parquet/{night}.parquet") is not None


def of_a_study(site: TestSite) -> None:
    place = f"{site.bucket}/{site.namespace}/study"
    open_store(place).put("study.toml", STUDY.encode())
    carry_out(site, TUNE, {"study": f"{place}/study.toml", "run": f"{place}/run", "workers": "2"}, "work(1:1)")
    assert [trial.state for trial in Run(f"{place}/run").study().trials] == ["complete"] * 4


def of_the_pipeline(site: TestSite) -> None:
    place = f"{site.bucket}/{site.namespace}/pipeline"
    put_model(place, a_model(site.folder / "pipeline" / "model"))
    put_lines(place, "pairs.jsonl", topic_pairs(40))
    open_store(place).put("study.toml", STUDY_OF_TRAINING.replace("FOLDER", place).encode())
    passages = [{"id": f"p{i}", "text": pair["passage"]} for i, pair in enumerate(topic_pairs(40))]
    questions = [
        {"id": f"q{i}", "question": p["question"], "passage_id": f"p{i}"} for i, p in enumerate(topic_pairs(8))
    ]
    asked = put_lines(place, "questions.jsonl", questions)
    given = {"study": f"{place}/study.toml", "source": put_lines(place, "passages.jsonl", passages), "text": "text"}
    given |= {"questions": asked, "gold": asked, "workers": "1"}
    given |= {name: f"{place}/{name}" for name in ("run", "best", "passages", "answers")}
    carry_out(site, TUNE_PIPELINE, given, "train")
    assert Run(given["answers"]).status().state == "complete"
    assert Run(given["passages"]).verify(report=False).verified


SCENARIOS: dict[str, Scenario] = {
    EMBED: partial(of_one_pod, name=EMBED),
    SUMMARIZE: partial(of_one_pod, name=SUMMARIZE),
    EMBED_PARALLEL: of_several,
    NIGHTLY: of_a_night,
    TUNE: of_a_study,
    TUNE_PIPELINE: of_the_pipeline,
}


@pytest.fixture(scope="module")
def ends(site: TestSite) -> Any:
    site.cluster.apply(*make_rights(site.namespace))
    put_keys(site)
    write_site(site.cluster, site.namespace)
    with run_together(site, *SCENARIOS.values()) as ends:
        yield ends


def test_no_template_is_left_out() -> None:
    assert SHIPPED.keys() == SCENARIOS.keys()


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_template_does_its_run_in_the_packages_of_the_image(ends: Ends, name: str) -> None:
    ends[SCENARIOS[name]].result()
