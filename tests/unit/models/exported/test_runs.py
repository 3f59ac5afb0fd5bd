"""A run with a model of ONNX or OpenVINO files: what verify and the audit compare it with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardmill
from shardmill.models.exported import choosing
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.audited import docstrings, write_vectors
from tests.support.libraries import needed
from tests.support.onnx_models import copy_without_weights, write_ir, write_onnx
from tests.support.tiny_models import bert, pooling, write_model

# Imported here, OpenVINO would report its use.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")
needed("onnx")

HERE = "(as they were made: nothing but OpenVINO runs this model here)"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = bert(vocab_size=30522)
    return write_model(tmp_path_factory.mktemp("models") / "tiny", made, [pooling("mean"), ("Normalize", {}, {})])


@pytest.fixture
def bare(tiny: Path, tmp_path: Path) -> Path:
    """All but the weights."""
    return copy_without_weights(tiny, tmp_path / "bare")


@pytest.fixture
def run_with(tmp_path: Path, write_jsonl: Callable[..., Path]) -> Callable[[Path], Run]:
    rows = [{"id": f"{i}", "text": text} for i, text in enumerate(docstrings(24, longest=300))]
    source = write_jsonl(rows)

    def run(model: Path) -> Run:
        work = {"source": str(source), "text": "text", "id": "id", "params": {"model": str(model)}}
        return start(make_spec(work, {"device": "cpu"}), tmp_path / "run", engine=InProcessEngine())

    return run


def checked(run: Run) -> tuple[bool, str]:
    report = run.verify(sample=8)
    return report.verified, next(check.seen for check in report.checks if check.name == "sample")


def without_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str, *given: Any) -> Any:
        return None if name == "onnxruntime" else importlib.util.find_spec(name, *given)

    monkeypatch.setattr(choosing, "find_spec", find)


@pytest.mark.parametrize("int8", [False, True])
def test_verify_names_what_it_compared_with(
    tiny: Path, bare: Path, run_with: Callable[[Path], Run], int8: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_onnx(tiny, bare / "onnx" / "model.onnx", int8=int8)
    run = run_with(bare)
    said = "in int8" if int8 else "in float32"
    if importlib.util.find_spec("onnxruntime") is not None:
        verified, seen = checked(run)
        assert verified
        assert f"computed again {said} by ONNX Runtime on the CPU, worst cosine " in seen
    without_runtime(monkeypatch)
    verified, seen = checked(run)
    assert verified
    assert f"computed again {said} by OpenVINO on the CPU {HERE}, worst cosine " in seen


def test_vectors_are_searched_and_equal_those_of_the_safetensors(
    tiny: Path, bare: Path, run_with: Callable[[Path], Run], tmp_path: Path
) -> None:
    write_ir(tiny, bare / "openvino" / "openvino_model.xml")
    run = run_with(bare)
    rows = run.table().sort_by("id")
    texts = dict(zip(map(str, range(24)), docstrings(24, longest=300), strict=True))
    own = [texts[i] for i in rows.column("id").to_pylist()]
    vectors = np.stack(rows.column("embedding").to_numpy(zero_copy_only=False))
    path = write_vectors(tmp_path / "vectors.parquet", own, vectors)
    assert shardmill.audit(str(path), text="body", model=str(tiny), sample=16).right
    assert run.search(own[3])[0].values["id"] == rows.column("id")[3].as_py()
    assert checked(run)[1].startswith("8 of 24 rows computed again in float32 by OpenVINO")
