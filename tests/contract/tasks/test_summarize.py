"""`summarize` as a task of the worker: every item once, then every group, with ROUGE where there are references."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import StaleResume, UsageError
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from shardmill.verbs.summarize.groups import settle_method, start_groups, summarize_work
from tests.support.cli import Cli
from tests.support.generative_models import write_generative
from tests.support.services import PostgresServer
from tests.support.summaries import NEWS, write_encoder

LIMITS = {"shard_bytes": 600, "max_errors": "50%", "device": "cpu", "precision": "float32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "model")


def work_of(source: Path, model: Path, **params: Any) -> dict[str, Any]:
    return {
        "source": str(source),
        "text": "article",
        "id": "id",
        "task": "summarize",
        "params": {"model": str(model), "sentences": 2, **params},
    }


def prove(run: Run) -> dict[str, Any]:
    report = run.verify(sample=24)
    assert report.verified, report
    return report.figures


def test_items_are_summarized_and_compared_with_references(
    tmp_path: Path, write_jsonl: Callable[..., Path], model: Path
) -> None:
    pytest.importorskip("rouge_score")
    odd = [
        {"id": 90, "article": " ", "gold": "x"},
        {"id": 91, "article": "...", "gold": "x"},
        {"id": 92, "article": "One."},
    ]
    source = write_jsonl([*NEWS, *odd])
    run = start(make_spec(work_of(source, model, reference="gold"), LIMITS), tmp_path / "run", engine=InProcessEngine())
    figures = prove(run)
    assert figures["rows"] == len(NEWS)
    assert 0 < figures["rouge1"]["low"] <= figures["rouge1"]["mean"] <= figures["rouge1"]["high"] < 1
    rows = {row["id"]: row for row in run.table().to_pylist()}
    for item in NEWS:
        row = rows[item["id"]]
        spans = zip(row["starts"], row["stops"], strict=True)
        assert row["summary"] == " ".join(item["article"][start:stop] for start, stop in spans)
        assert "gold" not in row
    assert (rows[92]["summary"], rows[92]["finish_reason"], rows[92]["rouge1"]) == ("One.", "whole", None)
    assert {error["row"]: error["reason"] for error in run.errors()} == {
        len(NEWS): "the text is blank",
        len(NEWS) + 1: "the text has no sentence with a letter or digit",
    }


def test_groups_are_a_second_run_over_the_first(tmp_path: Path, write_jsonl: Callable[..., Path], model: Path) -> None:
    rows = [*NEWS, {"id": 90, "article": None, "topic": "sea"}, {"id": 91, "article": "No topic."}]
    work = {**work_of(write_jsonl(rows), model), "group_by": "topic"}
    out = tmp_path / "topics"
    run = start_groups(work, LIMITS, out, engine=InProcessEngine())
    items = Run(f"{out}-items")
    prove(items)
    prove(run)
    found = {row["topic"]: row for row in run.table().to_pylist()}
    assert {key: (row["items"], row["left_out"]) for key, row in found.items()} == {
        "birds": (1, 0),
        "sea": (5, 1),
        None: (1, 0),
    }
    of_items = {row["id"]: row["summary"] for row in items.table().to_pylist()}
    assert found["birds"]["summary"] == of_items[5]
    joined = "\n\n".join(of_items[row["id"]] for row in NEWS if row["topic"] == "sea")
    spans = zip(found["sea"]["starts"], found["sea"]["stops"], strict=True)
    assert found["sea"]["summary"] == " ".join(joined[start:stop] for start, stop in spans)
    before = run.plan
    assert start_groups(work, LIMITS, out, resume=True, engine=InProcessEngine()).plan == before
    with pytest.raises(StaleResume, match="sentences was 2 and is 1"):
        start_groups({**work, "params": {**work["params"], "sentences": 1}}, LIMITS, out, engine=InProcessEngine())
    with pytest.raises(UsageError, match="--detach"):
        start_groups(work, {**LIMITS, "detach": True}, out)


def test_the_outcome_of_groups_counts_the_items_that_were_set_aside(
    shardmill: Cli, tmp_path: Path, write_jsonl: Callable[..., Path], model: Path
) -> None:
    rows = [*NEWS, {"id": 90, "article": None, "topic": "sea"}]
    out = tmp_path / "topics"
    start_groups({**work_of(write_jsonl(rows), model), "group_by": "topic"}, LIMITS, out, engine=InProcessEngine())
    said = shardmill("resume", out).err
    assert f" in 1 shard, 0 errors, from {len(rows)} items with 1 error, " in said
    assert f"Next: shardmill show {out}-items --errors   shardmill verify {out} " in said
    told = json.loads(shardmill("resume", out, "--json").out)
    assert told["of_items"] == {"run": f"{out}-items", "rows": len(rows), "errors": 1}
    assert "of_items" not in json.loads(shardmill("resume", f"{out}-items", "--json").out)


def test_a_group_too_large_for_an_item_is_a_tree_of_runs(
    tmp_path: Path, write_jsonl: Callable[..., Path], model: Path
) -> None:
    rows = [{"id": i, "topic": "big", "article": f"Boat {i} left. " + "It was late. " * (i % 3)} for i in range(100)]
    work = work_of(write_jsonl([*rows, {"id": 999, "topic": "small", "article": "Alone."}]), model, sentences=1)
    out = tmp_path / "topics"
    run = start_groups({**work, "group_by": "topic", "max_item_bytes": 1 << 10}, LIMITS, out, engine=InProcessEngine())
    prove(run)
    prove(pieces := Run(f"{out}-pieces"))
    assert pieces.status().rows > 2
    found = {row["topic"]: row for row in run.table().to_pylist()}
    assert {key: row["items"] for key, row in found.items()} == {"big": 100, "small": 1}
    assert found["big"]["summary"] in {row["summary"] for row in Run(f"{out}-items").table().to_pylist()}


def test_a_model_that_writes_is_asked_to(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    folder = write_generative(tmp_path / "bart", "Bart")
    work = work_of(write_jsonl(NEWS), folder, max_tokens=6, window_tokens=64)
    work["params"].pop("sentences")
    work = settle_method(work)
    assert work["params"]["method"] == "generative"
    run = start(make_spec(work, LIMITS), tmp_path / "run", engine=InProcessEngine())
    prove(run)
    rows = run.table().to_pylist()
    assert [row["id"] for row in rows] == [row["id"] for row in NEWS]
    assert max(row["windows"] for row in rows) > 1
    assert sum(commit.tokens_out for commit in run.ledger.commits.read().values()) == sum(r["tokens_out"] for r in rows)


@pytest.mark.services
def test_summaries_of_groups_go_into_a_table(
    postgres: PostgresServer, tmp_path: Path, write_jsonl: Callable[..., Path], model: Path
) -> None:
    """One row per group; the items stay in a run of their own. A group without a key is set aside."""
    source = write_jsonl([*NEWS, {"id": 9, "article": "No topic."}])
    to = {"url": postgres.url(), "table": "topics"}
    work = {**work_of(source, model, sentences=1), "group_by": "topic", "to": to}
    for _ in range(2):
        run = summarize_work(work, {**LIMITS, "index": "none"}, tmp_path / "run", engine=InProcessEngine())
    assert postgres.execute("SELECT topic, items FROM topics ORDER BY 1") == [("birds", 1), ("sea", 5)]
    assert [error["reason"] for error in run.errors()] == ["'topic' is null but part of the key"]
    report = run.verify(sample=0)
    assert report.verified, report
