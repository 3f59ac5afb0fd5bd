"""Answers from the command line: whole runs over a run and over a table, their proof, their figures, and bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardmill as package
from shardmill.core.errors import NotComplete, SpecError, UsageError
from shardmill.models.retrieval.passages import Passage, PassageIndex, find_record, read_record
from shardmill.plan.spec import make_spec
from shardmill.results import passages as building
from shardmill.run import Run, prepare, start
from shardmill.run.searchable import make_searchable
from shardmill.testing import InProcessEngine
from shardmill.verbs.answer.asking import ask
from shardmill.verbs.answer.retriever import FoundPassage
from shardmill.verbs.answer.writer import write_prompt
from tests.support.answers import (
    answer_spec,
    embed_passages,
    passages,
    questions,
    searchable,
    write_models,
)
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec
from tests.support.llm_server import MODEL, answer_to, llm_server

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def over(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return searchable(tmp_path_factory.mktemp("over"), models / "embedder")


@pytest.fixture
def fresh(over: Run, tmp_path: Path) -> Run:
    """The same embed run without passages."""
    shutil.copytree(over.ledger.url, tmp_path / "over", ignore=shutil.ignore_patterns("final"))
    return Run(tmp_path / "over")


def answered(source: Path, over: Run, out: Path, **params: Any) -> Run:
    return start(answer_spec(source, over.ledger.url, **params), out, engine=InProcessEngine())


def test_a_run_of_answers_is_verified_and_measured(
    over: Run, models: Path, tmp_path: Path, write_jsonl: Write, shardmill: Cli
) -> None:
    rows = [*questions(), {"id": "blank", "question": " "}, {"id": "none", "question": None}]
    source = write_jsonl(rows)
    run = answered(source, over, tmp_path / "answers", reader=str(models / "reader"), null_threshold=1e9)
    assert len(run.plan.shards) > 3
    table = run.table()
    assert table.column("id").to_pylist() == [row["id"] for row in rows]
    assert set(table.column("finish_reason").to_pylist()[:-2]) == {"span"}
    assert [e["row"] for e in run.errors()] == [len(rows) - 2, len(rows) - 1]
    texts = {row["id"]: row["text"] for row in passages()}
    for row in table.to_pylist()[:-2]:
        assert texts[row["passage"]][row["start"] : row["stop"]] == row["answer"]
        assert len(row["passages"]) == len(set(row["passages"])) == 10
    report = run.verify()
    assert report.verified, report
    gold = write_jsonl(questions()[:-4], "gold.jsonl")
    said = shardmill("evaluate", tmp_path / "answers", "--gold", gold, "--json")
    seen = json.loads(said.out)
    assert (seen["questions"], seen["ranked"], seen["without_gold"], seen["failed"]) == (26, 20, 6, 2)
    assert 0 <= seen["F1"] <= 1
    assert seen["recall@10"] > 0.5
    assert "6 without gold" in shardmill("evaluate", tmp_path / "answers", "--gold", gold).err


def test_gold_may_have_other_names_and_say_less(over: Run, models: Path, tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl(questions())
    reader = {"reader": str(models / "reader"), "null_threshold": -1e9}
    run = answered(source, over, tmp_path / "answers", by="words", k=3, **reader)
    whole = run.evaluate(source).figures
    assert (whole["recall@1"], whole["MRR@10"], whole["nDCG@10"], whole["F1"]) == (1.0, 1.0, 1.0, 0.0)
    assert (
        run.evaluate(write_jsonl([{**q, "is_impossible": True} for q in questions()], "none.jsonl")).figures["F1"] == 1
    )
    only = [{"id": q["id"], "right": [q["passage_id"], "other"]} for q in questions()]
    seen = run.evaluate(write_jsonl(only, "gold.jsonl"), passages="right")
    assert (seen.ranked, seen.read) == (24, 0)
    assert seen.figures["recall@1"] == 0.5
    assert "F1" not in seen.figures
    with pytest.raises(UsageError, match="neither right answers nor right passages"):
        run.evaluate(write_jsonl(only, "gold.jsonl"))
    with pytest.raises(UsageError, match="none of the 24 questions"):
        run.evaluate(write_jsonl([{"id": "x", "answers": ["y"]}], "other.jsonl"))


def test_a_server_writes_the_answers(
    over: Run, tmp_path: Path, write_jsonl: Write, shardmill: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    source, asked = write_jsonl(questions()), [row["question"] for row in questions()]
    how = {"by": "words", "k": 2, "generator": MODEL}
    with llm_server() as server:
        run = answered(source, over, tmp_path / "answers", **how, endpoint=server.url)
        said = shardmill("ask", over.ledger.url, asked[0], "--by", "words", "-k", 2, "--generator", MODEL,
                         "--endpoint", server.url)  # fmt: skip
    texts = {row["id"]: row["text"] for row in passages()}
    for question, row in zip(asked, run.table().to_pylist(), strict=True):
        shown = [FoundPassage(Passage(0, name, 0, texts[name]), 1.0) for name in row["passages"]]
        assert row["answer"] == answer_to(write_prompt(question, shown))
        assert row["finish_reason"] == "written"
    assert run.table().column("answer")[0].as_py() in said.out
    assert run.status().tokens_out > 0
    report = run.verify()
    assert report.verified, report
    with pytest.raises(SpecError, match="An endpoint is given, but no generator"):
        answered(source, over, tmp_path / "none", endpoint="http://127.0.0.1:1/v1")


def test_ask_from_python_and_the_command_line(over: Run, models: Path, shardmill: Cli) -> None:
    question = "When was the castle of Belmont built?"
    found = package.ask(over.ledger.url, question, by="words", k=2)
    assert found.passage == "Belmont-castle"
    said = shardmill("ask", over.ledger.url, question, "--by", "words", "-k", 2)
    assert said.status == 0
    assert found.text in said.out
    assert "Belmont-castle [" in said.out
    reader = ("--reader", models / "reader", "--null-threshold", -1e9)
    assert "no answer" in shardmill("ask", over.ledger.url, question, *reader).out
    [told] = json.loads(shardmill("ask", over.ledger.url, question, "--json", *reader).out)
    assert (told["answer"], told["finish_reason"], len(told["passages"])) == (None, "no_answer", 10)


def test_kept_texts_windows_and_several_groups(
    models: Path, tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same passages, whether the run kept their texts or the source is read again, in one group or in many."""
    source = write_jsonl(passages())
    monkeypatch.setattr(building, "GROUP_ROWS", 20)
    kept = embed_passages(source, models / "embedder", tmp_path / "kept", keep="text")
    cut = embed_passages(source, models / "embedder", tmp_path / "cut", params={"window_tokens": 14, "overlap": 4})
    assert len(kept.index(graph=False).groups) > 2
    assert kept.index().recall > 0.9
    assert cut.index(graph=False).rows > len(passages())
    source.unlink()
    texts = {row["id"]: row["text"] for row in passages()}
    for run in (kept, cut):
        index = PassageIndex(run.ledger.url)
        for number in range(len(index)):
            passage = index.passage(number)
            assert texts[passage.id][passage.start :].startswith(passage.text)
        [answer] = ask(run.ledger.url, ["When was the castle of Belmont built?"], by="words", k=5)
        assert answer.passages[0].passage.id == "Belmont-castle"
        assert len({found.passage.id for found in answer.passages}) == 5
        assert texts[answer.passage][answer.start : answer.stop] == answer.text


