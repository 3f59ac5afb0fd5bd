"""Labels, probabilities and spans are those of transformers' pipelines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.models.classifier import Classifier
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.pair_networks import read_network
from shardmill.verbs.classify.task import ClassifyTask
from tests.support.classifiers import TEXTS, transformers, write_classifier, write_entailer, write_tagger
from tests.support.families import KINDS

pytestmark = pytest.mark.model

FAMILIES = KINDS["classifiers of texts"].families
CPU = Device("cpu", "cpu", threads=1, precise=True)
LABELS = ["an invoice", "a complaint", "weather"]


def classify(folder: Path, texts: list[str], device: Device = CPU, **params: Any) -> dict[str, list[Any]]:
    task = ClassifyTask(model=str(folder), **params)
    task.fingerprint()
    task.open(device)
    prepared = task.prepare(texts)
    made: dict[str, list[Any]] = task.run([prepared.inputs[i] for i in range(len(texts))]).rows.to_pydict()
    return made


def is_light(folder: Path) -> bool:
    """Whether the whole model runs without torch."""
    try:
        read_network(folder, Classifier(str(folder)).labels.kind)
    except NotDescribed:
        return False
    return True


def pipe(task: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(task, model=str(folder), device="cpu", **options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_labels_are_those_of_text_classification(family: str, problem: str, tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "model", family, problem_type=problem)
    assert is_light(folder) is (family in KINDS["classifiers of texts"].light)
    due = pipe("text-classification", folder, top_k=None, truncation=True)(TEXTS)
    seen = classify(folder, TEXTS, all_labels=True)
    for expected, label, score, found in zip(due, seen["label"], seen["score"], seen["labels"], strict=True):
        assert [each["label"] for each in found] == [each["label"] for each in expected]
        np.testing.assert_allclose([e["score"] for e in found], [e["score"] for e in expected], atol=2e-5)
        if problem.startswith("single") or expected[0]["score"] >= 0.5:
            assert (label, score) == (expected[0]["label"], pytest.approx(expected[0]["score"], abs=2e-5))
        else:
            assert label is None


@pytest.mark.parametrize("family", KINDS["classifiers of tokens"].families)
def test_spans_are_those_of_token_classification(family: str, tmp_path: Path) -> None:
    folder = write_tagger(tmp_path / "model", family)
    assert is_light(folder) is (family in KINDS["classifiers of tokens"].light)
    own = pipe("token-classification", folder, aggregation_strategy="simple")
    seen = classify(folder, TEXTS)["spans"]
    assert any(seen)
    for text, spans in zip(TEXTS, seen, strict=True):
        due = own(text)
        assert [(s["label"], s["start"], s["end"]) for s in spans] == [
            (d["entity_group"], d["start"], d["end"]) for d in due
        ]
        np.testing.assert_allclose([s["score"] for s in spans], [d["score"] for d in due], atol=2e-5)
        assert [s["text"] for s in spans] == [text[d["start"] : d["end"]] for d in due]


@pytest.mark.parametrize("family", KINDS["entailment"].families)
@pytest.mark.parametrize("several", [False, True])
def test_zero_shot_labels_are_those_of_the_pipeline(family: str, several: bool, tmp_path: Path) -> None:
    folder = write_entailer(tmp_path / "model", family)
    own = pipe("zero-shot-classification", folder)
    due = own(TEXTS, LABELS, hypothesis_template="It is about {}.", multi_label=several)
    seen = classify(folder, TEXTS, labels=LABELS, hypothesis="It is about {}.", multi_label=several, all_labels=True)
    for expected, found in zip(due, seen["labels"], strict=True):
        given = dict(zip(expected["labels"], expected["scores"], strict=True))
        np.testing.assert_allclose([each["score"] for each in found], [given[e["label"]] for e in found], atol=2e-5)
        assert [e["score"] for e in found] == sorted((e["score"] for e in found), reverse=True)


def test_one_label_and_a_number_are_as_in_the_pipeline(tmp_path: Path) -> None:
    one = write_classifier(tmp_path / "one", labels=("spam",))
    due = pipe("text-classification", one, truncation=True)(TEXTS)
    seen = classify(one, TEXTS)
    assert seen["label"] == ["spam"] * len(TEXTS)
    np.testing.assert_allclose(seen["score"], [each["score"] for each in due], atol=2e-5)
    number = write_classifier(tmp_path / "number", labels=("quality",), problem_type="regression")
    due = pipe("text-classification", number, truncation=True)(TEXTS)
    seen = classify(number, TEXTS)
    assert list(seen) == ["score"]
    np.testing.assert_allclose(seen["score"], [each["score"] for each in due], atol=2e-5)


@pytest.mark.parametrize("device", [CPU, replace(CPU, reference=True), replace(CPU, precise=False)], ids=repr)
def test_every_way_gives_the_same(device: Device, tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "model")
    due = pipe("text-classification", folder, truncation=True)(TEXTS)
    seen = classify(folder, TEXTS, device)
    assert seen["label"] == [each["label"] for each in due]
    np.testing.assert_allclose(seen["score"], [each["score"] for each in due], atol=0.01)
