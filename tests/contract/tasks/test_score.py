"""`score` as a run: killed, finished on another engine, proved; candidates; what is refused and what is set aside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import needed

needed("torch")

import shardmill as package  # noqa: E402
from shardmill.core.errors import ModelError, UsageError  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import prepare, resume, start  # noqa: E402
from shardmill.run.costs.forecast import make_forecast  # noqa: E402
from shardmill.testing import InProcessEngine, crash_at  # noqa: E402
from shardmill.verbs.score.report import read_scores  # noqa: E402
from tests.support.answers import passages, questions, write_embedder, write_reranker  # noqa: E402
from tests.support.cli import Cli, assert_told  # noqa: E402
from tests.support.forking import Forking  # noqa: E402
from tests.support.waiting import PATIENCE_S  # noqa: E402

# This process has threads of torch and OpenVINO, for which a child of its own would wait for ever.
processes = Forking()

Write = Callable[..., Path]
EXAMPLE = Path(__file__).parents[3] / "examples" / "score_pairs.py"
LIMITS = {"device": "cpu", "precision": "float32", "shard_bytes": 2_000, "lease_s": 5.0, "max_errors": "100%"}
TEXTS = {row["id"]: row["text"] for row in passages()}
ROWS = [{"id": q["id"], "query": q["question"], "passage": TEXTS[q["passage_id"]]} for q in questions(40)]
BAD = [
    {"id": "no query", "query": None, "passage": "In 1500."},
    {"id": "no passage", "query": "When?", "passage": None},
    {"id": "blank", "query": " ", "passage": "In 1500."},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reranker(tmp_path_factory.mktemp("models") / "reranker")


def spec_of(source: Path, model: Path, **params: Any) -> Any:
    work = {"source": str(source), "text": "passage", "id": "id", "task": "score", "keep": ["query"]}
    text = {"text": "query"} if "candidates" in params else {}
    asked = {} if "candidates" in params else {"query_text": "query"}
    return make_spec({**work, **text, "params": {"model": str(model), **asked, **params}}, LIMITS)


def predict(model: Path, pairs: list[tuple[str, str]]) -> Any:
    cross = needed("sentence_transformers").CrossEncoder(str(model), device="cpu")
    return cross.predict(pairs, show_progress_bar=False)


def _score_and_die(run: str) -> None:
    InProcessEngine(on_step=crash_at("committed", after=1)).start(run)


def test_killed_finished_elsewhere_and_proved(tmp_path: Path, write_jsonl: Write, model: Path) -> None:
    source = write_jsonl([*ROWS, *BAD])
    run = prepare(spec_of(source, model), tmp_path / "run")
    assert len(run.plan.shards) > 2
    child = processes.Process(target=_score_and_die, args=(run.ledger.url,))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    assert 0 < len(run.ledger.commits.shards()) < len(run.plan.shards)
    run = resume(tmp_path / "run", {"engine": "local", "workers": 1})
    report = run.verify(sample="all")
    assert report.verified, report
    said = next(check.seen for check in report.checks if check.name == "sample")
    assert "40 of 40 rows computed again" in said or "largest difference" in said
    table = run.table()
    assert table.column("id").to_pylist() == [row["id"] for row in [*ROWS, *BAD]]
    scores = table.column("score").to_pylist()
    assert scores[40:] == [None, None, None]
    due = predict(model, [(row["query"], row["passage"]) for row in ROWS])
    np.testing.assert_allclose(scores[:40], due, atol=1e-4)
    reasons = {e["row"]: e["reason"] for e in run.errors()}
    assert [why for _, why in sorted(reasons.items())] == [
        "the query: 'query' is null",
        "'passage' is null",
        "the query: the text is blank",
    ]
    made = read_scores(run.ledger, run.plan, run.status())
    assert made is not None
    assert (made.scores, sum(made.counts)) == (40, 40)
    assert made.lowest == pytest.approx(min(scores[:40]))
    assert "What was scored" in Path(run.report()).read_text()


def test_a_changed_score_is_found(tmp_path: Path, write_jsonl: Write, model: Path, monkeypatch: Any) -> None:
    from shardmill.models.pairs import PairModel

    right = PairModel.begin
    monkeypatch.setattr(PairModel, "begin", lambda self, pairs: lambda: right(self, pairs)() + 0.05)
    run = start(spec_of(write_jsonl(ROWS), model), tmp_path / "run", engine=InProcessEngine())
    monkeypatch.undo()
    report = run.verify(sample="all")
    assert not report.verified
    assert "score does not match the source" in str(report)


def test_each_candidate_has_a_score_in_its_order(tmp_path: Path, write_jsonl: Write, model: Path) -> None:
    texts = list(TEXTS.values())
    rows = [
        {"id": i, "query": row["query"], "found": [texts[(7 * i + 5 * k) % len(texts)] for k in range(1 + i % 6)]}
        for i, row in enumerate(ROWS)
    ]
    odd = [[], None, ["a", None], ["a", " "], "a text", [1]]
    bad = [{"id": 40 + i, "query": "When?", "found": found} for i, found in enumerate(odd)]
    run = start(
        spec_of(write_jsonl([*rows, *bad]), model, candidates="found"), tmp_path / "run", engine=InProcessEngine()
    )
    assert run.verify(sample="all").verified
    seen = run.table().column("scores").to_pylist()
    due = iter(predict(model, [(row["query"], text) for row in rows for text in row["found"]]))
    for row, scores in zip(rows, seen, strict=False):
        np.testing.assert_allclose(scores, [next(due) for _ in row["found"]], atol=1e-4)
    assert seen[40:] == [None] * len(odd)
    reasons = [e["reason"] for e in sorted(run.errors(), key=lambda e: e["row"])]
    assert reasons == [
        "'found' is an empty list",
        "'found' is null, not a list of texts",
        "candidate 2 of 'found' is null, not text",
        "candidate 2 of 'found': the text is blank",
        "'found' is text, not a list of texts",
        "candidate 1 of 'found' is a number, not text",
    ]


def test_the_function_and_templates(tmp_path: Path, model: Path) -> None:
    rows = [{"q": row["query"], "title": "T", "body": row["passage"]} for row in ROWS[:6]]
    run = package.score(rows, query_text="Query: {q}", text="{title}: {body}", model=str(model), device="cpu")
    due = predict(model, [(f"Query: {row['q']}", f"T: {row['body']}") for row in rows])
    np.testing.assert_allclose(run.table().column("score").to_pylist(), due, atol=1e-4)


def test_a_forecast_counts_both_texts(write_jsonl: Write, model: Path) -> None:
    forecast = make_forecast(spec_of(write_jsonl(ROWS), model))
    assert (forecast.work.items, forecast.sampled_items) == (len(ROWS), len(ROWS))
    assert forecast.work.mean_tokens > 30
    assert forecast.parameters


def test_what_cannot_be_scored_is_refused(tmp_path: Path, write_jsonl: Write, model: Path, shardmill: Cli) -> None:
    source, out = write_jsonl(ROWS), tmp_path / "run"
    both = ("--query-text", "query", "--text", "passage")
    assert_told(shardmill("score", source, *both, "--out", out), 2, "No --model was given.")
    assert_told(
        shardmill("score", source, "--text", "passage", "--model", model, "--out", out), 2, "One text of the pairs"
    )
    assert_told(
        shardmill("score", source, *both, "--candidates", "x", "--model", model, "--out", out),
        2,
        "--text and --candidates",
    )
    with pytest.raises(ModelError, match=r"(?s)embedder is no cross-encoder.*shardmill embed"):
        start(spec_of(source, write_embedder(tmp_path / "embedder")), out, engine=InProcessEngine())
    said = shardmill("score", source, "--query-text", "qery", "--text", "passage", "--model", model, "--out", out)
    assert_told(said, 2, "qery")
    with pytest.raises(UsageError, match="One text of the pairs is missing"):
        package.score(str(source), text="passage", model=str(model), out=str(out))


def test_the_example(tmp_path: Path, model: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:6]))
    command = [sys.executable, EXAMPLE, "pairs.jsonl", str(model), "run"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *rest = said.stdout.splitlines()
    assert first == "6 rows, verified"
    assert len(rest) == 3
