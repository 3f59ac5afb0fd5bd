"""`--precision int8` of `embed`: part of the work, never mixed with float32, and measured by `verify`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import shardmill
from shardmill.core import devices
from shardmill.core.devices import Device, multiplies_bytes
from shardmill.core.errors import ModelError, SpecError, StaleResume
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.results.rounding import RoundedVectors, share_that_stays
from shardmill.run import prepare, resume
from shardmill.tasks import open_task
from shardmill.testing import InProcessEngine
from shardmill.verbs.embed.task import EmbedTask
from shardmill.worker import Worker
from tests.support.audited import docstrings
from tests.support.tiny_models import bert, needed, pooling, write_model

# Imported here, OpenVINO would report its use.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")

on_bytes = pytest.mark.skipif(not multiplies_bytes(), reason="this CPU does not multiply bytes")
INT8 = {"precision": "int8"}
Spec = Callable[..., shardmill.Spec]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = bert(vocab_size=30522)
    modules = [pooling("mean"), ("Normalize", {}, {})]
    return write_model(tmp_path_factory.mktemp("models") / "tiny", made, modules)


@pytest.fixture
def spec(model: Path, write_jsonl: Callable[..., Path]) -> Spec:
    source = write_jsonl([{"text": text} for text in docstrings(60, longest=200)])

    def make(**execution: str) -> shardmill.Spec:
        work = {"source": str(source), "text": "text", "params": {"model": str(model)}}
        return make_spec(work, {"device": "cpu", "shard_bytes": 4000, **execution})

    return make


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan on any CPU."""
    monkeypatch.setattr(devices, "cpu_features", lambda: "avx512_vnni")


def test_it_is_part_of_the_work_and_the_others_are_not(spec: Spec) -> None:
    assert spec(precision="int8").work.params["precision"] == "int8"
    assert spec(precision="int8").execution.precision == "auto"
    for name in ("auto", "float32"):
        assert "precision" not in spec(precision=name).work.params
        assert spec(precision=name).execution.precision == name


def test_other_tasks_and_other_values_are_refused(spec: Spec) -> None:
    with pytest.raises(SpecError, match="precision"):
        spec(precision="int4")
    with pytest.raises(SpecError, match="precision: input should be 'int8'"):
        EmbedTask(precision="float32")
    with pytest.raises(SpecError, match="summarize task: precision"):
        open_task("summarize", make_spec({"source": "a.jsonl", "text": "t", "task": "summarize"}, INT8).work.params)


def test_the_plan_is_another_one(spec: Spec, tmp_path: Path, capable: None) -> None:
    usual, ours = (prepare(spec(precision=name), tmp_path / name).plan for name in ("float32", "int8"))
    assert usual.id != ours.id
    assert usual.id == prepare(spec(), tmp_path / "auto").plan.id
    assert ours.fingerprint["precision"].startswith("int8")
    with pytest.raises(StaleResume, match="precision was 'int8' and is None"):
        prepare(spec(precision="float32"), tmp_path / "int8")


def test_a_cpu_without_it_is_refused_before_a_worker_begins(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cpu_features", lambda: "avx2")
    with pytest.raises(ModelError, match="int8 needs a CPU"):
        shardmill.start(spec(precision="int8"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@on_bytes
def test_a_worker_elsewhere_that_cannot_writes_nothing(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    prepare(spec(precision="int8"), out)
    with monkeypatch.context() as patch:
        patch.setattr(devices, "cpu_features", lambda: "avx2")
        with pytest.raises(ModelError, match="int8 needs a CPU"):
            Worker(Ledger(out), device=Device("cpu", "cpu")).work()
    assert not Ledger(out).commits.read()


def test_it_is_not_resumed_in_float32(spec: Spec, tmp_path: Path, capable: None) -> None:
    out = tmp_path / "run"
    prepare(spec(precision="int8"), out)
    with pytest.raises(SpecError, match="This run computes in int8"):
        resume(out, {"precision": "float32"})
    assert Ledger(out).execution()["precision"] == "auto"


@on_bytes
def test_verify_says_what_it_costs_and_fails_if_that_is_too_much(spec: Spec, tmp_path: Path) -> None:
    run = shardmill.start(spec(precision="int8"), tmp_path / "run", engine=InProcessEngine())
    assert {commit.precision for commit in run.ledger.commits.read().values()} == {"int8"}
    report = run.verify(sample=60)
    (sample,) = (check for check in report.checks if check.name == "sample")
    assert report.verified, report.checks
    assert "int8 keeps" in sample.seen
    figures = report.figures
    assert figures["rows_beside_float32"] == 60
    assert 0.95 < figures["lowest_cosine"] <= figures["mean_cosine"] < 1
    assert 0 < figures["ten_nearest_that_stay"] <= 1
    assert len(run.search("a list of files", k=3)) == 3


def test_what_it_costs() -> None:
    random = np.random.default_rng(3)
    exact = random.normal(size=(50, 16)).astype(np.float32)
    near = exact + 0.01 * random.normal(size=exact.shape).astype(np.float32)
    for vectors, close in ((near, True), (random.normal(size=exact.shape).astype(np.float32), False)):
        found = RoundedVectors("int8")
        for stored, again in zip(vectors, exact, strict=True):
            found.add(pa.scalar(stored, pa.list_(pa.float32(), 16)), pa.scalar(again, pa.list_(pa.float32(), 16)))
        figures = found.measure()
        assert found.is_close(figures) is close
        assert figures["rows_beside_float32"] == 50
        assert (figures["ten_nearest_that_stay"] > 0.8) is close
    assert share_that_stays(exact, exact) == 1
    assert RoundedVectors("int8").measure() == {}
