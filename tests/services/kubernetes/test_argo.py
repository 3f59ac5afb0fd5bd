"""Our Argo templates on a real cluster, by a reader that ends as Argo's rules say, beside what a real Argo recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardmill import prepare
from shardmill.core.errors import EngineRefused, EngineSilent
from shardmill.engines.kubernetes.api import ClusterApi
from shardmill.engines.kubernetes.argo import EMBED_PARALLEL, ArgoTask, make_rights, make_template
from shardmill.engines.kubernetes.manifests import job_name
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.tuning import TUNE, TUNE_PIPELINE, make_pipeline, make_tuning
from shardmill.engines.kubernetes.workflow import RunWorkflow, end_workers
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.store import open_store
from tests.support.argo_reader import ArgoReader, Json
from tests.support.kube_cluster import SECRET, watch_for
from tests.support.kube_runs import put_source, spec_of
from tests.support.libraries import needed
from tests.support.together import Ends, TestSite, run_together

pytestmark = [pytest.mark.services, pytest.mark.by_command]
needed("optuna")

DATA = Path(__file__).parents[2] / "data" / "argo"
TASK = ArgoTask(
    "light",
    "run",
    parallel=True,
    given=("text",),
    free=("id",),
    fixed=("--task=shardmill.testing:FakeTask", "--shard-bytes=2000"),
)
# A worker that says how it ends and ends so; and one that waits to be deleted.
EXITS = "import sys; sys.exit(int(sys.argv[1]))"
WAITS = "import time; time.sleep(600)"
STUDY = """
[work]
task = "shardmill.testing:FakeLong"
trials = 6
generation = 3
metrics = { sum = "maximize" }
[space]
steps = { low = 1, high = 6 }
"""
FAULTS = """
import sys, time
what, retries = sys.argv[1:]
if what == "usage":
    sys.exit(2)
if retries == "0" and what == "oom":
    bytearray(1 << 30)
if retries == "0" and what == "kill":
    sys.exit(137)
if retries == "0" and what == "evict":
    time.sleep(600)
