"""The Ray engine on a real cluster of three nodes on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardmill.core.devices import Device, gpus
from shardmill.core.errors import MissingExtra, SpecError, UsageError
from shardmill.core.functions import describe_call
from shardmill.core.template import NO_TEXT
from shardmill.engines import open_engine
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution, make_spec
from shardmill.run import Run, prepare, resume, start
from shardmill.run.planner import make_plan
from shardmill.worker import Worker
from tests.support import engine_contract as contract
from tests.support.corpora import fake_spec
from tests.support.engine_contract import LOCALLY, assert_complete, begin, finish, live_workers
from tests.support.services import unavailable
from tests.support.waiting import wait_for

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    unavailable("ray is not installed: pip install ray")

import shardmill.ray
from shardmill.engines.ray.cluster import Connection
from tests.support.ray_cluster import RAY_HEAD as HEAD
from tests.support.ray_cluster import RAY_NODE as SMALL


@pytest.fixture
def cluster(ray_nodes: Cluster) -> Cluster:
    return ray_nodes


@pytest.fixture(autouse=True)
def nothing_stays_connected() -> Iterator[None]:
    yield
    assert not ray.is_initialized()


@pytest.fixture
def engine(cluster: Cluster) -> dict[str, Any]:
    return on(cluster)


def on(cluster: Cluster, **options: Any) -> dict[str, Any]:
    return {
        "engine": "ray",
        "device": "cpu",
        "engine_options": {"address": cluster.address, "num_cpus": "2", **options},
    }


def test_every_row_comes_out_once(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.every_row_comes_out_once(engine, tmp_path)
    (name,) = {w["device"] for w in Ledger(tmp_path / "run").workers.read()}
    assert name == "cpu"
    assert (tmp_path / "run/logs").is_dir()


def test_a_function_is_sent_along_with_the_plan(engine: dict[str, Any], tmp_path: Path) -> None:
    file, source = tmp_path / "mine.py", tmp_path / "rows.jsonl"
    file.write_text("def f(rows):\n    return [None if r['n'] % 3 else {'twice': 2 * r['n']} for r in rows]\n")
    source.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(300)))
    params = describe_call(f"{file}:f")
    file.unlink()
    work = {"source": str(source), "text": NO_TEXT, "task": "apply", "params": params}
    run = start(make_spec(work, {**engine, "workers": 2, "shard_bytes": 500}), tmp_path / "run")
    assert run.table().column("twice").to_pylist() == [2 * n for n in range(0, 300, 3)]
    assert run.verify().verified


def test_stopping_leaves_nothing_behind(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.stopping_leaves_nothing_behind(engine, tmp_path)


def test_a_stopped_run_is_resumed(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.a_stopped_run_is_resumed(engine, tmp_path)


def test_a_killed_worker_is_replaced(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.a_killed_worker_is_replaced(engine, tmp_path)


def test_a_worker_that_always_dies_stops_the_run(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.a_worker_that_always_dies_stops_the_run(engine, tmp_path)


def test_a_row_that_ends_its_worker_is_set_aside(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.a_row_that_ends_its_worker_is_set_aside(engine, tmp_path)


def test_detached_actors_finish_a_run_alone(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.detached_workers_finish_a_run_alone(engine, tmp_path)


def test_detached_actors_are_adopted_and_stopped(engine: dict[str, Any], tmp_path: Path) -> None:
    contract.detached_workers_are_adopted_and_stopped(engine, tmp_path)


def test_a_ray_of_its_own_cannot_be_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    execution = {"engine": "ray", "device": "cpu", "detach": True}
    with pytest.raises(UsageError, match="--detach needs a Ray cluster"):
        start(contract.make_spec(tmp_path, execution, 20), tmp_path / "run")


def test_another_engine_and_then_another_cluster_go_on(engine: dict[str, Any], tmp_path: Path) -> None:
    other = Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        contract.engines_take_turns([engine, LOCALLY, on(other, num_cpus=1)], tmp_path)
    finally:
        other.shutdown()


def test_a_node_is_lost_and_another_comes(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.add_node(**SMALL, resources={"here": 2})
    cluster.wait_for_nodes()
    # Long enough that the node goes first, however slowly.
    ledger, placement = begin(on(cluster, resources="here=1", num_cpus=1), tmp_path, 900, delay_s=0.2)
    notes = []
    wait_for(lambda: placement.poll() and len(live_workers(ledger)) == 2 and len(ledger.commits.shards()) >= 2)
    before = {w["id"] for w in ledger.workers.read()}
    cluster.remove_node(node)
    node = cluster.add_node(**SMALL, resources={"here": 1})
    finish(placement, lambda: notes.append(placement.note))
    cluster.remove_node(node)
    after = {w["id"] for w in ledger.workers.read()} - before
    assert len(after) == 1, "there was room for one"
    assert any("of 2 workers are waiting for a node" in note for note in notes)
    assert_complete(Run(ledger.url), 900)


def test_an_actor_is_killed(engine: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its worker goes too."""
    ledger, placement = begin({**engine, "workers": 1}, tmp_path, 600, delay_s=0.1)
    (first,) = wait_for(lambda: placement.poll() and len(ledger.commits.shards()) >= 2 and live_workers(ledger))
    worker = psutil.Process(first["pid"])
    os.kill(worker.ppid(), signal.SIGKILL)
    finish(placement)
    assert len(ledger.workers.read()) == 2
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    assert_complete(Run(ledger.url), 600)
    assert capfd.readouterr().out == "", "stdout is for data"


