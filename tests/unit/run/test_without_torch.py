"""What cannot run without torch says so before anything begins; what can, takes the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.support.libraries import needed

transformers = needed("transformers")
for _library in ("torch", "tokenizers", "openvino", "optuna"):
    needed(_library)

from shardmill import run as runs  # noqa: E402
from shardmill.core import devices  # noqa: E402
from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import MissingExtra, ModelError, UsageError  # noqa: E402
from shardmill.models.kinds import READER  # noqa: E402
from shardmill.models.pair_networks import check_installed  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run.planner import devices_for  # noqa: E402
from shardmill.tasks import open_here, open_task, pick_for_worker  # noqa: E402
from shardmill.verbs.tune.study_file import read_study_file  # noqa: E402
from shardmill.verbs.tune.work import settle_study  # noqa: E402
from tests.support.generative_models import write_generative  # noqa: E402
from tests.support.onnx_models import copy_without_weights, write_ir  # noqa: E402
from tests.support.tiny_models import bert, pooling, qwen3, write_model  # noqa: E402

Write = Callable[..., Path]
EMBED, LIGHT, GENERATE = (f"pip install 'shardmill[{extra}]'" for extra in ("embed", "light", "generate"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    made = {
        "described": write_model(folder / "described", bert(vocab_size=30522), [pooling("mean")]),
        "another": write_model(folder / "another", qwen3(), [pooling("lasttoken")]),
        "writer": write_generative(folder / "writer"),
    }
    made["exported"] = copy_without_weights(made["described"], folder / "exported")
    write_ir(made["described"], made["exported"] / "openvino" / "openvino_model.xml")
    return {name: str(place) for name, place in made.items()}


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def hide(*libraries: str) -> None:
        for library in libraries:
            monkeypatch.setitem(sys.modules, library, None)

    return hide


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Device("cuda", "a GPU", memory_bytes=80 << 30, visible="0", free_bytes=80 << 30)
    monkeypatch.setattr(devices, "gpus", lambda: [found])


def spec_of(source: Path, task: str, params: dict[str, Any], **execution: Any) -> Any:
    work = {"source": str(source), "text": "text", "task": task, "params": params}
    return make_spec(work, {"device": "cpu", **execution})


def refusal(spec: Any, out: Path) -> UsageError:
    """Why a run is refused, before its folder is made."""
    with pytest.raises((MissingExtra, ModelError)) as caught:
        runs.start(spec, out)
    assert not out.exists()
    return caught.value


@pytest.mark.parametrize(
    ("task", "model", "params", "says"),
    [
        ("embed", "another", {}, EMBED),
        ("summarize", "another", {}, EMBED),
        ("generate", "writer", {}, GENERATE),
        ("summarize", "writer", {"method": "generative"}, GENERATE),
    ],
)
def test_a_model_that_needs_torch_is_refused_before_the_plan(
    task: str,
    model: str,
    params: dict[str, Any],
    says: str,
    models: dict[str, str],
    hide: Callable[..., None],
    write_jsonl: Write,
    tmp_path: Path,
) -> None:
    hide("torch")
    error = refusal(spec_of(write_jsonl([{"text": "one"}]), task, {"model": models[model], **params}), tmp_path / "run")
    assert "torch" in error.message
    assert says in error.hint


def test_training_is_refused_before_the_plan(
    models: dict[str, str], hide: Callable[..., None], write_jsonl: Write, tmp_path: Path
) -> None:
    source = write_jsonl([{"a": "one", "b": "two"}])
    work = {"task": "train", "source": str(source), "params": {"model": models["described"], "columns": ["a", "b"]}}
    study = {
        "work": {**work, "trials": 2, "metrics": {"loss": "minimize"}},
        "space": {"learning_rate": {"low": 1e-6, "high": 1e-4}},
    }
    hide("torch")
    trials, execution = read_study_file(study, {})
    error = refusal(make_spec(settle_study(trials), {**execution, "device": "cpu"}), tmp_path / "study")
    assert (error.message, error.hint) == ("torch is not installed.", f"Install it with: {EMBED}")
    with pytest.raises(MissingExtra, match="torch is not installed"):
        open_task("train", work["params"]).check_installed("cpu")


@pytest.mark.parametrize("library", ["transformers", "safetensors"])
def test_torch_alone_is_not_enough_and_is_left_alone(
    library: str, models: dict[str, str], hide: Callable[..., None]
) -> None:
    """Somebody who has torch for other work installs the light extra."""
    hide(library)
    task = open_task("embed", {"model": models["described"]})
    with pytest.raises(MissingExtra, match=library):
        task.check_installed("cuda")
    task.check_installed("cpu")
    open_here(task, precise=True, reference=True)
    assert task.numerics["kernel"].startswith("numpy")


def test_without_openvino_a_model_is_refused_unless_torch_is_there(
    models: dict[str, str], hide: Callable[..., None]
) -> None:
    task = open_task("embed", {"model": models["described"]})
    hide("openvino")
    task.check_installed("cpu")
    hide("torch")
    with pytest.raises(MissingExtra) as caught:
        task.check_installed("cpu")
    assert (caught.value.message, caught.value.hint) == ("openvino is not installed.", f"Install it with: {LIGHT}")


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_without_torch_is_not_used_and_the_user_is_told(
    models: dict[str, str],
    hide: Callable[..., None],
    write_jsonl: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hide("torch")
    source, params = write_jsonl([{"text": "one"}]), {"model": models["described"]}
    (placed,) = devices_for(spec_of(source, "embed", params, device="auto"), quiet=False)
    assert placed.kind == "cpu"
    assert f"a GPU is not used: torch is not installed. Install it with: {EMBED}" in capsys.readouterr().err
    task = open_task("embed", params)
    assert pick_for_worker(task, "auto", precise=False).kind == "cpu"
    assert open_here(task, precise=True).kind == "cpu"
    for device in ("cuda", "all"):
        error = refusal(spec_of(source, "embed", params, device=device), tmp_path / "run")
        assert (error.message, error.hint) == ("torch is not installed.", f"Install it with: {EMBED}")


@pytest.mark.usefixtures("a_gpu")
def test_files_that_run_on_cpus_alone_run_there(
    models: dict[str, str],
    hide: Callable[..., None],
    write_jsonl: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, params = write_jsonl([{"text": "one"}]), {"model": models["exported"]}
    (placed,) = devices_for(spec_of(source, "embed", params, device="auto"), quiet=False)
    assert placed.kind == "cpu"
    assert "a GPU is not used: exported has only ONNX or OpenVINO files" in capsys.readouterr().err
    assert "--device cpu" in refusal(spec_of(source, "embed", params, device="cuda"), tmp_path / "run").hint
    hide("openvino")
    assert LIGHT in refusal(spec_of(source, "embed", params), tmp_path / "run").hint


@pytest.mark.usefixtures("a_gpu")
def test_a_gpu_is_used_by_tasks_that_need_no_torch(hide: Callable[..., None], write_jsonl: Write) -> None:
    hide("torch")
    spec = spec_of(write_jsonl([{"text": "one"}]), "shardmill.testing:FakeTask", {}, device="auto")
    assert [device.kind for device in devices_for(spec)] == ["cuda"]


@pytest.mark.parametrize(("family", "described"), [("Bert", True), ("ConvBert", False)])
def test_a_reader_is_asked_too(family: str, described: bool, hide: Callable[..., None], tmp_path: Path) -> None:
    small = {"vocab_size": 100, "num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 32}
    config = getattr(transformers, f"{family}Config")(**small, intermediate_size=48)
    getattr(transformers, f"{family}ForQuestionAnswering")(config).save_pretrained(tmp_path)
    check_installed(tmp_path, READER, "cpu")
    hide("torch")
    with pytest.raises(MissingExtra, match="torch is not installed"):
        check_installed(tmp_path, READER, "cuda")
    with nullcontext() if described else pytest.raises(ModelError, match="needs torch"):
        check_installed(tmp_path, READER, "cpu")