"""


def _kubectl(site: TestSite) -> Callable[..., str]:
    return partial(site.cluster.kubectl, "-n", site.namespace)


def _api(site: TestSite) -> ClusterApi:
    return ClusterApi(namespace=site.namespace)


def _options(site: TestSite) -> PodOptions:
    """Light pods without a GPU that reach the bucket."""
    return PodOptions(site.cluster.image, site.namespace, gpus=0, memory="512Mi", secret=SECRET, grace_s=15)


def _workflow(name: str, namespace: str, template: str = TASK.name, **values: str) -> Json:
    parameters = [{"name": each, "value": value} for each, value in values.items()]
    metadata = {"name": name, "namespace": namespace}
    spec = {"workflowTemplateRef": {"name": template}, "arguments": {"parameters": parameters}}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": spec}


def _does(pod: Json, script: str, *words: str) -> None:
    pod["spec"]["containers"][0] |= {"command": ["python3", "-c", script], "args": list(words)}


def _seen(reader: ArgoReader) -> list[list[Any]]:
    """The nodes as the recordings list them, without the exit handler, which has no retries there."""
    nodes = reader.nodes.values()
    found = [[n.name.partition(".")[2], n.type, n.phase, n.message, n.exit_code] for n in nodes]
    return sorted((each for each in found if not each[0].startswith("onExit")), key=str)


def _recorded(which: str) -> list[list[Any]]:
    found = json.loads((DATA / "recorded.json").read_text())[which]["nodes"]
    return [each for each in found if each[0] != "onExit"]


def _as_recorded(site: TestSite) -> None:
    kubectl, options, s3_server = _kubectl(site), _options(site), site.bucket
    template = make_template(TASK, options)
    run, merged = f"{s3_server}/argo/run", f"{s3_server}/argo/merged.parquet"
    workflow = _workflow(
        "embed-2",
        options.namespace,
        source=put_source(s3_server, 300),
        text="text",
        id="id",
        run=run,
        merged=merged,
        workers="4",
    )
    for each, how in ((template, ()), (workflow, ("--dry-run=server",))):
        kubectl("apply", *how, "--validate=strict", "-f", "-", feed=json.dumps(each))

    def inject(name: str, pod: Json) -> None:
        if name.endswith("work(1:1)(0)"):
            _does(pod, EXITS, "75")
        if name.endswith("work(2:2)(0)"):
            _does(pod, WAITS)

    reader = ArgoReader(_api(site), workflow, template, inject)
    reader.evicts.add("work(2:2)(0)")
    assert reader.run().phase == "Succeeded"
    assert _seen(reader) == _recorded("embed")
    assert reader.nodes["embed-2.onExit"].phase == "Succeeded"
    done = Run(run)
    assert (done.status().state, done.ledger.state.look().state) == ("complete", "done")
    assert done.table(["id"]).num_rows == 300
    assert open_store(s3_server).head("argo/merged.parquet") is not None


def _ends_of_pods(site: TestSite) -> None:
    """Three workflows at once: the recorded faults; one worker that is refused; and only such workers."""
    options, s3_server = _options(site), site.bucket
    faults = yaml.safe_load((DATA / "faults.yaml").read_text())
    faults["metadata"]["namespace"] = options.namespace

    def fault(name: str, pod: Json) -> None:
        pod["spec"].pop("serviceAccountName", None)
        pod["spec"]["volumes"], pod["spec"]["containers"][0]["volumeMounts"] = [], []
        if pod["spec"]["containers"][0]["args"]:
            _does(pod, FAULTS, *pod["spec"]["containers"][0]["args"])

    def refused(all_of_them: bool) -> Callable[[str, Json], None]:
        def inject(name: str, pod: Json) -> None:
            if "onExit" not in name:
                _does(pod, EXITS, "2" if "work(1:1)" in name or (all_of_them and ".work(" in name) else "0")

        return inject

    template = make_template(TASK, options)
    ledger = _plan(f"{s3_server}/argo/refused")
    given = {"source": "-", "text": "text", "run": ledger.url, "merged": "-", "workers": "2"}
    readers = [
        ArgoReader(_api(site), faults, None, fault),
        ArgoReader(_api(site), _workflow("some", options.namespace, **given), template, refused(all_of_them=False)),
        ArgoReader(_api(site), _workflow("none", options.namespace, **given), template, refused(all_of_them=True)),
    ]
    readers[0].evicts.add("evict(0)")
    with ThreadPoolExecutor() as pool:
        ended = [root.phase for root in pool.map(ArgoReader.run, readers)]
    assert ended == ["Failed", "Succeeded", "Failed"]
    assert _seen(readers[0]) == _recorded("faults")
    some, none = readers[1].nodes, readers[2].nodes
    assert some["some.work"].phase == "Failed", "one exhausted worker is no failed run"
    assert some["some.work(1:1)"].message == "retryStrategy.expression evaluated to false"
    assert "none.merge" not in none
    assert none["none.onExit"].phase == "Succeeded"
    state = ledger.state.look()
    assert (state.state, state.cause) == ("failed", f"The workflow {options.namespace}/none ended as Failed.")


def _plan(place: str) -> Ledger:
    """A run that nobody has begun."""
    spec = make_spec({"source": "range:0:20", "text": "sample_id", "id": "sample_id", "task": "augment"})
    ledger = prepare(spec, place).ledger
    ledger.state.want("anna@desk")
    return ledger


def _by_its_engine(site: TestSite) -> None:
    kubectl, options, s3_server = _kubectl(site), _options(site), site.bucket
    template = make_template(replace(TASK, name=EMBED_PARALLEL), options)
    kubectl("apply", "-f", "-", feed=json.dumps(template))
    engine = {"namespace": options.namespace}
    spec = spec_of(put_source(s3_server, 60), engine="argo", workers=2, device="cpu", engine_options=engine)
    place = f"{s3_server}/argo/by-engine"
    name = job_name(place)

    def control() -> None:
        """What Argo's controller would do."""
        watch_for(lambda: name in kubectl("get", "workflows", "-o", "name"))
        workflow = json.loads(kubectl("get", "workflow", name, "-o", "json"))
        assert len(json.dumps(workflow)) < 16 << 10
        root = ArgoReader(_api(site), workflow, template, lambda node, pod: None).run()
        phase = json.dumps({"status": {"phase": root.phase}})
        kubectl("patch", "workflow", name, "--type=merge", "-p", phase)

    controller = threading.Thread(target=control)
    controller.start()
    run = start(spec, place)
    controller.join()
    assert run.status().state == "complete"
    assert run.table(["id"]).num_rows == 60
    assert len(run.status().workers) == 2
    # What ended is replaced by the next run of that name; a stop leaves nothing behind.
    RunWorkflow(_api(site), place).place(template, 1)
    assert "phase" not in kubectl("get", "workflow", name, "-o", "json")
    assert end_workers(spec.execution, place, run.plan) == 0
    assert name not in kubectl("get", "workflows", "-o", "name")


