"""The parts of the answer task against plain transformers, and answers without a reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.tiny_models import torch, transformers  # isort: skip  # skips without them

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ModelError, SpecError, UsageError
from shardmill.core.sentences import split_sentences
from shardmill.models.kinds import READER, RERANKER, check_kind
from shardmill.models.location import find_model
from shardmill.models.pairs import PairModel
from shardmill.models.reply import Reply
from shardmill.models.retrieval.passages import Passage, PassageIndex
from shardmill.run import Run
from shardmill.verbs.answer.reader import SpanReader
from shardmill.verbs.answer.retriever import FoundPassage
from shardmill.verbs.answer.rows import CUT, NO_ANSWER, SENTENCE, SPAN, WRITTEN, check_answers, make_rows
from shardmill.verbs.answer.task import AnswerTask, _as_written
from shardmill.verbs.answer.writer import _read, write_prompt
from shardmill.verbs.generate.task import GenerateTask
from tests.support.answers import passages, searchable, write_embedder, write_models
from tests.support.generative_models import write_generative

CPU = Device("cpu", "cpu", 1, precise=True)
TEXTS = [row["text"] for row in passages()[:9]]
ASKED = ["When?", "When was the harbour of Arden built, and by whom was it built?", "Who visits it?"] * 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_models(tmp_path_factory.mktemp("models"))
    write_generative(root / "generator")
    return root


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return searchable(tmp_path_factory.mktemp("passages"), models / "embedder")


def opened(run: Run, **params: object) -> AnswerTask:
    task = AnswerTask(over=run.ledger.url, **params)
    task.fingerprint()
    task.open(CPU)
    return task


def test_a_cross_encoder_scores_pairs_as_it_does_one_by_one(models: Path) -> None:
    model = PairModel(models / "reranker", RERANKER, CPU)
    seen = model.score(model.encode(ASKED, TEXTS))
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(models / "reranker").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "reranker")
    pairs = zip(ASKED, TEXTS, strict=True)
    with torch.inference_mode():
        due = [plain(**tokenizer(q, p, return_tensors="pt")).logits[0, 0].item() for q, p in pairs]
    assert seen.tolist() == pytest.approx(due, abs=1e-4)


def test_a_reader_reads_batches_as_it_does_one_by_one(models: Path) -> None:
    reader = SpanReader(find_model(str(models / "reader")), CPU, 30)
    long = " ".join(TEXTS)
    together = reader.read([*ASKED, "When?"], [*TEXTS, long])
    for question, text, seen in zip([*ASKED, "When?"], [*TEXTS, long], together, strict=True):
        [alone] = reader.read([question], [text])
        assert (seen.span.start, seen.span.stop) == (alone.span.start, alone.span.stop)
        assert seen.margin == pytest.approx(alone.margin, abs=1e-3)
    assert len(reader.cut("When?", long)[0]) > 1
    assert reader.read(["When?"], [""])[0].span is None


def test_logits_of_a_window_are_the_models_own(models: Path) -> None:
    reader = SpanReader(find_model(str(models / "reader")), CPU, 30)
    _, [pair], _ = reader.cut(ASKED[1], TEXTS[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "reader")
    given = tokenizer(ASKED[1], TEXTS[1], return_tensors="pt")
    assert pair.ids.tolist() == given["input_ids"][0].tolist()
    assert pair.types.tolist() == given["token_type_ids"][0].tolist()
    plain = transformers.AutoModelForQuestionAnswering.from_pretrained(models / "reader").eval()
    with torch.inference_mode():
        due = plain(**given)
    [seen] = PairModel(models / "reader", READER, CPU).spans([pair])
    assert np.allclose(seen, [due.start_logits[0].numpy(), due.end_logits[0].numpy()], atol=1e-3)


def test_a_batch_that_does_not_fit_is_halved(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PairModel(models / "reranker", RERANKER, CPU)
    pairs = model.encode(ASKED, TEXTS)
    due = model.score(pairs)
    begin, sizes = model.begin, []

    def scarce(some: list) -> object:
        sizes.append(len(some))
        if len(some) > 2:
            raise DeviceOutOfMemory("no room")
        return begin(some)

    monkeypatch.setattr(model, "begin", scarce)
    assert model.score(pairs).tolist() == pytest.approx(due.tolist(), abs=1e-4)
    assert sizes[0] > 2 >= sizes[-1]


def test_without_a_reader_the_best_sentence_of_the_best_passage(run: Run) -> None:
    task = opened(run, k=3)
    [answer] = task.answer(["When was the windmill of Corvale built?"])
    text = next(row["text"] for row in passages() if row["id"] == answer.passage)
    assert (answer.why, len(answer.passages)) == (SENTENCE, 3)
    assert answer.passage == answer.passages[0].passage.id
    assert answer.text == text[answer.start : answer.stop]
    assert answer.text in [text[start:stop] for start, stop in split_sentences(text)]


def test_words_find_the_passage_that_is_asked_for(run: Run, models: Path) -> None:
    task = opened(run, by="words", k=1, reader=str(models / "reader"), null_threshold=1e9)
    assert task._embedder is None
    assert [note.partition(":")[0] for note in task.notes] == ["Reader"]
    answers = task.answer(["When was the windmill of Corvale built?", "xyzzy"])
    assert [a.why for a in answers] == [SPAN, NO_ANSWER]
    assert answers[0].passage == "Corvale-windmill"
    assert answers[1].passages == ()


def test_the_null_threshold_decides_between_a_span_and_none(run: Run, models: Path) -> None:
    reasons = []
    for threshold in (-1e9, 1e9):
        task = opened(run, by="words", k=2, reader=str(models / "reader"), null_threshold=threshold)
        [answer] = task.answer(["When was the windmill of Corvale built?"])
        reasons.append(answer.why)
        assert 0 <= answer.score <= 1
        made = task.run(["When was the windmill of Corvale built?"]).rows
        assert task.check_rows(made) is None
    assert reasons == [NO_ANSWER, SPAN]


def test_a_cross_encoder_orders_four_times_as_many(run: Run, models: Path) -> None:
    task = opened(run, k=3, rerank=str(models / "reranker"))
    question = "When was the museum of Farwick built?"
    scores = [found.score for found in task.answer([question])[0].passages]
    assert scores == sorted(scores, reverse=True)
    wider = opened(run, k=12).answer([question])[0].passages
    model = PairModel(models / "reranker", RERANKER, CPU)
    due = model.score(model.encode([question] * 12, [found.passage.text for found in wider]))
    assert scores == pytest.approx(sorted(due.tolist(), reverse=True)[:3], abs=1e-4)


def test_a_generator_writes_from_the_passages_that_fit(run: Run, models: Path) -> None:
    """Ten passages are too long for it, so it is shown the better half of them, and so on."""
    task = opened(run, by="words", k=10, generator=str(models / "generator"))
    question = "When was the museum of Farwick built?"
    [answer, other] = task.answer([question, "When was the castle of Arden built?"])
    assert (len(answer.passages), len(other.passages)) == (10, 10)
    alone = GenerateTask(model=str(models / "generator"), max_tokens=128)
    alone.open(CPU)
    due = [
        alone.run(alone.prepare([write_prompt(question, answer.passages[:n])]).inputs).rows.column("output")[0].as_py()
        for n in (1, 2)
    ]
    assert answer.text in [text.strip() or None for text in due]
    assert answer.tokens_out > 0 < answer.tokens_in
    assert task.check_rows(task.run([question]).rows) is None
    assert task.fingerprint()["generator weights"]


@pytest.mark.parametrize(
    ("text", "why", "seen", "cited"),
    [
        ("In 1889 [2], by Eiffel [1][2].", "stop", WRITTEN, ("b", "a")),
        ("In 1889 [7] [0].", "stop", WRITTEN, ()),
        (" No answer. ", "stop", NO_ANSWER, ()),
        ("", "stop", NO_ANSWER, ()),
        ("It was [1] and", "length", CUT, ("a",)),
    ],
)
def test_citations_are_read_from_a_reply(text: str, why: str, seen: str, cited: tuple[str, ...]) -> None:
    passages = [FoundPassage(Passage(i, name, 0, "…"), 1.0) for i, name in enumerate("ab")]
    answer = _as_written(_read(Reply(text, why, 9, 3), passages), passages)
    assert (answer.why, answer.cited, answer.tokens_out) == (seen, cited, 3)
    assert check_answers(make_rows([answer]), 2) is None


def test_the_questions_of_a_batch_are_answered_as_one_by_one(run: Run) -> None:
    task = opened(run, k=4)
    asked = [f"When was the {thing} built?" for thing in ("castle", "museum", "railway")]
    together = [[f.passage.id for f in a.passages] for a in task.answer(asked)]
    assert together == [[f.passage.id for f in task.answer([q])[0].passages] for q in asked]


def test_a_passage_knows_its_item(run: Run) -> None:
    index = PassageIndex(run.ledger.url)
    assert [index.passage(i).id for i in (0, 20, 47)] == [passages()[i]["id"] for i in (0, 20, 47)]
    assert [index.passage(i).text for i in (0, 20, 47)] == [passages()[i]["text"] for i in (0, 20, 47)]


def test_stored_rows_that_contradict_themselves_are_found(run: Run) -> None:
    task = opened(run, k=2)
    rows = task.run(["When was the windmill of Corvale built?"]).rows
    assert task.check_rows(rows) is None
    for name, value in {"stop": 0, "finish_reason": NO_ANSWER, "passage": "x", "answer": None}.items():
        at = rows.schema.get_field_index(name)
        wrong = rows.set_column(at, rows.schema.field(name), pa.array([value], rows.schema.field(name).type))
        assert task.check_rows(wrong), name


@pytest.mark.parametrize(
    ("model", "wanted", "said"),
    [("reader", RERANKER, "answer --reader"), ("reranker", READER, "answer --rerank"), ("embedder", READER, "embed")],
)
def test_a_model_of_another_kind_says_which_task_it_fits(models: Path, model: str, wanted: str, said: str) -> None:
    with pytest.raises(ModelError) as refused:
        check_kind(models / model, wanted)
    assert said in str(refused.value)


def test_another_model_than_the_runs_own_is_refused(run: Run, models: Path, tmp_path: Path) -> None:
    other = write_embedder(tmp_path / "other")
    (other / "config_sentence_transformers.json").write_text('{"prompts": {"query": "q: "}}')
    with pytest.raises(UsageError, match="another model than the other here"):
        AnswerTask(over=run.ledger.url, model=str(other)).fingerprint()
    moved = tmp_path / "moved"
    (models / "embedder").rename(moved)
    try:
        assert AnswerTask(over=run.ledger.url, model=str(moved)).fingerprint()["over"]
    finally:
        moved.rename(models / "embedder")


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(SpecError, match="k: input should be greater"):
        AnswerTask(over="x", k=0)
    with pytest.raises(SpecError, match="by"):
        AnswerTask(over="x", by="smell")
