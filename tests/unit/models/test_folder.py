"""What a model folder may hold, what it is refused for, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models import location as find
from shardmill.models.fingerprint import digest_folder
from shardmill.models.folder import Dense, Normalize, Pooling, read_folder
from shardmill.models.location import check_bundled, find_model
from shardmill.verbs.embed.task import EmbedTask

ST = "sentence_transformers.models."


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    write(root / "config.json", {"model_type": "bert", "hidden_size": 32})
    (root / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    write(root / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    list_modules(root, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    return root


def list_modules(root: Path, *modules: tuple[str, str]) -> None:
    listed = [{"idx": i, "name": str(i), "path": path, "type": ST + name} for i, (name, path) in enumerate(modules)]
    write(root / "modules.json", listed)


def add_dense(root: Path, **said: Any) -> None:
    config = {"in_features": 32, "out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}
    write(root / "2_Dense" / "config.json", config | said)
    (root / "2_Dense" / "model.safetensors").write_bytes(b"")
    list_modules(root, ("Transformer", ""), ("Pooling", "1_Pooling"), ("Dense", "2_Dense"))


def test_reads_modules(folder: Path) -> None:
    read = read_folder(folder)
    assert (read.pooling, read.steps, read.width) == (Pooling(("mean",)), (Normalize(),), 32)
    assert read.normalizes


@pytest.mark.parametrize(
    ("said", "modes"),
    [
        ({"pooling_mode": "cls"}, ("cls",)),
        ({"pooling_mode": ["max", "cls"]}, ("max", "cls")),
        ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True}, ("cls", "max")),
        ({"pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode": "lasttoken", "pooling_mode_cls_token": True}, ("lasttoken",)),
    ],
)
def test_pooling_of_both_generations(folder: Path, said: dict[str, Any], modes: tuple[str, ...]) -> None:
    write(folder / "1_Pooling" / "config.json", {"embedding_dimension": 32, **said})
    read = read_folder(folder)
    assert (read.pooling.modes, read.width) == (modes, 32 * len(modes))


def test_a_dense_layer_sets_the_width(folder: Path) -> None:
    add_dense(folder)
    read = read_folder(folder)
    assert read.width == 8
    assert isinstance(read.steps[0], Dense)
    assert EmbedTask(model=str(folder)).output.field("embedding").type.list_size == 8


@pytest.mark.parametrize("key", ["hidden_size", "d_model", "n_embd", "dim"])
def test_a_folder_without_modules_is_averaged(folder: Path, key: str) -> None:
    (folder / "modules.json").unlink()
    write(folder / "config.json", {"model_type": "x", key: 48})
    read = read_folder(folder)
    assert (read.pooling.modes, read.width, read.steps) == (("mean",), 48, ())


def test_prompts(folder: Path) -> None:
    whole = {"prompts": {"query": "q: ", "none": None}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", whole)
    read = read_folder(folder)
    said = {name: read.prompt_text(name) for name in (None, "query", "none", "document", "Title: ")}
    assert said == {None: "q: ", "query": "q: ", "none": "", "document": "", "Title: ": "Title: "}


def test_unknown_module(folder: Path) -> None:
    list_modules(folder, ("Transformer", ""), ("LSTM", "1_LSTM"))
    with pytest.raises(ModelError, match=r"(?s)models\.LSTM.*Supported: Transformer, Pooling"):
        read_folder(folder)


def test_module_of_another_package(folder: Path) -> None:
    write(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}])
    with pytest.raises(ModelError, match="custom_st"):
        read_folder(folder)


def test_modules_in_an_order_that_is_not_run(folder: Path) -> None:
    list_modules(folder, ("Transformer", ""), ("Normalize", "n"), ("Pooling", "1_Pooling"))
    with pytest.raises(ModelError, match="begin with one Transformer and one Pooling"):
        read_folder(folder)


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b"])
def test_a_path_out_of_the_folder(folder: Path, path: str) -> None:
    list_modules(folder, ("Transformer", ""), ("Pooling", path))
    with pytest.raises(ModelError, match="outside"):
        read_folder(folder)


@pytest.mark.parametrize(
    "said",
    [
        {"activation_function": "os.system"},
        {"activation_function": "torch.nn.Linear"},
        {"activation_function": "torch.hub.load"},
        {"module_input_name": "token_embeddings"},
    ],
)
def test_dense_layers_that_are_not_run(folder: Path, said: dict[str, str]) -> None:
    add_dense(folder, **said)
    with pytest.raises(ModelError, match=r"shardmill supports|Supported"):
        read_folder(folder)


def test_only_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"(?s)only pytorch_model\.bin.*Convert"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("adapter_config.json", {}, "adapter"),
        ("config.json", {}, "model_type"),
        ("1_Pooling/config.json", {"pooling_mode": "magic"}, "magic"),
        ("config_sentence_transformers.json", {"default_prompt_name": "x"}, "'x'"),
        ("sentence_bert_config.json", {"transformer_task": "text-generation"}, "an output other"),
    ],
)
def test_refused(folder: Path, name: str, content: Any, says: str) -> None:
    write(folder / name, content)
    with pytest.raises(ModelError, match=says):
        read_folder(folder)


def test_a_chat_model_without_modules(folder: Path) -> None:
    (folder / "modules.json").unlink()
    write(folder / "tokenizer_config.json", {"chat_template": "{{ messages }}"})
    with pytest.raises(ModelError, match="chat template"):
        read_folder(folder)


def test_broken_and_missing_files(folder: Path) -> None:
    (folder / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_folder(folder)
    (folder / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelError, match=r"No config\.json"):
        read_folder(folder)


@pytest.mark.parametrize("name", ["/no/such/model", "./none", "~/none", "a/b/c", " "])
def test_no_such_folder(name: str) -> None:
    with pytest.raises(ModelError, match="No model folder"):
        find_model(name)


@pytest.mark.parametrize(("name", "asked"), [("e5-none", "sentence-transformers/e5-none"), ("a/b", "a/b")])
def test_the_hub_is_asked_and_may_not_answer(monkeypatch: pytest.MonkeyPatch, name: str, asked: str) -> None:
    hub = pytest.importorskip("huggingface_hub")
    seen = []

    def offline(repository: str, **_: Any) -> str:
        seen.append(repository)
        raise ConnectionError("no network")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(ModelError, match=r"(?s)ConnectionError.*pass a model folder"):
        find_model(name)
    assert seen == [asked]


def test_no_hub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"shardmill\[light\]"):
        find_model("some/model")


def test_bundled_weights_are_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_bundled", lambda: folder)
    locations = [find_model(name) for name in ("demo", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2")]
    assert {(location.name, location.path) for location in locations} == {("all-MiniLM-L6-v2", folder)}
    with pytest.raises(ModelError, match="sha256"):
        check_bundled(locations[0])
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    check_bundled(find.Location("x", folder, digest))


@pytest.mark.parametrize("name", ["demo", "all-MiniLM-L6-v2"])
def test_only_a_folder_with_a_model_wins_over_a_bundled_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`make demo` leaves a folder of that name, with a run and no model in it."""
    bundled = tmp_path / "bundled"
    monkeypatch.setattr(find, "_bundled", lambda: bundled)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name / "run" / "plan.json", {})
    assert find_model(name).path == bundled
    shutil.copytree(folder, tmp_path / name, dirs_exist_ok=True)
    assert find_model(name).path == tmp_path / name
    (tmp_path / name / "config.json").unlink()
    assert find_model(name).path == tmp_path / name, "modules.json names where the transformer is"