def _study_tuned(site: TestSite) -> None:
    """The trials of a study on two pods, one of which is evicted once."""
    options = _options(site)
    folder = f"{site.bucket}/{site.namespace}/tuning"
    open_store(folder).put("study.toml", STUDY.encode())
    given = {"study": f"{folder}/study.toml", "run": f"{folder}/run", "workers": "2"}
    template = make_tuning(options)

    def inject(name: str, pod: Json) -> None:
        if name.endswith("work(1:1)(0)"):
            _does(pod, WAITS)

    reader = ArgoReader(_api(site), _workflow("tune", site.namespace, TUNE, **given), template, inject)
    reader.evicts.add("work(1:1)(0)")
    assert reader.run().phase == "Succeeded", _seen(reader)
    assert {name: reader.nodes[f"tune.{name}"].phase for name in ("plan", "work", "finish", "best", "onExit")} == (
        dict.fromkeys(("plan", "work", "finish", "best", "onExit"), "Succeeded")
    )
    assert len(reader.nodes["tune.work(1:1)"].children) == 2
    study = Run(f"{folder}/run").study()
    assert [trial.state for trial in study.trials] == ["complete"] * 6
    assert study.best[0].parameters == {"steps": max(trial.parameters["steps"] for trial in study.trials)}


def _pipeline_ordered(site: TestSite) -> None:
    """The steps of the pipeline, of which one ends with 75 once and one is refused: what follows it does not begin."""
    options = _options(site)
    template = make_pipeline(options)
    ledger = _plan(f"{site.bucket}/{site.namespace}/pipeline")
    asked = [each["name"] for each in template["spec"]["arguments"]["parameters"] if "value" not in each]
    given = {**dict.fromkeys(asked, "-"), "run": ledger.url, "workers": "1"}

    def inject(name: str, pod: Json) -> None:
        if "onExit" not in name:
            _does(pod, EXITS, "75" if name.endswith("finish(0)") else "2" if ".embed" in name else "0")

    reader = ArgoReader(_api(site), _workflow("best", site.namespace, TUNE_PIPELINE, **given), template, inject)
    assert reader.run().phase == "Failed"
    assert len(reader.nodes["best.finish"].children) == 2
    assert reader.nodes["best.train"].phase == "Succeeded"
    assert reader.nodes["best.embed"].message == "retryStrategy.expression evaluated to false"
    assert not {"best.answer", "best.evaluate"} & reader.nodes.keys()
    assert ledger.state.look().cause == f"The workflow {site.namespace}/best ended as Failed."