def test_what_cannot_come_is_said_at_once(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.engines.ray.engine._LOOK_EVERY_S", 0.5)
    source = tmp_path / "items.jsonl"
    source.write_text('{"id": "a", "text": "b"}\n')
    for options, device, said in (
        ({}, "cuda", "a worker needs 1 GPU and 2 CPU, and there are 3 nodes with 2 CPU"),
        ({"resources": "tpu=1"}, "cpu", "needs 2 CPU and 1 tpu"),
        ({"num_cpus": "3", "wait_s": "1"}, "cpu", "needs 3 CPU"),
    ):
        with pytest.raises(UsageError, match=said):
            start(fake_spec(source, **{**on(cluster, **options), "device": device}), tmp_path / "run")


def test_workers_join_as_an_autoscaler_adds_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """What an autoscaler tells of itself is written as it would; the node comes when it is waited for."""
    from ray.core.generated.autoscaler_pb2 import ClusterConfig
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

    config = ClusterConfig()
    config.node_group_configs.add(name="late", max_count=1, resources={"CPU": 2, "late": 1})
    ray.init(cluster.address, log_to_driver=False)
    names = ray._raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY, ray._raylet.GCS_AUTOSCALER_STATE_NAMESPACE
    _internal_kv_put(names[0], config.SerializeToString(), namespace=names[1])
    ledger, placement = begin({**on(cluster, resources="late=1"), "workers": 1}, tmp_path, 60)
    try:
        for _ in range(4):
            assert placement.poll()
            time.sleep(0.1)
        assert "1 of 1 workers are waiting for a node" in placement.note
        assert not ledger.workers.read()
        node = cluster.add_node(**SMALL, resources={"late": 1})
        finish(placement)
        assert_complete(Run(ledger.url), 60)
        cluster.remove_node(node)
    finally:
        _internal_kv_del(names[0], namespace=names[1])
        ray.shutdown()


def test_a_gpu_that_ray_counts_but_nobody_finds(cluster: Cluster, tmp_path: Path) -> None:
    if gpus():
        pytest.skip("there is an NVIDIA GPU")
    node = cluster.add_node(**SMALL, num_gpus=1)
    cluster.wait_for_nodes()
    try:
        engine = {**on(cluster), "device": "auto", "workers": 1}
        with pytest.raises(UsageError, match="Ray assigned GPU 0, but no NVIDIA GPU was found there"):
            finish(begin(engine, tmp_path, 20)[1])
    finally:
        cluster.remove_node(node)


def test_a_folder_that_only_the_driver_has(cluster: Cluster, tmp_path: Path) -> None:
    """Memory stands for a disk that other hosts do not see."""
    source = tmp_path / "items.jsonl"
    source.write_text('{"id": "a", "text": "b"}\n')
    spec = fake_spec(source, **on(cluster), workers=1)
    engine = open_engine(spec.execution)
    ledger = Ledger("memory://only-here")
    ledger.create(make_plan(spec, engine.devices))
    with pytest.raises(UsageError, match="memory://only-here is not the run folder on"):
        finish(engine.start(ledger.url))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "shardmill/__init__.py",
            "raise ModuleNotFoundError(\"No module named 'shardmill'\")",
            "shardmill is not installed on a node",
        ),
        ("shardmill-0.0.1.dist-info/METADATA", "Name: shardmill\nVersion: 0.0.1\n", "has shardmill 0.0.1; the run"),
    ],
)
def test_a_node_with_another_shardmill_or_none(
    cluster: Cluster, tmp_path: Path, file: str, text: str, said: str
) -> None:
    other = tmp_path / "other" / file
    other.parent.mkdir(parents=True)
    other.write_text(text)
    path = os.pathsep.join([str(tmp_path / "other"), os.environ["PYTHONPATH"]])
    engine = on(cluster, runtime_env={"env_vars": {"PYTHONPATH": path}})
    with pytest.raises(UsageError, match=said):
        finish(begin({**engine, "workers": 1}, tmp_path, 20)[1])


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in [name for name in sys.modules if name.startswith("shardmill.engines.ray")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"shardmill\[ray\]"):
        open_engine(Execution(engine="ray"))


