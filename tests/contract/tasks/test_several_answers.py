"""`generate` with several answers to a prompt, log-probabilities and arguments of the chat template, as a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.tiny_models import needed

needed("torch")

from shardmill.core.errors import ModelError, UsageError  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402
from shardmill.run import Run, start  # noqa: E402
from shardmill.run.reports.generation import read_generation  # noqa: E402
from shardmill.testing import InProcessEngine  # noqa: E402
from shardmill.verbs.generate.start import read_arguments  # noqa: E402
from shardmill.verbs.generate.task import GenerateTask, check_replies, output_of  # noqa: E402
from tests.support.generative_models import CHAT, write_generative  # noqa: E402

LIMITS = {"device": "cpu", "precision": "float32", "shard_bytes": 120}
THINKING = CHAT + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
ROWS = [{"id": i, "body": f"Number {i} of a few texts."} for i in range(6)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generative(tmp_path_factory.mktemp("chat") / "model", chat=THINKING)


def run_of(source: Path, model: Path, out: Path, **params: Any) -> Run:
    work = {"source": str(source), "text": "body", "id": "id", "task": "generate"}
    given = {"model": str(model), "max_tokens": 6, **params}
    return start(make_spec({**work, "params": given}, LIMITS), out, engine=InProcessEngine())


def test_answers_are_lists(tmp_path: Path, write_jsonl: Callable[..., Path], model: Path) -> None:
    source = write_jsonl(ROWS)
    drawn = {"temperature": 1.0, "seed": 3}
    run = run_of(source, model, tmp_path / "run", answers=3, log_probabilities=True, **drawn)
    alone = run_of(source, model, tmp_path / "alone", **drawn)
    assert run.verify(sample=6).verified
    rows = {row["id"]: row for row in run.table().to_pylist()}
    for one in alone.table().to_pylist():
        row = rows[one["id"]]
        assert row["output"][0] == one["output"]
        assert (row["finish_reason"][0], row["tokens_out"][0]) == (one["finish_reason"], one["tokens_out"])
        assert row["tokens_in"] == one["tokens_in"]
        assert [len(scores) for scores in row["log_probabilities"]] == row["tokens_out"]
        assert len(row["output"]) == 3
        assert all(score < 0 for scores in row["log_probabilities"] for score in scores)
    told = read_generation(run.ledger, run.plan, run.status())
    assert told is not None
    assert told.answers == 3 * len(ROWS)
    assert told.tokens == sum(sum(row["tokens_out"]) for row in rows.values())
    assert sum(told.reasons.values()) == 3 * len(ROWS)


def test_arguments_of_the_template_belong_to_the_plan(
    tmp_path: Path, write_jsonl: Callable[..., Path], model: Path
) -> None:
    source = write_jsonl(ROWS)
    plain = run_of(source, model, tmp_path / "plain")
    quiet = run_of(source, model, tmp_path / "quiet", template_arguments={"enable_thinking": False})
    assert plain.plan.id != quiet.plan.id
    assert "template_arguments" not in plain.plan.work.params
    seen = [{row["id"]: row["tokens_in"] for row in run.table().to_pylist()} for run in (plain, quiet)]
    assert all(seen[1][i] > seen[0][i] for i in seen[0])
    with pytest.raises(ModelError, match="reads no 'enable_thought'"):
        run_of(source, model, tmp_path / "wrong", template_arguments={"enable_thought": False})


@pytest.mark.parametrize(
    ("given", "why"), [("{", "is not JSON"), ("[1]", "is not an object"), ({"a": 1}, ""), ('{"a": 1}', "")]
)
def test_arguments_are_json(given: Any, why: str) -> None:
    if not why:
        assert read_arguments(given) == {"a": 1}
        return
    with pytest.raises(UsageError, match=why):
        read_arguments(given)


def test_several_answers_without_a_temperature_are_refused(
    tmp_path: Path, write_jsonl: Callable[..., Path], model: Path
) -> None:
    with pytest.raises(UsageError, match="all 2 answers to a prompt would be the same"):
        run_of(write_jsonl(ROWS), model, tmp_path / "run", answers=2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"output": [["a"]]}, "1 answers to a prompt, where 2 were asked for"),
        ({"finish_reason": [["stop", "tired"]]}, "an unknown finish_reason, 'tired'"),
        ({"tokens_out": [[1, 99]]}, "another number of log-probabilities than of tokens"),
        ({"log_probabilities": [[[-0.5], [0.5, -1.0]]]}, "a log-probability above 0"),
    ],
)
def test_stored_answers_are_checked(change: dict[str, Any], why: str | None) -> None:
    rows = {
        "output": [["a", "b"]],
        "finish_reason": [["stop", "length"]],
        "tokens_in": [4],
        "tokens_out": [[1, 2]],
        "log_probabilities": [[[-0.5], [-1.5, -1.0]]],
    }
    schema = output_of(answers=2, log_probabilities=True)
    batch = pa.RecordBatch.from_pydict({**rows, **change}, schema=schema)
    assert check_replies(batch, 6, None, own=True, answers=2) == why
    assert GenerateTask(model="x", answers=2, temperature=1.0, log_probabilities=True).output == schema