def _no_controller(site: TestSite) -> None:
    """Nobody takes the workflow up: the command says so within a minute, and takes it back."""
    template = make_template(replace(TASK, name="untaken"), _options(site))
    _kubectl(site)("apply", "-f", "-", feed=json.dumps(template))
    engine = {"namespace": site.namespace, "template": "untaken"}
    spec = spec_of(put_source(site.bucket, 60), engine="argo", workers=2, device="cpu", engine_options=engine)
    place = f"{site.bucket}/{site.namespace}/untaken"
    with pytest.raises(EngineSilent, match="No controller has taken up the workflow") as told:
        start(spec, place)
    assert "get deployment workflow-controller" in told.value.hint
    assert job_name(place) not in _kubectl(site)("get", "workflows", "-o", "name")
    assert Ledger(place).plan().shards


def _no_image(site: TestSite) -> None:
    """The image of the template cannot be pulled: the command says so within a minute, and takes the workflow back."""
    template = make_template(replace(TASK, name="imageless"), replace(_options(site), image="nowhere.invalid/none:1"))
    kubectl = _kubectl(site)
    kubectl("apply", "-f", "-", feed=json.dumps(template))
    engine = {"namespace": site.namespace, "template": "imageless"}
    spec = spec_of(put_source(site.bucket, 60), engine="argo", workers=2, device="cpu", engine_options=engine)
    place = f"{site.bucket}/{site.namespace}/imageless"
    name = job_name(place)

    def control() -> None:
        watch_for(lambda: name in kubectl("get", "workflows", "-o", "name"))
        workflow = json.loads(kubectl("get", "workflow", name, "-o", "json"))
        ArgoReader(_api(site), workflow, template, lambda node, pod: None).begin()

    controller = threading.Thread(target=control)
    controller.start()
    with pytest.raises(EngineRefused, match=r"No pod can start: (ErrImagePull|ImagePullBackOff)") as told:
        start(spec, place)
    controller.join()
    assert "edit workflowtemplate imageless" in told.value.hint
    assert name not in kubectl("get", "workflows", "-o", "name")
    assert Ledger(place).plan().shards


@pytest.fixture(scope="module")
def rights(site: TestSite) -> None:
    site.cluster.apply(*make_rights(site.namespace))


@pytest.fixture(scope="module")
def ends(site: TestSite, rights: None) -> Iterator[Ends]:
    scenarios = (
        *(_as_recorded, _ends_of_pods, _by_its_engine, _study_tuned, _pipeline_ordered),
        *(_no_controller, _no_image),
    )
    with run_together(site, *scenarios) as ends:
        yield ends


def test_a_workflow_ends_as_the_recorded_one(ends: Ends) -> None:
    """Worker 1 ends once with 75, worker 2's pod is evicted once; the run is planned, done, merged and verified."""
    ends[_as_recorded].result()


def test_an_end_of_a_pod_means_what_it_does_to_argo(ends: Ends) -> None:
    ends[_ends_of_pods].result()


def test_a_run_is_submitted_watched_and_ended_by_its_engine(ends: Ends) -> None:
    ends[_by_its_engine].result()


def test_a_study_is_tuned_by_its_template(ends: Ends) -> None:
    ends[_study_tuned].result()


def test_the_steps_of_the_pipeline_wait_for_each_other(ends: Ends) -> None:
    ends[_pipeline_ordered].result()


def test_a_workflow_that_nobody_takes_up_is_named(ends: Ends) -> None:
    ends[_no_controller].result()


def test_an_image_that_cannot_be_pulled_is_named(ends: Ends) -> None:
    ends[_no_image].result()


def test_a_workflow_keeps_its_number_of_workers(site: TestSite, capsys: pytest.CaptureFixture[str]) -> None:
    workflow = RunWorkflow(_api(site), f"{site.bucket}/argo/kept")
    template = make_template(TASK, _options(site))
    workflow.place(template, 1)
    workflow.place(template, 2)
    assert "goes on with its 1 workers" in capsys.readouterr().err
    workflow.delete()
