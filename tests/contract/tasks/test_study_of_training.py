"""A study over the options of `train`, without a line of Python: every trial trains on the rows of one source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.run import Run
from shardmill.run.carrying import carry_out
from shardmill.testing import InProcessEngine
from shardmill.verbs.train.best import best_training
from shardmill.verbs.tune.work import tune_study
from tests.support.libraries import needed
from tests.support.training import a_model, topic_pairs

needed("optuna")
needed("torch")
ROWS = topic_pairs(40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("model"))


def study_file(model: Path, pairs: Path, folder: Path, metric: str = "mrr@10") -> Path:
    text = f"""
[work]
task = "train"
source = "{pairs}"
trials = 4
generation = 2
metrics = {{ "{metric}" = "maximize" }}

[work.params]
model = "{model}"
columns = ["question", "passage"]
held_out = 0.2

[space]
learning_rate = {{ low = 1e-4, high = 1e-2, log = true }}
batch = [8, 16]
"""
    file = folder / "study.toml"
    file.write_text(text)
    return file


def tune(study: Path, out: Path, **changes: Any) -> Run:
    return tune_study(study, changes, {"device": "cpu"}, out, engine=InProcessEngine())


def test_trials_train_on_the_same_rows(model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    study = study_file(model, write_jsonl(ROWS), tmp_path)
    run = tune(study, tmp_path / "run")
    found = run.study()
    assert [trial.state for trial in found.trials] == ["complete"] * 4
    assert all(0 <= trial.values[0] <= 1 for trial in found.trials)
    assert all(trial.reports for trial in found.trials)
    assert found.best[0].values[0] == max(trial.values[0] for trial in found.trials)
    report = run.verify()
    assert report.verified, report
    assert not list(run.ledger.store.list("model/"))
    more = tune(study, tmp_path / "run", trials=6)
    assert [trial.parameters for trial in more.study().trials[:4]] == [trial.parameters for trial in found.trials]
    assert len(more.study().trials) == 6
    # The best trial, trained on its own, has the figure that the study has seen.
    work = {**best_training(str(tmp_path / "run")), "task": "train"}
    alone = carry_out(work, {"device": "cpu"}, tmp_path / "best", engine=InProcessEngine())
    assert alone.table().column("best").to_pylist() == pytest.approx([more.study().best[0].values[0]])


def test_a_study_of_training_that_cannot_train_is_refused(
    model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    pairs = write_jsonl(ROWS)
    study = study_file(model, pairs, tmp_path)
    study.write_text(study.read_text().replace(f'source = "{pairs}"\n', ""))
    with pytest.raises(SpecError, match="No source was given"):
        tune(study, tmp_path / "run")
    study = study_file(model, pairs, tmp_path)
    study.write_text(study.read_text().replace("batch = [8, 16]", "batches = [8, 16]"))
    with pytest.raises(SpecError, match="batches: extra inputs are not permitted"):
        tune(study, tmp_path / "run")


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("batch = [8, 0]", "space.batch = 0: .*batch: input should be greater than or equal to 1"),
        ("batch = [8.0, 8.5]", "space.batch = 8.5: "),
        ("warmup = { low = 0.0, high = 7.0 }", "space.warmup = 7.0: "),
        ('loss = ["in-batch", "cosnet"]', "space.loss = 'cosnet': "),
    ],
)
def test_every_choice_and_both_ends_of_a_range_are_shown_to_train_before_any_trains(
    space: str, said: str, model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    study = study_file(model, write_jsonl(ROWS), tmp_path)
    study.write_text(study.read_text().replace("batch = [8, 16]", space))
    with pytest.raises(SpecError, match=said):
        tune(study, tmp_path / "run")
    assert not (tmp_path / "run" / "plan.json").exists()


def test_of_several_best_trials_the_first_is_trained_and_named(
    model: Path, tmp_path: Path, write_jsonl: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    study = study_file(model, write_jsonl(ROWS), tmp_path)
    text = study.read_text().replace('"mrr@10" = "maximize"', 'trained_on = "minimize", held_out = "maximize"')
    study.write_text(text.replace("trials = 4", "trials = 2"))
    assert [trial.number for trial in tune(study, tmp_path / "run").study().best] == [0, 1]
    best_training(str(tmp_path / "run"))
    assert "2 trials are best, as none beats another: trial 0 is trained." in " ".join(capfd.readouterr().err.split())


METRIC = 'metrics = { "mrr@10" = "maximize" }'


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        ('task = "train"', 'task = "trian"', "Only a study of train reads a source, and this one is of 'trian'"),
        (METRIC, "", "has no metric 'value'"),
    ],
)
def test_what_was_written_wrong_is_told_with_what_to_write(
    written: str, instead: str, said: str, model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    study = study_file(model, write_jsonl(ROWS), tmp_path)
    study.write_text(study.read_text().replace(written, instead))
    with pytest.raises(SpecError, match=said) as caught:
        tune(study, tmp_path / "run")
    assert written in caught.value.hint


def test_a_metric_that_no_trial_would_have_is_refused_before_any_trains(
    model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    pairs = write_jsonl(ROWS)
    for metric in ("mrr@5", "spearman", "curve"):
        with pytest.raises(SpecError, match=f"The task 'train' has no metric '{metric}'") as caught:
            tune(study_file(model, pairs, tmp_path, metric), tmp_path / "run")
        assert "mrr@10, loss" in caught.value.hint
    study = study_file(model, pairs, tmp_path)
    study.write_text(study.read_text().replace("held_out = 0.2", "held_out = 0.0"))
    with pytest.raises(SpecError, match="has no metric 'mrr@10'"):
        tune(study, tmp_path / "run")
