"""Which ONNX or OpenVINO file of a folder is run, what it is refused for, and its digest."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import ModelError
from shardmill.models import location as find
from shardmill.models.exported.files import choose_file, files_of, find_exported
from shardmill.models.fingerprint import digest_folder
from shardmill.models.folder import Normalize, Pooling, read_folder, read_transformer_config
from shardmill.models.location import find_model
from shardmill.models.tokenizer import load_tokenizer
from shardmill.verbs.embed.task import EmbedTask
from shardmill.verbs.train.task import TrainTask
from tests.support.libraries import needed
from tests.support.onnx_models import copy_without_weights, say_pooling, write_ir, write_onnx
from tests.support.tiny_models import WIDTH, bert, pooling, write_model

# Imported here, OpenVINO would report its use.
if importlib.util.find_spec("openvino") is None:
    needed("openvino")
needed("onnx")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", bert(), [pooling("mean"), ("Normalize", {}, {})])


@pytest.fixture
def bare(tiny: Path, tmp_path: Path) -> Path:
    """All but the weights."""
    return copy_without_weights(tiny, tmp_path / "bare")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("config.json model.onnx", "model.onnx"),
        ("model.onnx onnx/model.onnx onnx/model_quantized.onnx", "onnx/model.onnx"),
        ("onnx/model_int8.onnx onnx/model_fp16.onnx onnx/model.onnx", "onnx/model.onnx"),
        ("model_optimized.onnx model_quantized.onnx", "model_optimized.onnx"),
        ("openvino/openvino_model.xml openvino/openvino_model_qint8_quantized.xml", "openvino/openvino_model.xml"),
        ("openvino/openvino_model.xml onnx/model.onnx", "onnx/model.onnx"),
        ("onnx/model_quantized.onnx", "onnx/model_quantized.onnx"),
        ("openvino_tokenizer.xml openvino_model_int8.xml", "openvino_model_int8.xml"),
        ("openvino_tokenizer.xml other/model.onnx pytorch_model.bin", None),
    ],
)
def test_the_float_file_is_chosen(names: str, chosen: str | None) -> None:
    assert choose_file(names.split(), "it") == chosen


def test_several_files_of_equal_rank_are_refused_by_name() -> None:
    with pytest.raises(ModelError) as caught:
        choose_file(["onnx/model_int8.onnx", "onnx/model_fp16.onnx", "config.json"], "it")
    assert caught.value.message == (
        "it has 2 files that could be run, and none is called model.onnx: onnx/model_fp16.onnx, onnx/model_int8.onnx."
    )
    assert "a folder of their own" in (caught.value.hint or "")


def test_the_weights_that_belong_to_a_file() -> None:
    there = ["onnx/model.onnx", "onnx/model.onnx_data", "onnx/model.onnx.data", "onnx/model_fp16.onnx", "model.bin"]
    assert files_of("onnx/model.onnx", there) == there[:3]
    assert files_of("openvino/openvino_model.xml", ["openvino/openvino_model.bin"]) == ["openvino/openvino_model.bin"]


def test_what_the_file_says(tiny: Path, bare: Path) -> None:
    write_onnx(tiny, bare / "onnx" / "model.onnx", inputs=["input_ids", "attention_mask", "token_type_ids"])
    found = find_exported(bare)
    assert found is not None
    assert [tensor.names for tensor in found.head.inputs] == [("input_ids",), ("attention_mask",), ("token_type_ids",)]
    assert found.head.tokens is not None
    assert (found.head.tokens.shape, found.head.sentences, found.head.precision) == ((-1, -1, WIDTH), None, "float32")
    stored = {tensor.names[0]: tensor.shape for tensor in found.head.weights}
    assert stored["embeddings.position_embeddings.weight"] == (80, WIDTH)
    write_onnx(tiny, bare / "onnx" / "model.onnx", int8=True)
    assert (again := find_exported(bare)) is not None
    assert (found.head.mixes, again.head.mixes, again.head.precision) == (False, True, "int8")


@pytest.mark.parametrize("write", [write_onnx, write_ir])
def test_pooling_steps_and_limits_are_those_of_the_folder(tiny: Path, bare: Path, write: Any) -> None:
    write(tiny, bare / ("model.onnx" if write is write_onnx else "openvino_model.xml"))
    read = read_folder(bare)
    assert (read.pooling, read.steps, read.width) == (Pooling(("mean",)), (Normalize(),), WIDTH)
    assert load_tokenizer(read, None).limit == 64


def test_texts_end_where_the_stored_positions_end(tmp_path: Path) -> None:
    """config.json says more than the table has."""
    tiny = write_model(tmp_path / "tiny", bert(max_position_embeddings=40), [pooling("mean")])
    bare = copy_without_weights(tiny, tmp_path / "bare")
    write_onnx(tiny, bare / "model.onnx")
    config = bare / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 40', '"max_position_embeddings": 64'))
    assert load_tokenizer(read_folder(bare), None).limit == 40


def test_safetensors_win(tiny: Path, tmp_path: Path) -> None:
    """Nothing changes, not even a digest, and no ONNX file is read."""
    both = tmp_path / "both" / "tiny"
    shutil.copytree(tiny, both)
    for name in ("model.onnx", "onnx/model.onnx", "openvino/openvino_model.xml"):
        (both / name).parent.mkdir(exist_ok=True)
        (both / name).write_bytes(b"broken")
    assert read_folder(both).exported is None
    assert EmbedTask(model=str(both)).fingerprint() == EmbedTask(model=str(tiny)).fingerprint()


def test_the_digest_is_that_of_the_file_that_is_run(tiny: Path, bare: Path) -> None:
    empty = digest_folder(bare)
    write_onnx(tiny, bare / "onnx" / "model.onnx", outside="weights.data")
    whole = digest_folder(bare)
    assert whole["config"] == empty["config"]
    (bare / "onnx" / "model_quantized.onnx").write_bytes(b"not run")
    (bare / "onnx" / "config.json").write_text("{}")
    assert digest_folder(bare) == whole
    data = bare / "onnx" / "weights.data"
    changed = bytearray(data.read_bytes())
    changed[-1] ^= 1
    data.write_bytes(changed)
    assert digest_folder(bare)["weights"] not in (whole["weights"], empty["weights"])
    write_onnx(tiny, bare / "onnx" / "model.onnx", int8=True)
    assert digest_folder(bare)["weights"] not in (whole["weights"], empty["weights"])


@pytest.mark.parametrize("place", ["onnx/model.onnx", "openvino/openvino_model.xml"])
def test_weights_in_a_second_file_that_is_missing(tiny: Path, bare: Path, place: str) -> None:
    path = bare / place
    if path.suffix == ".onnx":
        data = write_onnx(tiny, path, outside="model.onnx_data").with_name("model.onnx_data")
    else:
        data = write_ir(tiny, path).with_suffix(".bin")
    data.unlink()
    with pytest.raises(ModelError) as caught:
        EmbedTask(model=str(bare)).fingerprint()
    assert caught.value.message == f"The weights of bare/{place} are in {data.name}, which is missing."
    assert caught.value.hint == f"Put {data.name} beside {path.name}: it is published with it."


def test_weights_outside_the_folder(tiny: Path, bare: Path) -> None:
    path = write_onnx(tiny, bare / "model.onnx", outside="w" * 12)
    path.write_bytes(path.read_bytes().replace(b"w" * 12, b"../../secret"))
    with pytest.raises(ModelError, match=r"has weights outside its folder: '\.\./\.\./secret'"):
        read_folder(bare)


@pytest.mark.parametrize("how", ["cut", "empty", "text"])
@pytest.mark.parametrize("place", ["model.onnx", "openvino_model.xml"])
def test_a_file_that_cannot_be_read(tiny: Path, bare: Path, place: str, how: str) -> None:
    path = (write_onnx if place == "model.onnx" else write_ir)(tiny, bare / place)
    path.write_bytes({"cut": path.read_bytes()[:5000], "empty": b"", "text": b"version https://git-lfs"}[how])
    with pytest.raises(ModelError, match=rf"{place} cannot be read as (ONNX|OpenVINO's): .+\."):
        read_folder(bare)


def test_a_folder_that_does_not_say_how_to_pool(tiny: Path, tmp_path: Path) -> None:
    folder = copy_without_weights(tiny, tmp_path / "bge", modules=False)
    write_onnx(tiny, folder / "model_optimized.onnx")
    with pytest.raises(ModelError) as caught:
        read_folder(folder)
    assert caught.value.message == (
        "bge does not say how to pool: model_optimized.onnx gives a vector per token, and there is no modules.json."
    )
    assert "1_Pooling/config.json" in (caught.value.hint or "")
    read = read_folder(say_pooling(folder, "cls", WIDTH))
    assert (read.pooling.modes, read.steps, read.width) == (("cls",), (Normalize(),), WIDTH)


@pytest.mark.parametrize("output", ["sentence_embedding", "pooled"])
def test_a_network_that_pools_by_itself(tiny: Path, tmp_path: Path, output: str) -> None:
    folder = copy_without_weights(tiny, tmp_path / "whole", modules=False)
    write_onnx(tiny, folder / "model.onnx", sentences=True, output=output)
    read = read_folder(folder)
    assert (read.pooling, read.steps, read.width) == (Pooling(()), (), WIDTH)
    read = read_folder(say_pooling(folder, "cls", WIDTH))
    assert (read.pooling, read.steps, read.width) == (Pooling(()), (Normalize(),), WIDTH)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"inputs": ["input_ids", "attention_mask", "pixel_values"]}, r"wants the input 'pixel_values'"),
        ({"sizes": [1, 128]}, r"takes input_ids only as 1 x 128"),
        ({"sentences": True, "output": "logits"}, r"its outputs are logits"),
    ],
)
def test_networks_of_another_kind(tiny: Path, bare: Path, how: dict[str, Any], says: str) -> None:
    write_onnx(tiny, bare / "model.onnx", **how)
    with pytest.raises(ModelError, match=says):
        read_folder(bare)


def test_tasks_that_need_safetensors_say_so(tiny: Path, bare: Path) -> None:
    write_onnx(tiny, bare / "model.onnx")
    says = "bare has no safetensors weights, only model.onnx, which this task cannot use"
    with pytest.raises(ModelError, match=says):
        read_transformer_config(bare)
    with pytest.raises(ModelError, match=says):
        TrainTask(model=str(bare), columns=["a", "b"]).fingerprint()


def test_the_hub_is_asked_for_it_only_without_safetensors(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the hub's library leaves in its folders stands for it here."""
    hub = pytest.importorskip("huggingface_hub")
    there = copy_without_weights(tiny, tmp_path / "hub")
    write_onnx(tiny, there / "onnx" / "model.onnx", outside="model.onnx_data")
    (there / "onnx" / "model_quantized.onnx").write_bytes(b"large")
    cached = tmp_path / "cache" / "abc123"
    asked: list[Any] = []

    def download(repository: str, *, allow_patterns: list[str], **how: Any) -> str:
        asked.append((repository, how.get("revision")))
        ignored = how.get("ignore_patterns") or []
        names = [p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()]
        for name in hub.utils.filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignored):
            (cached / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there / name, cached / name)
        return str(cached)

    def list_files(repository: str, *, revision: str) -> list[str]:
        asked.append((repository, revision, "listed"))
        return [p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()]

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.setattr(hub, "list_repo_files", list_files)
    found = find_model("qdrant/tiny")
    assert asked == [("qdrant/tiny", None), ("qdrant/tiny", "abc123", "listed"), ("qdrant/tiny", "abc123")]
    assert sorted(p.name for p in (found.path / "onnx").iterdir()) == ["model.onnx", "model.onnx_data"]
    assert read_folder(found.path).exported is not None
    asked.clear()
    find_model("qdrant/tiny")
    assert asked == [("qdrant/tiny", None)], "what is there needs no list"
    shutil.copy(tiny / "model.safetensors", there)
    shutil.rmtree(cached)
    asked.clear()
    find_model("qdrant/tiny")
    assert (asked, (cached / "onnx").exists()) == ([("qdrant/tiny", None)], False)


def test_what_is_fetched_from_a_store() -> None:
    files = ["config.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_int8.onnx", "README.md"]
    assert find._wanted_of(files, "it") == ["config.json", "onnx/model.onnx", "onnx/model.onnx_data"]
    assert find._wanted_of([*files, "2_Dense/model.safetensors"], "it")[-2:] == files[1:3]
    for weights in ("model.safetensors", "0_Transformer/model.safetensors"):
        assert find._wanted_of([*files, weights], "it") == ["config.json", weights]
