"""Extractive summaries: the sentences that stand for a text, whatever order and batches their vectors come in."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.tasks import open_task
from shardmill.testing import InProcessEngine
from shardmill.verbs.summarize.choice import choose_sentences, score_sentences
from shardmill.verbs.summarize.extract import SENTENCE, SUMMARY, WINDOW_SENTENCES, Extracts
from shardmill.verbs.summarize.groups import summarize_work
from shardmill.verbs.summarize.params import SummarizeParams
from shardmill.verbs.summarize.rouge import ALL_NAMES, NAMES, Means, Rouge, measure_rouge
from shardmill.verbs.summarize.task import SummarizeTask
from tests.support.languages import TEXTS
from tests.support.libraries import needed
from tests.support.tiny_models import bert, pooling, write_model

CPU = Device("cpu", "cpu", precise=True)
ARTICLE = (
    "The storm reached the coast on Monday. Officials closed 12 schools, Mr. Ray said. Rain fell for 3.5 hours. "
    'Dogs barked. "We are safe," she said. The storm then moved inland and lost its strength.'
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny") / "model", bert(), [pooling("mean"), ("Normalize", {}, {})])


@pytest.fixture(scope="module")
def task(model: Path) -> SummarizeTask:
    made = SummarizeTask(model=str(model))
    made.open(CPU)
    return made


def summarize(task: SummarizeTask, texts: list[str | None], *, seed: int | None = None, size: int = 4) -> Any:
    """All texts in batches of any inputs, as a worker would."""
    prepared = task.prepare(texts)
    places = np.arange(len(prepared.inputs))
    if seed is not None:
        random.Random(seed).shuffle(places)
    combined = task.combine(len(texts))
    for at in range(0, len(places), size):
        some = places[at : at + size]
        assert prepared.owners is not None
        combined.add(prepared.owners[some], task.run([prepared.inputs[i] for i in some]).rows)
    made = combined.finish()
    return made.rows.to_pylist(), {**prepared.bad, **made.bad}


def test_a_summary_is_sentences_of_the_text_in_its_order(task: SummarizeTask) -> None:
    (row,), bad = summarize(task, [ARTICLE])
    pieces = [ARTICLE[start:stop] for start, stop in zip(row["starts"], row["stops"], strict=True)]
    assert row["summary"] == " ".join(pieces)
    assert len(pieces) == 3
    assert row["starts"] == sorted(row["starts"])
    assert row["finish_reason"] == "chosen"
    assert not bad
    assert task.check_rows(pa.RecordBatch.from_pylist([row], task.output)) is None


def test_the_order_and_size_of_batches_change_nothing(task: SummarizeTask) -> None:
    texts: list[str | None] = [ARTICLE, ARTICLE[40:], None, "One sentence."]
    first, _ = summarize(task, texts)
    for seed in range(4):
        assert summarize(task, texts, seed=seed, size=1 + 2 * seed)[0] == first


def test_odd_texts(task: SummarizeTask) -> None:
    rows, bad = summarize(task, [None, "Just one sentence", "* * *", "Two. Here.", "same. " * 9])
    assert [row["summary"] for row in rows] == [None, "Just one sentence", None, "Two. Here.", "same. " * 8 + "same."]
    assert [row["finish_reason"] for row in rows] == [None, "whole", None, "whole", "whole"]
    assert set(bad) == {2}
    assert "no sentence" in bad[2]


def test_of_equal_sentences_the_first_is_chosen(model: Path) -> None:
    task = SummarizeTask(model=str(model), sentences=1, lead=False)
    task.open(CPU)
    (row,), _ = summarize(task, ["It is so. Well! It is so. It is so. It is so."])
    assert row["starts"] == [0]


def test_a_long_text_is_chosen_from_window_by_window() -> None:
    """As many windows as it takes, and never the vectors of all of them."""
    params, rng = SummarizeParams(sentences=2, lead=False), np.random.default_rng(1)
    sentences = 3 * WINDOW_SENTENCES + 40
    vectors = rng.normal(size=(sentences, 64)).astype(np.float32)
    topic = np.ones(64, np.float32)
    for best in (700, 1_500):
        vectors[best] = topic + 0.3 * rng.normal(size=64)
    vectors += 0.2 * topic
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    extracts = Extracts(1, 64, params, SUMMARY, None)
    most_held = 0
    for at in range(0, sentences, 64):
        rows = range(at, min(at + 64, sentences))
        columns = [list(rows), [sentences] * len(rows), [9 * i for i in rows], [f"sentence {i}" for i in rows]]
        nothing = [[None] * len(rows)] * 2
        arrays = [pa.array(c, f.type) for c, f in zip([*columns, *nothing], SENTENCE, strict=True)]
        own = pa.FixedSizeListArray.from_arrays(pa.array(vectors[at : at + 64].reshape(-1)), 64)
        batch = pa.RecordBatch.from_arrays([*arrays, own], names=[*(f.name for f in SENTENCE), "embedding"])
        extracts.add(np.zeros(len(rows), np.int64), batch)
        most_held = max(most_held, sum(len(window.vectors) for window in extracts._texts[0].windows.values()))
    (row,) = extracts.finish().rows.to_pylist()
    assert row["summary"] == "sentence 700 sentence 1500"
    assert most_held <= WINDOW_SENTENCES + 3 * params.sentences


def test_the_choice_is_central_early_and_new() -> None:
    vectors = np.array([[1, 0], [1, 0], [0.8, 0.6], [0, 1]], np.float32)
    numbers = np.arange(4)
    centre = vectors.sum(axis=0)
    plain = score_sentences(vectors, numbers, centre, lead=False)
    assert plain.argmax() == 2
    led = score_sentences(vectors, numbers, centre, lead=True)
    assert ((led - plain)[:-1] > (led - plain)[1:]).all()
    assert choose_sentences(vectors, np.array([0.9, 0.9, 0.8, 0.7]), 2) == [0, 3]
    assert choose_sentences(vectors, plain, 9) == [2, 0, 1, 3]
    assert choose_sentences(vectors, plain - 1e-6 * np.array([1, 0, 0, 0]), 9)[1] == 0


def test_parameters_and_stored_rows_are_checked(task: SummarizeTask, model: Path) -> None:
    with pytest.raises(SpecError, match="sentences"):
        open_task("summarize", {"sentences": 0})
    with pytest.raises(SpecError, match="summaries"):
        open_task("summarize", {"summaries": 3})
    (row,), _ = summarize(task, [ARTICLE])
    for change in ({"starts": [], "stops": []}, {"summary": "short"}, {"finish_reason": "tired"}):
        assert task.check_rows(pa.RecordBatch.from_pylist([{**row, **change}], task.output))
    assert task.agreement("float32") == "exact"
    assert task.agreement("float16") == "mostly"
    assert task.fingerprint() == SummarizeTask(model=str(model)).fingerprint()


def test_rouge_is_that_of_rouge_score_and_its_interval_is_seeded(model: Path) -> None:
    pytest.importorskip("rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    task = SummarizeTask(model=str(model), reference="gold")
    task.open(CPU)
    assert tuple(task.fields) == ("gold",)
    golds = ["The storm reached the coast.", None, "Rain fell for hours."]
    prepared = task.prepare([ARTICLE] * 3, pa.record_batch({"gold": pa.array(golds)}))
    combined = task.combine(3)
    combined.add(prepared.owners, task.run(prepared.inputs).rows)  # type: ignore[arg-type]
    rows = combined.finish().rows
    assert rows.schema == task.output
    expected = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for row, gold in zip(rows.to_pylist(), golds, strict=True):
        for name in ("rouge1", "rouge2", "rougeL"):
            assert row[name] == (None if gold is None else expected.score(gold, row["summary"])[name].fmeasure)
    report = task.measure(iter([rows, rows.slice(0, 1)]))
    assert report == measure_rouge(iter([rows, rows.slice(0, 1)]), NAMES)
    assert report["rows"] == 3
    assert report["rouge1"]["low"] <= report["rouge1"]["mean"] <= report["rouge1"]["high"]
    assert Rouge(1)(["a"], [None]).to_pylist() == [{"rouge1": None, "rouge2": None, "rougeL": None}]


ENGLISH = [
    ("The storm reached the coast on Monday.", "On Monday the storms were reaching a coast. Schools closed."),
    ("The café in Málaga was closed, and it's raining.", "A café was closed in the rain; it is “naïve”."),
    ("Rain fell.\nDogs barked at 3.5 hours.", "Dogs bark.\nRain falls for hours."),
    ("", "Nothing at all."),
]


def test_rouge_of_english_is_that_of_rouge_score_to_the_bit() -> None:
    needed("rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    expected = RougeScorer(list(ALL_NAMES), use_stemmer=True)
    for reference, summary in ENGLISH:
        lined = [re.sub(r"(?<=\.) (?=[A-Z])", "\n", text) for text in (reference, summary)]
        due = {name: score.fmeasure for name, score in expected.score(*lined).items()}
        assert Rouge()([summary], [reference]).to_pylist() == [due]


@pytest.mark.parametrize("language", TEXTS)
def test_rouge_counts_the_words_of_any_script(language: str) -> None:
    needed("rouge_score")
    one, other, *_ = TEXTS[language]
    same, half, apart = Rouge()([one, f"{one}\n{other}", other], [one, one, one]).to_pylist()
    assert set(same.values()) == {1.0}
    assert 0.5 < half["rouge1"] < 1
    assert half["rougeLsum"] == half["rougeL"] == half["rouge1"]
    assert apart["rouge1"] < 0.5
    assert Rouge(1)([one], [one]).to_pylist()[0]["rouge1"] == (1.0 if language == "de" else 0.0)


def test_a_run_that_began_without_the_fourth_column_keeps_its_three(model: Path, tmp_path: Path) -> None:
    needed("rouge_score")
    source = tmp_path / "items.jsonl"
    source.write_text("\n".join(json.dumps({"article": text, "gold": text}) for text in TEXTS["zh"]))
    params = {"model": str(model), "reference": "gold", "sentences": 1}
    work = {"source": str(source), "text": "article", "task": "summarize", "params": params}
    begun = {**work, "params": {**params, "method": "extractive"}}
    start(make_spec(begun, {"device": "cpu"}), tmp_path / "old", engine=InProcessEngine())
    for place, columns, mean in (("old", NAMES, 0.0), ("new", ALL_NAMES, 1.0)):
        for _ in range(2):
            run = summarize_work(work, {"device": "cpu"}, tmp_path / place, engine=InProcessEngine())
        assert tuple(name for name in run.table().column_names if name.startswith("rouge")) == columns
        figures = run.verify(sample=3, source=False).figures
        assert [figures[name]["mean"] for name in columns] == [mean] * len(columns)


def test_a_mean_over_many_rows_has_the_interval_of_its_rows() -> None:
    values = np.random.default_rng(0).normal(0.4, 0.1, (50_000, 1))
    means = Means(["score"])
    for at in range(0, len(values), 777):
        means.add(values[at : at + 777])
    found = means.report()["score"]
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert found["mean"] == pytest.approx(values.mean(), abs=1e-4)
    assert found["high"] - found["low"] == pytest.approx(2 * half, rel=0.15)
    assert Means(["score"]).report() == {}