def test_index_prints_its_recall_and_is_used_from_then_on(
    fresh: Run, tmp_path: Path, write_jsonl: Write, shardmill: Cli
) -> None:
    run, asked = fresh, write_jsonl(questions(), "questions.jsonl")
    run.index(graph=False)
    before = prepare(answer_spec(asked, run.ledger.url), tmp_path / "answers").plan.fingerprint
    assert read_record(run.ledger.url).recall is None
    said = shardmill("index", run.ledger.url)
    assert "48 passages in 1 group, recall@10 " in said.err
    assert float(said.err.split("recall@10 ")[1].split()[0]) > 0.9
    assert PassageIndex(run.ledger.url).groups[0].graph is not None
    after = prepare(answer_spec(asked, run.ledger.url), tmp_path / "others").plan.fingerprint
    assert before["search"] == "exact" != after["search"]


def test_a_large_run_is_indexed_without_being_asked(fresh: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "EXACT_ROWS", 40)
    make_searchable(fresh.ledger.url)
    record = find_record(fresh.ledger.store)
    assert record is not None
    assert record.recall is not None


def test_a_damaged_or_missing_index_says_how_to_mend_it(over: Run, tmp_path: Path, write_jsonl: Write) -> None:
    with pytest.raises(UsageError, match="no passages to search") as missing:
        read_record(str(tmp_path))
    assert "shardmill index" in str(missing.value)
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "passages.json").write_text('{"format": 1}')
    with pytest.raises(UsageError, match="damaged"):
        read_record(str(tmp_path))


def test_what_cannot_be_searched_is_refused(
    over: Run, models: Path, tmp_path: Path, write_jsonl: Write, shardmill: Cli
) -> None:
    asked = write_jsonl(questions(), "questions.jsonl")
    options = ("--text", "question", "--id", "id", "--out", tmp_path / "answers")
    assert_told(shardmill("answer", asked, *options), 2, "No --over was given")
    fake = start(fake_spec(write_jsonl(fake_rows(9))), tmp_path / "fake", engine=InProcessEngine())
    assert_told(shardmill("answer", asked, "--over", tmp_path / "fake", *options), 2, "not of embed")
    assert_told(shardmill("evaluate", tmp_path / "fake", "--gold", asked), 2, "not of answer")
    assert_told(shardmill("ask", over.ledger.url, " "), 2, "empty")
    assert_told(shardmill("ask", over.ledger.url, "Why?", "--reader", models / "reranker"), 2, "--rerank")
    assert_told(shardmill("ask", over.ledger.url, "Why?", "--rerank", models / "embedder"), 2, "embed --model")
    work = {"source": str(asked), "text": "question", "params": {"model": str(models / "embedder")}}
    half = prepare(make_spec(work), tmp_path / "half")
    with pytest.raises(NotComplete, match="shards are not done"):
        ask(half.ledger.url, ["Why?"])
    assert fake.plan.work.task != "embed"


def test_an_answer_run_is_not_resumed_over_another_run(
    over: Run, models: Path, tmp_path: Path, write_jsonl: Write
) -> None:
    asked = write_jsonl(questions(), "questions.jsonl")
    how = {"by": "words", "k": 2, "reader": str(models / "reader")}
    run = answered(asked, over, tmp_path / "answers", **how)
    changed = [{**row, "text": row["text"] + " It rains."} for row in passages()]
    other = embed_passages(write_jsonl(changed, "changed.jsonl"), models / "embedder", tmp_path / "other")
    other.index(graph=False)
    with pytest.raises(UsageError, match="over was"):
        answered(asked, other, tmp_path / "answers", **how)
    assert run.status().shards_done == len(run.plan.shards)
