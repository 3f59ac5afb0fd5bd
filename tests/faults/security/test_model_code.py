"""Code that comes with a model runs only if the user says so, here and in workers; a run folder cannot say it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shardmill
from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, UsageError
from shardmill.run import Run, resume
from shardmill.testing import InProcessEngine
from shardmill.verbs.embed.task import EmbedTask
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows
from tests.support.tiny_models import bert, pooling, write_model

OWN = """
import pathlib
from transformers import BertConfig, BertModel
pathlib.Path({mark!r}).touch()

class OwnConfig(BertConfig):
    model_type = "mine"

class OwnModel(BertModel):
    config_class = OwnConfig
    def forward(self, *given, **named):
        made = super().forward(*given, **named)
        made.last_hidden_state = -made.last_hidden_state
        return made
"""


@pytest.fixture(autouse=True)
def nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "_allowed", set())


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_model(tmp_path / "plain", bert(), [pooling("mean")])


@pytest.fixture
def model(tmp_path: Path, mark: Path, plain: Path) -> Path:
    """The same weights, whose vectors the model's own code turns around."""
    folder = plain.rename(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mine", "auto_map": named}))
    (folder / "own.py").write_text(OWN.format(mark=str(mark)))
    write_model(plain, bert(), [pooling("mean")])
    return folder


@pytest.fixture
def source(write_jsonl: Callable[..., Path]) -> Path:
    return write_jsonl(fake_rows(5))


def test_a_model_with_code_is_refused_until_the_user_allows_it(
    model: Path, mark: Path, source: Path, tmp_path: Path, shardmill: Cli
) -> None:
    asked = ("embed", source, "--text", "text", "--model", model, "--device", "cpu", "--out", tmp_path / "run")
    assert_told(shardmill(*asked), 2, "The model own comes with code of its own", "say --allow-code")
    assert_told(shardmill("plan", *asked[1:]), 2, "code of its own", "say --allow-code")
    assert not mark.exists()
    assert not (tmp_path / "run").exists()


def test_workers_get_the_permission_from_the_user_and_never_from_the_folder(
    model: Path, plain: Path, mark: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shardmill.embed(source, text="text", model=str(model), device="cpu", out=tmp_path / "run", allow_code=True)
    assert mark.exists()
    assert run.verify(sample=5).verified
    task = EmbedTask(model=str(plain))
    task.open(Device("cpu", "cpu", precise=True))
    others = task.run(task.prepare([row["text"] for row in fake_rows(5)]).inputs).rows.column("embedding").to_pylist()
    assert np.allclose(run.table().column("embedding").to_pylist(), -np.array(others), atol=0.05)

    mark.unlink()
    monkeypatch.setattr(permission, "_allowed", set())
    for use in (lambda: resume(run.ledger.url), run.verify, lambda: run.search("text")):
        with pytest.raises((UsageError, ModelError), match="without your permission"):
            use()
    plan = json.loads(run.ledger.store.get("plan.json"))
    del plan["fingerprint"]["code"]
    run.ledger.store.put("plan.json", json.dumps(plan).encode())
    with pytest.raises(ModelError, match="code of its own"):
        resume(run.ledger.url, allow_code=True)
    assert not mark.exists()


def test_permission_is_for_this_code_and_no_other(model: Path, mark: Path, source: Path, tmp_path: Path) -> None:
    work = {"source": str(source), "text": "text", "task": "embed", "params": {"model": str(model)}}
    spec = shardmill.make_spec(work, {"device": "cpu"})
    shardmill.run.prepare(spec, tmp_path / "run", allow_code=True)
    permission._allowed.clear()
    with (model / "own.py").open("a") as file:
        file.write("\nother = 1\n")
    with pytest.raises(ModelError, match="code of the model own is not the code that was allowed"):
        resume(tmp_path / "run", allow_code=True)
    assert not mark.exists()


def test_code_of_another_repository_is_refused(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "ann/other--own.OwnModel"}
    (model / "config.json").write_text(json.dumps(config))
    task = EmbedTask(model=str(model))
    permission.allow(task.model_code)
    with pytest.raises(ModelError, match="names code of another model"):
        task.fingerprint()


def test_a_known_model_that_also_names_code_is_computed_without_it(plain: Path, source: Path, tmp_path: Path) -> None:
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "absent.Model"}}))
    work = {"source": str(source), "text": "text", "task": "embed", "params": {"model": str(plain)}}
    spec = shardmill.make_spec(work, {"device": "cpu"})
    run: Run = shardmill.start(spec, tmp_path / "run", engine=InProcessEngine())
    assert run.status().rows == 5
    assert "code" not in run.plan.fingerprint
