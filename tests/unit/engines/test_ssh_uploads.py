"""What a host without a shared disk is sent of a run, and what is installed there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.libraries import needed

for _library in ("asyncssh", "optuna", "torch"):
    needed(_library)

from shardmill import run as runs  # noqa: E402
from shardmill.engines.ssh.at_home.environment import _extras  # noqa: E402
from shardmill.engines.ssh.at_home.uploads import UploadProgress, Uploads  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.verbs.apply.work import apply_work  # noqa: E402
from shardmill.verbs.tune.study_file import read_study_file  # noqa: E402
from shardmill.verbs.tune.work import settle_study  # noqa: E402
from tests.support.training import a_model, topic_pairs  # noqa: E402


def test_a_study_of_train_takes_its_model_along(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    model = a_model(tmp_path / "tiny")
    study: dict[str, Any] = {
        "work": {
            "task": "train",
            "source": str(write_jsonl(topic_pairs(12))),
            "trials": 2,
            "metrics": {"loss": "minimize"},
            "params": {"model": str(model), "columns": ["question", "passage"]},
        },
        "space": {"learning_rate": {"low": 1e-6, "high": 1e-4, "log": True}},
    }
    work, execution = read_study_file(study, {})
    run = runs.prepare(make_spec(settle_study(work), execution), tmp_path / "run")
    there, copies = Uploads(run.plan, run.ledger.store, UploadProgress()).lay_out("/srv/mill", "/srv/mill/runs/one")
    place = there.work.params["params"]["model"]
    assert place.startswith("/srv/mill/models/")
    assert there.work.params["params"]["columns"] == ["question", "passage"]
    sent = {copy.there: copy.here for copy in copies}
    assert sent[f"{place}/model.safetensors"] == model / "model.safetensors"
    # What is here does not change.
    assert run.plan.work.params["params"]["model"] == str(model)
    assert _extras(run.plan, gpu=False) == ["embed", "tune"]


def test_the_text_of_a_function_is_no_folder(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    code = tmp_path / "long.py"
    code.write_text("def same(rows):\n    return [{'n': len(row['question'])} for row in rows]\n" + "# long\n" * 1_000)
    source = str(write_jsonl(topic_pairs(4)))
    work, execution = apply_work({"source": source, "params": {"call": f"{code}:same"}}, {})
    run = runs.prepare(make_spec(work, execution), tmp_path / "run")
    there, copies = Uploads(run.plan, run.ledger.store, UploadProgress()).lay_out("/srv/mill", "/srv/mill/runs/one")
    assert there.work.params == run.plan.work.params
    assert not [copy for copy in copies if "/models/" in copy.there]
