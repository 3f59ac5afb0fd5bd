"""A run that an earlier version began with wrong windows is neither finished nor called correct."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, StaleResume
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.results.verify import digest
from shardmill.run import resume
from shardmill.testing import InProcessEngine
from shardmill.worker import Worker
from tests.support.tiny_models import SMALL, pooling, transformers, write_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    special = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102, "cls_token_id": 101, "sep_token_id": 102}
    config = transformers.ModernBertConfig(**SMALL, **special, vocab_size=30522, local_attention=16)
    return write_model(tmp_path / "modernbert", config, [pooling("mean")])


def _spec(folder: Path, model: Path) -> shardmill.Spec:
    source = folder / "items.jsonl"
    source.write_text("".join(json.dumps({"text": f"item {i} " + "word " * i}) + "\n" for i in range(6)))
    work = {"source": str(source), "text": "text", "task": "embed", "params": {"model": str(model)}}
    return make_spec(work, {"shard_bytes": 100})


def _make_old(run: Path) -> None:
    """Take out of the plan what earlier versions did not write."""
    plan = json.loads((run / "plan.json").read_text())
    del plan["fingerprint"]["numerics"]
    (run / "plan.json").write_text(json.dumps(plan))


def test_a_commit_records_kernel_and_precision(tmp_path: Path, model: Path) -> None:
    run = shardmill.start(_spec(tmp_path, model), tmp_path / "run", engine=InProcessEngine())
    for commit in run.ledger.commits.read().values():
        assert commit.kernel.startswith(("torch", "openvino"))
        assert commit.precision in ("float32", "float16", "bfloat16")


def test_a_run_begun_before_the_fix_is_not_finished_after_it(tmp_path: Path, model: Path) -> None:
    spec, out = _spec(tmp_path, model), tmp_path / "run"
    shardmill.start(spec, out, engine=InProcessEngine())
    assert shardmill.Run(out).plan.fingerprint["numerics"] == "2"
    assert "numerics" not in [check.name for check in shardmill.Run(out).verify(sample=0).checks]
    _make_old(out)
    with pytest.raises(StaleResume, match="corrects this model's vectors"):
        shardmill.start(spec, out, engine=InProcessEngine())
    with pytest.raises(StaleResume, match="corrects this model's vectors"):
        resume(out)
    with pytest.raises(ModelError, match="corrects this model's vectors"):
        Worker(Ledger(out), device=Device("cpu", "cpu")).work()


@pytest.mark.parametrize(("kernel", "right"), [("torch float16, packed", False), ("torch float32, padded", True)])
def test_verify_says_that_the_vectors_may_be_wrong(tmp_path: Path, model: Path, kernel: str, right: bool) -> None:
    out = tmp_path / "run"
    shardmill.start(_spec(tmp_path, model), out, engine=InProcessEngine())
    _make_old(out)
    for record in (out / "workers").glob("*.json"):
        record.write_text(json.dumps({**json.loads(record.read_text()), "notes": [f"Kernel: {kernel}."]}))
    report = shardmill.Run(out).verify(sample=0)
    assert [check.ok for check in report.checks if check.name == "numerics"] == [right]
    assert report.verified == right


def test_a_row_of_a_run_in_float16_must_be_as_close_as_float16_is(tmp_path: Path, model: Path) -> None:
    """A stored vector with a cosine of 0.9997 passes only where the precision explains it."""
    out = tmp_path / "run"
    run = shardmill.start(_spec(tmp_path, model), out, engine=InProcessEngine())
    for shard, commit in run.ledger.commits.read().items():
        table = pq.read_table(out / commit.part)
        vectors = np.stack(table.column("embedding").to_numpy())
        across = np.roll(vectors, 1, axis=1) * np.resize([1, -1], vectors.shape[1])
        across *= np.linalg.norm(vectors, axis=1, keepdims=True) / np.linalg.norm(across, axis=1, keepdims=True)
        turned = (0.9997 * vectors + np.sqrt(1 - 0.9997**2) * across).astype(np.float32)
        field = table.schema.field("embedding")
        column = pa.FixedSizeListArray.from_arrays(pa.array(turned.reshape(-1)), type=field.type)
        pq.write_table(table.set_column(table.schema.get_field_index("embedding"), field, column), out / commit.part)
        place = out / run.ledger.commits.key(shard)
        place.write_text(json.dumps({**json.loads(place.read_text()), "digest": digest(run.ledger.store, commit.part)}))

    def sample(precision: str) -> bool:
        for shard in run.ledger.commits.shards():
            place = out / run.ledger.commits.key(shard)
            place.write_text(json.dumps({**json.loads(place.read_text()), "precision": precision}))
        return next(c.ok for c in shardmill.Run(out).verify().checks if c.name == "sample")

    assert [sample(p) for p in ("float32", "float16", "bfloat16", "")] == [False, False, True, True]
