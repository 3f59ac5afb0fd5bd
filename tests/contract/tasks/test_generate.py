"""`generate` as a task of the worker: what transformers would answer, for every item once, or what a server does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import run as runs
from shardmill.api import generate
from shardmill.core.errors import ModelError, SpecError, StaleResume, UsageError
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run
from shardmill.testing import InProcessEngine
from tests.support.generative_models import CHAT, generate_one_by_one, write_generative
from tests.support.llm_server import MODEL, answer_to, llm_server
from tests.support.tiny_models import bert, needed, write_model

transformers = needed("transformers")

MOST = 8
ROWS = [{"id": i, "body": f"{i} of {{body}} and " + "tea, " * (i * 5 % 9), "topic": "x"} for i in range(24)]
TEMPLATE = "Translate into French: {body}"
PROMPTS = [f"Translate into French: {row['body']}" for row in ROWS]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["praise", "complaint"]}, "sure": {"type": "boolean"}},
    "required": ["kind", "sure"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("generative")
    return {
        "llama": write_generative(root / "llama"),
        "bart": write_generative(root / "bart", "Bart"),
        "chat": write_generative(root / "chat", chat=CHAT),
    }


def _run(source: Path, out: Path, text: str = TEMPLATE, **params: Any) -> Run:
    work = {"source": str(source), "text": text, "id": "id", "task": "generate"}
    spec = make_spec({**work, "params": {"max_tokens": MOST, **params}}, {"shard_bytes": 500, "max_errors": "100%"})
    return runs.start(spec, out, engine=InProcessEngine())


def _prove(run: Run) -> None:
    report = run.verify()
    assert report.verified, report


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_answers_are_those_of_transformers(
    name: str, folders: dict[str, Path], tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    run = _run(write_jsonl(ROWS), tmp_path / "run", model=str(folders[name]))
    table = run.table()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folders[name]))
    wanted = generate_one_by_one(folders[name], PROMPTS, MOST)
    assert table.column("id").to_pylist() == [row["id"] for row in ROWS]
    assert table.column("output").to_pylist() == [tokenizer.decode(ids, skip_special_tokens=True) for ids in wanted]
    ended = [ids[-1] == tokenizer.eos_token_id for ids in wanted]
    assert table.column("finish_reason").to_pylist() == ["stop" if end else "length" for end in ended]
    assert run.status().tokens_out == sum(map(len, wanted)) == sum(table.column("tokens_out").to_pylist())
    assert run.status().shards > 2
    _prove(run)


def test_a_conversation_is_a_column(folders: dict[str, Path], tmp_path: Path) -> None:
    """Of Parquet, where it is a list of structures; a row without one is set aside."""
    talks: list[Any] = [[{"role": "user", "content": f"Say {i}."}] for i in range(5)]
    talks[3] = None
    pq.write_table(pa.table({"id": list(range(5)), "talk": talks}), tmp_path / "talks.parquet")
    run = _run(tmp_path / "talks.parquet", tmp_path / "run", "{talk:json}", model=str(folders["chat"]), messages=True)
    rendered = [f"<|user|>Say {i}.\n<|assistant|>" for i in range(5) if i != 3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folders["chat"]))
    wanted = [
        tokenizer.decode(ids, skip_special_tokens=True) for ids in generate_one_by_one(folders["chat"], rendered, MOST)
    ]
    wanted.insert(3, None)
    assert run.table().column("output").to_pylist() == wanted
    assert [error["reason"] for error in run.errors()] == ["no value in 'talk'"]


def test_what_cannot_be_asked_is_set_aside(
    folders: dict[str, Path], tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    rows = [
        {"id": 0, "talk": "no list"},
        {"id": 1, "talk": [{"role": "user"}]},
        {"id": 2, "talk": [{"role": "user", "content": "long " * 600}]},
        {"id": 3, "talk": [{"role": "user", "content": "Go on."}]},
    ]
    run = _run(write_jsonl(rows), tmp_path / "run", "{talk:json}", model=str(folders["chat"]), messages=True)
    reasons = {int(error["id"]["id"]): error["reason"] for error in run.errors()}
    assert reasons.keys() == {0, 1, 2}
    assert reasons[0] == reasons[1] == "the messages are not a list of objects with role and content"
    assert "more than the 504 that the model takes beside the new ones" in reasons[2]


def test_answers_fit_a_schema(folders: dict[str, Path], tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    """An answer that was cut off is tried again with twice the tokens, and then set aside."""
    params = {"model": str(folders["llama"]), "response_schema": SCHEMA}
    run = _run(write_jsonl(ROWS[:8]), tmp_path / "run", **params, max_tokens=40)
    answers = [json.loads(text) for text in run.table().column("output").to_pylist()]
    assert {answer["kind"] for answer in answers} <= {"praise", "complaint"}
    _prove(run)
    short = _run(write_jsonl(ROWS[:3]), tmp_path / "short", **params, max_tokens=2)
    reasons = [error["reason"] for error in short.errors()]
    assert len(reasons) == 3
    assert all("does not fit the schema" in reason and "The answer: {" in reason for reason in reasons)
    never = {"type": "integer", "minimum": 5, "maximum": 3}
    with pytest.raises(UsageError, match=r"cannot be used: .*minimum \(5\) is greater than maximum \(3\)") as refused:
        _run(write_jsonl(ROWS[:3]), tmp_path / "never", **{**params, "response_schema": never})
    assert "some JSON fits" in refused.value.hint


def test_a_server_answers(tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    source = write_jsonl([{"id": i, "body": f"Prompt {i}"} for i in range(60)])
    with llm_server(faults=0.2, seed=3) as server:
        run = _run(source, tmp_path / "run", "{body}", model=MODEL, endpoint=server.url)
    answers = run.table().column("output").to_pylist()
    assert answers == [answer_to(f"Prompt {i}") for i in range(60)]
    status = run.status()
    assert status.tokens > 0
    assert status.tokens_out > 0
    _prove(run)


def test_a_run_goes_on_when_its_server_has_moved(
    tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command with another address, or by `resume`; so does a run of an earlier version."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    work = {
        "source": str(write_jsonl([{"id": i, "body": f"Prompt {i}"} for i in range(3)])),
        "text": "{body}",
        "id": "id",
        "task": "generate",
        "params": {"model": MODEL, "endpoint": "http://a:1/v1"},
    }
    planned = [runs.prepare(make_spec(work), tmp_path / name) for name in ("again", "resumed", "earlier")]
    assert {run.plan.id for run in planned} == {runs.prepare(_at(work, "http://b:2/v1"), tmp_path / "moved").plan.id}
    ledger = planned[2].ledger
    settings = {k: v for k, v in ledger.execution().items() if k not in ("endpoint", "key_variable")}
    ledger.put_execution(settings)
    with llm_server() as server:
        runs.start(_at(work, server.url), tmp_path / "again", engine=InProcessEngine())
        for name in ("resumed", "earlier"):
            monkeypatch.setattr("shardmill.engines.local.LocalEngine", lambda *_, **__: InProcessEngine())
            runs.resume(tmp_path / name, {"endpoint": server.url})
        for run in planned:
            assert run.table().column("output").to_pylist() == [answer_to(f"Prompt {i}") for i in range(3)]
            assert Run(run.ledger.url).plan.work.params["endpoint"] == server.url
    with pytest.raises(StaleResume, match="model was 'tiny-llm' and is 'other'"):
        runs.start(_at({**work, "params": {"model": "other"}}, "http://a:1/v1"), tmp_path / "again")


def _at(work: dict[str, Any], url: str) -> Spec:
    return make_spec(work, {"endpoint": url})


def test_the_password_in_an_address_is_not_kept(tmp_path: Path) -> None:
    work = {"source": "a.jsonl", "text": "body", "task": "generate"}
    spec = make_spec({**work, "params": {"model": "m", "endpoint": "http://ann:s3cret@host:8000/v1/"}})
    assert spec.work.params["endpoint"] == "http://host:8000/v1"
    assert spec.work.code == ("key:OPENAI_API_KEY@http://host:8000/v1",)


def test_what_cannot_be_is_refused_before_a_run_begins(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source, encoder = write_jsonl(ROWS), write_model(tmp_path / "encoder", bert())
    with pytest.raises(ModelError, match="it does not generate"):
        generate(str(source), template=TEMPLATE, model=str(encoder), out=tmp_path / "run")
    with pytest.raises(UsageError, match="No prompt was given"):
        generate(str(source), model=str(encoder), out=tmp_path / "run")
    with pytest.raises(SpecError, match="max-tokens: must be at least 1"):
        generate(str(source), template=TEMPLATE, model=str(encoder), max_tokens=0, out=tmp_path / "run")
    with pytest.raises(SpecError, match="The schema is no JSON schema"):
        generate(str(source), template=TEMPLATE, model="m", schema={"type": 7}, out=tmp_path / "run")
    assert not (tmp_path / "run" / "plan.json").exists()
