"""The classify task: what fits a model and what does not, long texts, labels in another order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, ShardmillError, SpecError
from shardmill.models.decoding.generative import read_generative
from shardmill.models.kinds import note_kind
from shardmill.models.labels import read_labels
from shardmill.verbs.classify.task import ClassifyTask
from tests.support.classifiers import TOKENS, write_classifier, write_entailer, write_tagger
from tests.support.generative_models import write_generative
from tests.support.tiny_models import bert, pooling, write_model

pytestmark = pytest.mark.model

CPU = Device("cpu", "cpu", threads=1, precise=True)
LONG = "nobody on board had been told why the train was late " * 40


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_classifier(root / "classes")
    write_classifier(root / "several", problem_type="multi_label_classification")
    write_classifier(root / "number", labels=("quality",), problem_type="regression")
    write_classifier(root / "one", labels=("spam",))
    write_tagger(root / "tokens")
    write_entailer(root / "entails")
    write_model(root / "embedder", bert(vocab_size=30522), [pooling("mean")])
    write_generative(root / "writer")
    return root


def opened(model: Path, **params: Any) -> ClassifyTask:
    task = ClassifyTask(model=str(model), **params)
    task.fingerprint()
    task.open(CPU)
    return task


def rows(task: ClassifyTask, texts: list[str]) -> dict[str, list[Any]]:
    made: dict[str, list[Any]] = task.run(list(task.prepare(texts).inputs)).rows.to_pydict()
    return made


@pytest.mark.parametrize(
    ("model", "params", "said"),
    [
        ("embedder", {}, r"(?s)embedder is no classifier: its architecture is BertModel.*shardmill embed --model"),
        ("writer", {}, r"(?s)writer is no classifier.*shardmill generate --model"),
        ("classes", {"labels": "good,nice"}, r"(?s)classes has no label 'nice': its labels are bad, good, odd"),
        ("classes", {"labels": "good"}, r"(?s)has labels of its own.*entailment"),
        ("classes", {"hypothesis": "It is {}."}, "--hypothesis is given without --labels"),
        ("classes", {"multi_label": True}, "--multi-label is given without --labels"),
        ("classes", {"threshold": 0.5}, r"(?s)--threshold is for models whose texts may have several.*--where"),
        ("classes", {"top_k": 2, "all_labels": True}, "Both --all-labels and --top-k"),
        ("number", {"top_k": 2}, "--top-k is given, and number gives a number"),
        ("tokens", {"all_labels": True}, "--all-labels is given, and tokens gives spans"),
        ("tokens", {"threshold": 0.5}, "--threshold is for models"),
        ("entails", {}, r"(?s)entails was trained for entailment.*--labels"),
        ("entails", {"labels": "a,b,a"}, "--labels names 'a' twice"),
        ("entails", {"labels": "a", "hypothesis": "so"}, "has no place for the label"),
        ("entails", {"labels": "a,b", "threshold": 0.5}, "(?s)each text gets one of the labels.*--multi-label"),
        ("entails", {"labels": ["word " * TOKENS]}, "leave no room for a text"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(models: Path, model: str, params: Any, said: str) -> None:
    with pytest.raises(ShardmillError) as error:
        ClassifyTask(model=str(models / model), **params).fingerprint()
    assert error.match(said)


def test_a_model_is_needed() -> None:
    with pytest.raises(SpecError, match="The classify task needs model"):
        ClassifyTask()


def test_classifiers_elsewhere_are_sent_here(models: Path) -> None:
    for name in ("classes", "tokens"):
        assert "It fits `shardmill classify --model`." in note_kind(models / name)
        with pytest.raises(ModelError, match="shardmill classify"):
            read_generative(models / name)


def test_labels_are_those_of_id2label_in_any_order(models: Path, tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "turned")
    said = json.loads((folder / "config.json").read_text())
    said["id2label"] = {"2": "bad", "0": "good", "1": "odd"}
    (folder / "config.json").write_text(json.dumps(said))
    assert read_labels(folder).names == ("good", "odd", "bad")
    texts = ["The battery died after an hour.", "Yes.", "one, two, three"]
    due = rows(opened(models / "classes"), texts)
    turned = {"bad": "good", "good": "odd", "odd": "bad"}
    seen = rows(opened(folder), texts)
    assert seen["label"] == [turned[label] for label in due["label"]]
    np.testing.assert_allclose(seen["score"], due["score"], atol=1e-6)
    said["id2label"] = {"1": "bad", "2": "good"}
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match="does not number its labels from 0"):
        read_labels(folder)
    said["id2label"] = {"0": "bad", "1": "good"}
    (folder / "config.json").write_text(json.dumps(said))
    with pytest.raises(ModelError, match=r"gives 3 numbers, but its config.json has 2 labels"):
        opened(folder)


def test_entailment_is_found_in_any_order(tmp_path: Path) -> None:
    names = ("neutral", "ENTAILMENT", "contradiction")
    labels = read_labels(write_classifier(tmp_path / "turned", labels=names))
    assert (labels.entailment, labels.contradiction) == (1, 2)


@pytest.mark.parametrize("model", ["classes", "tokens", "entails"])
def test_a_long_text_is_cut_and_counted(models: Path, model: str) -> None:
    params = {"labels": "one,another thing"} if model == "entails" else {}
    task = opened(models / model, **params)
    prepared = task.prepare([LONG, None, "Yes.", "bad \ud800"])
    assert prepared.truncated == 1
    assert prepared.costs[1] == prepared.costs[3] == 0
    assert list(prepared.bad) == [3]
    assert prepared.costs[0] == TOKENS * (2 if params else 1)
    made = task.run([prepared.inputs[0], prepared.inputs[2]]).rows
    assert made.num_rows == 2
    assert rows(task, [LONG[:-20]]) == rows(task, [LONG])
    assert opened(models / "classes", max_tokens=8).prepare(["one two three four five six seven"]).truncated == 1


def test_a_text_is_classified_alone_and_among_others(models: Path) -> None:
    texts = ["The battery died after an hour.", "Yes.", LONG, "one, two, three"]
    for model, params in (("classes", {"all_labels": True}), ("tokens", {}), ("entails", {"labels": "a,b"})):
        task = opened(models / model, **params)
        together = task.run(list(task.prepare(texts).inputs)).rows
        for i, text in enumerate(texts):
            alone = task.run(list(task.prepare([text]).inputs)).rows
            for name in alone.schema.names:
                distance = task.distance(name, together.column(name)[i], alone.column(name)[0])
                assert distance is not None
                assert distance < 1e-5


def test_a_model_that_gives_nan_sets_its_rows_aside(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = opened(models / "classes", top_k=1)
    whole = task.encoder._apply_head
    monkeypatch.setattr(
        task.encoder, "_apply_head", lambda states: whole(states) * np.array([[1.0], [np.nan]], np.float32)
    )
    output = task.run(list(task.prepare(["Yes.", "No."]).inputs))
    assert list(output.bad) == [1]
    assert output.rows.slice(1).to_pylist() == [{"label": None, "score": None, "labels": None}]


def test_one_label_is_told(models: Path) -> None:
    assert "one label, 'spam'" in opened(models / "one").plan_notes[0]
    assert opened(models / "classes").plan_notes == []
