"""The extras that the environment of a host gets: torch only where a GPU, or the model, needs it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.libraries import needed

for _library in ("asyncssh", "torch", "transformers"):
    needed(_library)

from shardmill.engines.ssh.at_home.environment import _extras, used_gpus  # noqa: E402
from shardmill.engines.ssh.at_home.link import Looked  # noqa: E402
from shardmill.engines.ssh.cluster import Gpus, Host  # noqa: E402
from shardmill.plan import Plan, SourceFile, SourceStat  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from tests.support.tiny_models import bert, fast, pooling, qwen3, unigram, write_model  # noqa: E402

GPUS = tuple({"index": str(index), "name": "H200", "driver": "1", "memory_mib": "1"} for index in range(3))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    sliced = write_model(folder / "sliced", bert(), [pooling("mean")], tokenizer=fast(unigram(), unk_token="<unk>"))
    made = {
        "described": write_model(folder / "described", bert(vocab_size=30522), [pooling("mean")]),
        "another": write_model(folder / "another", qwen3(), [pooling("lasttoken")]),
        "sliced": sliced,
    }
    said = sliced / "tokenizer_config.json"
    said.write_text(said.read_text().replace("TokenizersBackend", "SomeTokenizer"))
    return {name: str(place) for name, place in made.items()}


def plan_of(task: str, **params: Any) -> Plan:
    made = make_spec({"source": "/data/a.jsonl", "text": "t", "task": task, "params": params}).work
    return Plan.of(made, SourceStat("jsonl", (SourceFile("/data/a.jsonl", 10, "tag", ""),), {}), {}, ())


@pytest.mark.parametrize(
    ("task", "model", "more", "on_cpu", "on_gpu"),
    [
        ("embed", "described", {}, ["light"], ["embed"]),
        ("embed", "another", {}, ["embed"], ["embed"]),
        ("embed", "sliced", {}, ["embed"], ["embed"]),
        ("summarize", "described", {}, ["light"], ["embed"]),
        ("summarize", "described", {"reference": "gold"}, ["light", "summarize"], ["embed", "summarize"]),
        ("summarize", "another", {"method": "generative"}, ["generate"], ["generate"]),
        ("generate", "another", {}, ["generate"], ["generate"]),
        ("train", "described", {"columns": ["a", "b"]}, ["embed"], ["embed"]),
    ],
)
def test_torch_is_installed_where_it_is_needed(
    task: str, model: str, more: dict[str, Any], on_cpu: list[str], on_gpu: list[str], models: dict[str, str]
) -> None:
    plan = plan_of(task, model=models[model], **more)
    assert [_extras(plan, gpu) for gpu in (False, True)] == [on_cpu, on_gpu]


def test_a_server_needs_no_model() -> None:
    assert _extras(plan_of("generate", model="qwen3", endpoint="http://gpu1:8000/v1"), gpu=True) == ["endpoint"]


@pytest.mark.parametrize(
    ("gpus", "kind", "used"),
    [("auto", "auto", 3), ("auto", "cpu", 0), (0, "auto", 0), (2, "cuda", 2), ([1], "auto", 1)],
)
def test_the_gpus_that_workers_use(gpus: Gpus, kind: str, used: int) -> None:
    looked = Looked("a", "/w", True, 1, "python3", (3, 12, 0), "", 4, GPUS, "", 0.0)
    assert len(used_gpus(Host(address="a", gpus=gpus), looked, kind)) == used