def test_a_runtime_env_that_does_not_come_up(cluster: Cluster, tmp_path: Path) -> None:
    env = '{"py_modules": ["gcs://_ray_pkg_0123456789abcdef.zip"]}'
    with pytest.raises(SpecError, match="runtime_env cannot be set up"):
        finish(begin(on(cluster, runtime_env=env), tmp_path, 20)[1])
    with pytest.raises(SpecError, match="not a valid path"):
        begin(on(cluster, runtime_env={"working_dir": "/no/such/folder"}), tmp_path, 20)


def _listener() -> socket.socket:
    """A port where somebody answers who is not Ray."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    return listener


@pytest.mark.parametrize("kind", ["dead", "deaf", "other", "client", "junk"])
def test_an_address_without_a_cluster(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.engines.ray.cluster._ANSWER_S", 1.0)
    with _listener() as listener:
        port = listener.getsockname()[1]
        if kind == "other":
            threading.Thread(target=_answer, args=(listener,), daemon=True).start()
        address, said = {
            "dead": ("127.0.0.1:1", "no answer"),
            "deaf": (f"127.0.0.1:{port}", "no answer"),
            "other": (f"127.0.0.1:{port}", "not a Ray head"),
            "client": ("ray://127.0.0.1:10001", "not the address"),
            "junk": ("head", "not the address"),
        }[kind]
        with pytest.raises(UsageError, match=said):
            open_engine(Execution(engine="ray", engine_options={"address": address}))


def _answer(listener: socket.socket) -> None:
    listener.settimeout(5)
    line, _ = listener.accept()
    line.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    line.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_gpu": "1"}, "Did you mean 'num_gpus'"),
        ({"num_gpus": "2"}, "a worker runs on one GPU"),
        ({"num_cpus": "many"}, "not a number"),
        ({"resources": "tpu"}, "not a number"),
        ({"resources": "GPU=1"}, "Use num_cpus and num_gpus"),
        ({"placement": "PACK"}, "DEFAULT or SPREAD"),
        ({"runtime_env": "/no/such/file.json"}, "No such file"),
        ({"runtime_env": "{"}, "runtime_env: "),
        ({"runtime_env": "[]"}, "No such file"),
    ],
)
def test_an_option_that_cannot_be(options: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        open_engine(Execution(engine="ray", engine_options=options))
    assert said in str(caught.value)


def test_inside_a_larger_ray_program(cluster: Cluster, tmp_path: Path) -> None:
    """Its connection and its placement group are used, and stay; a run is an object like others."""
    source = tmp_path / "items.jsonl"
    source.write_text("".join(f'{{"id": "k{i}", "text": "t{i}"}}\n' for i in range(50)))
    ray.init(cluster.address, log_to_driver=False)
    try:
        group = ray.util.placement_group([{"CPU": 1}] * 2)
        ref = ray.remote(num_cpus=0)(shardmill.ray.map_shards).remote(
            str(source),
            text="text",
            id="id",
            task="shardmill.testing:FakeTask",
            out=str(tmp_path / "run"),
            num_cpus=1,
            placement_group=group,
            dims=4,
        )
        run = ray.get(ref)
        assert isinstance(run, Run)
        assert run.verify().verified
        assert run.table(["id"]).num_rows == 50
        # Two are placed, one per bundle; a busy machine may be done before the second one beats.
        assert 1 <= len(run.ledger.workers.read()) <= 2
        spec = fake_spec(source)
        with pytest.raises(UsageError, match="the placement group has 2 CPU"):
            shardmill.ray.map_shards(spec, out=tmp_path / "b", workers=1, num_cpus=3, placement_group=group)
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_ray_ends_with_its_last_connection(cluster: Cluster) -> None:
    """An engine that placed nobody may be collected while another one works."""
    first, second = Connection(cluster.address), Connection(cluster.address)
    del first
    assert ray.is_initialized()
    second.close()
    assert not ray.is_initialized()


def test_a_connection_ends_no_ray_that_came_later(cluster: Cluster) -> None:
    ours = Connection(cluster.address)
    ray.shutdown()
    ray.init(cluster.address, log_to_driver=False)
    try:
        Connection(cluster.address).close()
        ours.close()
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def begin_here(task: str, folder: Path) -> Run:
    """A run of a task with a tiny model, stopped in this process after its first commit."""
    from tests.support.answers import embed_passages, passages, questions, write_embedder, write_reader
    from tests.support.generative_models import write_generative

    rows = questions(6) if task == "answer" else passages()[:6]
    for name, lines in (("items", rows), ("passages", passages())):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    params: dict[str, Any] = {}
    if task == "generate":
        params = {"model": str(write_generative(folder / "llama")), "max_tokens": 6}
    if task == "summarize":
        params = {"model": str(write_embedder(folder / "embedder")), "sentences": 1}
    if task == "answer":
        over = embed_passages(folder / "passages.jsonl", write_embedder(folder / "embedder"), folder / "passages")
        over.index(graph=False)
        params = {"over": over.ledger.url, "by": "words", "reader": str(write_reader(folder / "reader"))}
    work = {"source": str(folder / "items.jsonl"), "text": "question" if task == "answer" else "text", "id": "id"}
    settings = {"device": "cpu", "shard_bytes": 200, "max_errors": "0", "precision": "float32"}
    run = prepare(make_spec({**work, "task": task, "params": params}, settings), folder / "run")
    worker = Worker(Ledger(run.ledger.url), device=Device("cpu", "cpu"))
    worker.on_step = lambda step, shard: worker.stop() if step == "committed" else None
    assert worker.work() is False
    return run


@pytest.mark.parametrize("task", ["generate", "summarize", "answer"])
def test_a_run_of_each_task_is_finished_here(task: str, engine: dict[str, Any], tmp_path: Path) -> None:
    run = begin_here(task, tmp_path)
    begun = run.ledger.commits.shards()
    assert 0 < len(begun) < len(run.plan.shards)
    done = resume(run.ledger.url, {**engine, "workers": 1})
    rows = [json.loads(line)["id"] for line in (tmp_path / "items.jsonl").open()]
    assert done.table().column("id").to_pylist() == rows
    assert len({commit.worker for commit in done.ledger.commits.read().values()}) > 1
    report = done.verify(sample=4)
    assert report.verified, report
