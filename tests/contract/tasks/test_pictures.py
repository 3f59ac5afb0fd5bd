"""Runs over pictures: vectors as transformers makes them, bad ones set aside, resumed, and found by words."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, SpecError, UsageError
from shardmill.plan.spec import make_spec
from shardmill.run.result import Run
from shardmill.run.running import resume, start
from shardmill.tasks.base import add_bytes
from shardmill.testing import InProcessEngine
from shardmill.verbs.embed.task import EmbedTask
from tests.support.libraries import needed
from tests.support.picture_models import KINDS, SIDE, build_picture_model, encode, noise

torch = needed("torch")
transformers = needed("transformers")
Image = needed("PIL.Image")

# A process that is killed after its first shard, with the processes that decode for it.
_KILLED = """
import sys
from shardmill.plan.spec import make_spec
from shardmill.run.running import start
from shardmill.testing import InProcessEngine, crash_at

source, model, out = sys.argv[1:]
work = {"source": source, "task": "embed", "params": {"model": model}, "id": "name", "picture": "image"}
spec = make_spec(work, {"device": "cpu", "precision": "float32", "shard_bytes": 4096, "lease_s": 5.0})
start(spec, out, engine=InProcessEngine(on_step=crash_at("committed", after=1)))
"""
SIZES = ((60, 45), (45, 60), (32, 32), (200, 33), (20, 90), (17, 17))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {kind: build_picture_model(place / kind, kind) for kind in KINDS}


def run_over(source: Path, model: Path, out: Path, on_step: Any = lambda step, shard: None, **work: Any) -> Run:
    params = {"model": str(model), **work.pop("params", {})}
    given = {"source": str(source), "task": "embed", "params": params, "id": ("name",), "picture": "image", **work}
    spec = make_spec(given, {"device": "cpu", "shard_bytes": 4096, "max_errors": "90%"})
    return start(spec, out, engine=InProcessEngine(on_step=on_step))


def vectors_of(run: Run) -> np.ndarray[Any, Any]:
    return np.array([v or [np.nan] * len(run.vectors()[0]) for v in run.table()["embedding"].to_pylist()], np.float32)


def write_pictures(path: Path, contents: Sequence[bytes | None]) -> Path:
    names = [f"item {i}" for i in range(len(contents))]
    pq.write_table(pa.table({"name": names, "image": contents}), path, row_group_size=4)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_and_vectors_are_those_of_transformers(models: dict[str, Path], kind: str) -> None:
    pictures = [noise(seed, *size) for seed, size in enumerate(SIZES)]
    task = EmbedTask(model=str(models[kind]), pictures=True)
    task.open(Device("cpu", "cpu"))
    try:
        contents = pa.array([encode(picture) for picture in pictures], pa.large_binary())
        prepared = task.prepare(["digest"] * len(pictures), add_bytes(None, contents))
        made = np.array(task.run(prepared.inputs).rows.column("embedding").to_pylist(), np.float32)
    finally:
        task.close()
    processor = transformers.AutoImageProcessor.from_pretrained(models[kind], backend="pil")
    raw = processor(pictures, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    assert np.array_equal(prepared.inputs, np.moveaxis(raw, 1, -1))
    model = transformers.AutoModel.from_pretrained(models[kind]).eval()
    with torch.inference_mode():
        given = processor(pictures, return_tensors="pt")
        if kind in ("clip", "siglip"):
            found = model.get_image_features(**given)
            found = getattr(found, "pooler_output", found)
        else:
            found = model(**given)
            found = found.pooler_output if kind == "dinov2" else found.last_hidden_state[:, 0]
    expected = (found / found.norm(dim=-1, keepdim=True)).numpy()
    assert (made * expected).sum(1).min() >= 0.9999
    assert prepared.costs.tolist() == [(SIDE // 8) ** 2 + 1] * len(pictures)


def test_bad_pictures_are_set_aside_with_what_was_seen(models: dict[str, Path], tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    whole = encode(noise(1), "JPEG")
    files = {
        "good.jpg": whole,
        "half.jpg": whole[:900],
        "page.jpg": b"<html><body>Not found</body></html>",
        "empty.jpg": b"",
        "other.png": encode(noise(2)),
    }
    for name, content in files.items():
        (root / name).write_bytes(content)
    names = [*files, "../photos/good.jpg", "none.jpg"]
    source = tmp_path / "list.jsonl"
    source.write_text("".join(json.dumps({"name": name, "image": name}) + "\n" for name in names))
    run = run_over(source, models["vit"], tmp_path / "run", root=str(root), keep=("image",))
    reasons = {error["id"]["name"]: error["reason"] for error in run.errors()}
    assert set(reasons) == {"half.jpg", "page.jpg", "empty.jpg", "../photos/good.jpg", "none.jpg"}
    assert reasons["half.jpg"].startswith("half.jpg: JPEG of 60 x 45 pixels in 900 bytes, which cannot be decoded")
    assert reasons["page.jpg"] == "page.jpg: an HTML page of 35 bytes, and no picture that can be read"
    assert "has '..'" in reasons["../photos/good.jpg"]
    assert run.table()["image"].to_pylist() == names
    assert run.verify().verified
    # The folder may move: its place is no part of what the result is.
    moved = root.rename(tmp_path / "moved")
    again = run_over(source, models["vit"], tmp_path / "run", root=str(moved), keep=("image",))
    assert again.plan.id == run.plan.id
    assert again.verify().verified
    # A picture that has changed is another item.
    (moved / "good.jpg").write_bytes(encode(noise(3), "JPEG"))
    assert [check.name for check in again.verify().checks if not check.ok] == ["contents", "sample"]


@pytest.mark.parametrize("step", ["batch", "staged", "committing"])
def test_a_run_that_breaks_off_is_resumed(models: dict[str, Path], tmp_path: Path, step: str) -> None:
    source = write_pictures(tmp_path / "p.parquet", [encode(noise(seed)) for seed in range(12)])
    expected = vectors_of(run_over(source, models["dinov2"], tmp_path / "whole"))
    reached: list[int] = []

    def break_off(seen: str, shard: int) -> None:
        reached.append(shard)
        if seen == step and len(reached) > 3:
            raise Broken(seen)

    with pytest.raises(Broken):
        run_over(source, models["dinov2"], tmp_path / "run", on_step=break_off)
    run = run_over(source, models["dinov2"], tmp_path / "run")
    assert np.allclose(vectors_of(run), expected, atol=1e-5)
    assert run.verify().verified


class Broken(BaseException):
    """Ends a worker at a step, with what it has begun left behind."""


def test_killed_and_finished_on_another_engine(models: dict[str, Path], tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "pictures.parquet", [encode(noise(seed)) for seed in range(20)])
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(source), str(models["clip"]), str(tmp_path / "run")], timeout=240
    )
    assert done.returncode == -signal.SIGKILL
    run = Run(tmp_path / "run")
    assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)
    resume(tmp_path / "run", {"engine": "local", "workers": 1})
    report = run.verify(sample="all")
    assert report.verified, report
    assert run.table()["name"].to_pylist() == [f"item {i}" for i in range(20)]
    run.close()


def test_a_picture_is_found_by_words_and_by_a_picture(models: dict[str, Path], tmp_path: Path) -> None:
    pictures = [encode(noise(seed)) for seed in range(12)]
    source = write_pictures(tmp_path / "p.parquet", pictures)
    run = run_over(source, models["clip"], tmp_path / "run")
    asked = ["a red square", "a blue circle", "yellow"]
    model = transformers.AutoModel.from_pretrained(models["clip"]).eval()
    words = transformers.AutoTokenizer.from_pretrained(models["clip"])(asked, padding=True, return_tensors="pt")
    with torch.inference_mode():
        found = model.get_text_features(words["input_ids"], words["attention_mask"])
    found = getattr(found, "pooler_output", found)
    scores = vectors_of(run) @ (found / found.norm(dim=-1, keepdim=True)).numpy().T
    for hits, expected in zip(run.search_many(asked, 12), scores.T, strict=True):
        assert np.allclose([hit.score for hit in hits], [expected[hit.row] for hit in hits], atol=1e-4)
        assert sorted(hit.row for hit in hits) == list(range(12))
    (tmp_path / "one.png").write_bytes(pictures[3])
    (best, *_) = run.search_pictures([tmp_path / "one.png"], 1)[0]
    assert (best.row, round(best.score, 3)) == (3, 1.0)
    with pytest.raises(UsageError, match="no words"):
        run.search("a red square", words=True)
    (tmp_path / "two.png").write_bytes(b"<html>")
    with pytest.raises(SpecError, match="an HTML page of 6 bytes"):
        run.search_pictures([tmp_path / "two.png"])
    run.close()


def test_what_does_not_fit_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    source = write_pictures(tmp_path / "p.parquet", [encode(noise(1))])
    for params, why in (
        ({"prompt": "query"}, "--prompt has no meaning for pictures"),
        ({"window_tokens": 9}, "--window-tokens has no meaning for pictures"),
        ({"dtype": "int8"}, "--dtype int8 has no meaning for pictures"),
    ):
        with pytest.raises(SpecError, match=why):
            run_over(source, models["vit"], tmp_path / "run", params=params)
    text = tmp_path / "bert"
    text.mkdir()
    (text / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="bert makes no vectors of pictures: its model type is bert"):
        run_over(source, text, tmp_path / "run")
    run = run_over(source, models["vit"], tmp_path / "run", params={"dims": 8, "dtype": "float16"})
    assert vectors_of(run).shape == (1, 8)
    with pytest.raises(ModelError, match="knows pictures alone"):
        run.search("a red square")
    with pytest.raises(UsageError, match=r"none\.png: No such file"):
        run.search_pictures([tmp_path / "none.png"])
    run.close()