def test_fingerprint_goes_with_the_content(folder: Path, tmp_path: Path) -> None:
    before = EmbedTask(model=str(folder)).fingerprint()
    assert before["model"] == "model"
    copy = tmp_path / "elsewhere" / "model"
    shutil.copytree(folder, copy)
    assert EmbedTask(model=str(copy), dims=4, dtype="float16").fingerprint() == before
    (copy / "README.md").write_text("hello")
    write(copy / "onnx" / "config.json", {})
    (copy / "pytorch_model.bin").write_bytes(b"x")
    (copy / ".cache").mkdir()
    write(copy / ".cache" / "a.json", {})
    assert digest_folder(copy) == digest_folder(folder)

    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[9000] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    after = digest_folder(copy)
    assert after["weights"] != before["weights"]
    assert after["config"] == before["config"]
    write(copy / "1_Pooling" / "config.json", {"pooling_mode": "cls"})
    assert digest_folder(copy)["config"] != before["config"]


@pytest.mark.parametrize("at", [10, (1 << 20) + 5, (9 << 20) - 10, None])
def test_fingerprint_of_large_files(tmp_path: Path, at: int | None) -> None:
    path = tmp_path / "model.safetensors"
    content = bytearray(9 << 20)
    path.write_bytes(content)
    before = digest_folder(tmp_path)
    if at is None:
        content += b"\0"
    else:
        content[at] = 1
    path.write_bytes(content)
    assert digest_folder(tmp_path) != before
