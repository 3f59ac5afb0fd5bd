"""Answers are read and measured as transformers 4 and beir do; `benchmarks/answers_peers.py` made the golden files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.answers_peers import ANSWER_TOKENS, MOST_TOKENS, N_BEST, QUESTION_TOKENS, STEP, logits
from shardmill.core.devices import Device
from shardmill.core.evaluation.ranking import ndcg, recall, reciprocal_rank
from shardmill.core.evaluation.squad import exact_match, f1
from shardmill.models.location import find_model
from shardmill.verbs.answer import spans
from shardmill.verbs.answer.reader import SpanReader
from tests.support.tiny_models import bert, transformers, write_model

HERE = Path(__file__).parent
SPANS: list[dict[str, Any]] = json.loads((HERE / "answer_spans.json").read_text())
FIGURES: dict[str, Any] = json.loads((HERE / "answer_figures.json").read_text())


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> SpanReader:
    folder = tmp_path_factory.mktemp("models") / "reader"
    config = bert(vocab_size=30522, max_position_embeddings=512)
    write_model(folder, config, kind=transformers.AutoModelForQuestionAnswering)
    return SpanReader(find_model(str(folder)), Device("cpu", "cpu", 1), ANSWER_TOKENS)


def test_the_limits_are_those_of_the_golden_file() -> None:
    assert (spans.MOST_TOKENS, spans.STEP, spans.QUESTION_TOKENS) == (MOST_TOKENS, STEP, QUESTION_TOKENS)
    assert spans.N_BEST == N_BEST


@pytest.mark.parametrize("case", range(len(SPANS)))
def test_windows_and_spans_are_those_of_transformers_4(reader: SpanReader, case: int) -> None:
    golden = SPANS[case]
    passage = golden["passage"]
    windows, pairs, tokens = reader.cut(golden["question"], passage)
    seen = [[len(p.ids), hashlib.sha256(json.dumps(p.ids.tolist()).encode()).hexdigest()[:16]] for p in pairs]
    assert seen == golden["windows"]
    made = [np.array(logits(case, number, len(pair.ids))) for number, pair in enumerate(pairs)]
    found = spans.best_spans(windows, made, tokens, passage, ANSWER_TOKENS)
    assert [passage[s.start : s.stop] for s in found] == [text for text, *_ in golden["nbest"]]
    numbers = [(s.start_logit, s.end_logit, s.probability) for s in found]
    assert numbers == [pytest.approx(tuple(rest)) for _, *rest in golden["nbest"]]
    null, best = next(s for s in found if s.is_null), next(s for s in found if not s.is_null)
    answer = "" if null.total - best.total > 0 else passage[best.start : best.stop]
    assert answer == golden["best"]


def test_some_golden_questions_have_no_answer_and_some_passages_several_windows() -> None:
    assert {bool(case["best"]) for case in SPANS} == {True, False}
    assert max(len(case["windows"]) for case in SPANS) > 3


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_figures_of_texts_are_those_of_transformers_4() -> None:
    golden, answers = FIGURES["squad"], FIGURES["answers"]
    groups = {
        "": answers,
        "HasAns_": [a for a in answers if a["right"]],
        "NoAns_": [a for a in answers if not a["right"]],
    }
    for prefix, group in groups.items():
        assert 100 * _mean([exact_match(a["answer"], a["right"]) for a in group]) == pytest.approx(
            golden[f"{prefix}exact"]
        )
        assert 100 * _mean([f1(a["answer"], a["right"]) for a in group]) == pytest.approx(golden[f"{prefix}f1"])


def test_figures_of_rankings_are_those_of_beir() -> None:
    golden, answers = FIGURES["ranking"], FIGURES["answers"]
    for k in (1, 5, 10):
        seen = _mean([ndcg(a["passages"], a["grades"], k) for a in answers])
        assert seen == pytest.approx(golden[f"NDCG@{k}"], abs=1e-5)
        seen = _mean([recall(a["passages"], a["grades"], k) for a in answers])
        assert seen == pytest.approx(golden[f"Recall@{k}"], abs=1e-5)
    seen = _mean([reciprocal_rank(a["passages"], a["grades"], 10) for a in answers])
    assert seen == pytest.approx(golden["MRR@10"], abs=1e-5)
