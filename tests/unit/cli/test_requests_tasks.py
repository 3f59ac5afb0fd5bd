"""What a command line or a call means: the `[work]` and `[execution]` that are run, and how."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.cli.app import app
from shardmill.core.dialect import speaking
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.plan.spec import make_spec
from shardmill.run.request import call_verb
from shardmill.verbs.answer import start as answering
from shardmill.verbs.dedup import start as deduplicating

SPEC = """
[work]
source = "a.jsonl"
text = "t"
task = "embed"
params = { dims = 8, model = "m" }
[work.to]
url = "postgresql:///d"
table = "t0"
[execution]
workers = 9
max_errors = "2%"
"""
APPLIED = """
[work]
source = "a.jsonl"
task = "apply"
params = { call = "os.path:join", lower = true, arguments = { x = 1 } }
"""

Asked = tuple[dict[str, Any], dict[str, Any], str, dict[str, Any]]
Meant = Callable[[str], Asked]


class _StartedError(Exception):
    """Stands for a run, which is not made here."""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Asked]:
    """What would be run: work, execution, folder, and how."""
    found: list[Asked] = []

    def start(work: dict[str, Any], execution: dict[str, Any], out: Any = "", **how: Any) -> None:
        found.append((work, execution, str(out), {name: value for name, value in how.items() if value}))
        raise _StartedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shardmill.verbs.summarize.groups.carry_out", start)
    monkeypatch.setattr("shardmill.run.carrying.carry_out", start)
    monkeypatch.setattr(deduplicating, "remove_duplicates", start)
    return found


@pytest.fixture
def meant(started: list[Asked], tmp_path: Path) -> Meant:
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "apply.toml").write_text(APPLIED)

    def ask(line: str) -> Asked:
        with pytest.raises(_StartedError):
            app(shlex.split(line), standalone_mode=False)
        return started.pop()

    return ask


def test_load(meant: Meant) -> None:
    assert meant("load docs.parquet --text body --id doc_id --to postgresql:///docs --table documents") == (
        {
            "source": ("docs.parquet",),
            "text": "body",
            "id": "doc_id",
            "to": {"url": "postgresql:///docs", "table": "documents"},
        },
        {},
        "",
        {},
    )
    assert meant("load a.jsonl b.jsonl --text body")[0] == {
        "source": ("a.jsonl", "b.jsonl"),
        "text": "body",
        "to": {"url": ""},
    }


def test_load_with_all_that_a_table_takes(meant: Meant) -> None:
    assert meant(
        "load r.jsonl --metadata a.jsonl --metadata b.jsonl --to embedded:shop --schema amazon-reviews-2023 "
        "--unknown-products null --mode skip --changed-only --index ivfflat --rebuild-indexes --vector halfvec "
        "--batch-rows 64 --dims 256 --model ./m --prompt query --window-tokens 128 --overlap 8 --windows mean "
        "--allow-code --workers 2 --shard-bytes 64kB --detach --then verify --then merge:/x/a.parquet"
    ) == (
        {
            "source": ("r.jsonl",),
            "params": {
                "model": "./m",
                "prompt": "query",
                "window_tokens": 128,
                "overlap": 8,
                "windows": "mean",
                "dims": 256,
            },
            "to": {
                "url": "embedded:shop",
                "mode": "skip",
                "changed_only": True,
                "vector": "halfvec",
                "preset": "amazon-reviews-2023",
                "metadata": ("a.jsonl", "b.jsonl"),
                "unknown_products": "null",
            },
        },
        {
            "index": "ivfflat",
            "rebuild_indexes": True,
            "batch_rows": 64,
            "workers": "2",
            "shard_bytes": "64kB",
            "detach": True,
            "then": ("verify", "merge:/x/a.parquet"),
        },
        "",
        {"allow_code": True},
    )


def test_run(meant: Meant) -> None:
    assert meant(
        "run a.jsonl b.jsonl --task lengths:CountWords --param lower=true --param n=3 --param name=abc --text body "
        "--out runs/x --engine ssh --hosts c.toml --set account=mine --set a=b --workers 2:8 --max-errors 5 "
        "--precision float32 --batch-tokens 4096 --device cpu --fresh"
    ) == (
        {
            "source": ("a.jsonl", "b.jsonl"),
            "text": "body",
            "task": "lengths:CountWords",
            "params": {"lower": True, "n": 3, "name": "abc"},
        },
        {
            "engine": "ssh",
            "engine_options": {"account": "mine", "a": "b", "hosts": "c.toml"},
            "workers": "2:8",
            "max_errors": "5",
            "precision": "float32",
            "batch_tokens": 4096,
            "device": "cpu",
        },
        "runs/x",
        {"fresh": True},
    )


def test_run_over_a_spec(meant: Meant) -> None:
    work, execution, out, how = meant(
        "run --spec spec.toml --param dims=64 --table words --workers 3 --out runs/x --resume"
    )
    assert work == {
        "source": "a.jsonl",
        "text": "t",
        "task": "embed",
        "params": {"dims": 64, "model": "m"},
        "to": {"url": "postgresql:///d", "table": "words"},
    }
    assert (execution, out, how) == ({"workers": "3", "max_errors": "2%"}, "runs/x", {"resume": True})
    assert make_spec(work, execution).execution.workers == 3


def test_summarize(meant: Meant) -> None:
    assert meant("summarize n.jsonl --text body --sentences 2 --reference highlights --out runs/n --then verify") == (
        {
            "source": ("n.jsonl",),
            "text": "body",
            "task": "summarize",
            "params": {"method": "extractive", "sentences": 2, "reference": "highlights", "rouge": 2},
        },
        {"then": ("verify",)},
        "runs/n",
        {},
    )
    assert meant(
        "summarize n.jsonl --text article --method generative --model ./bart --max-tokens 142 --temperature 0.5 "
        "--seed 3 --beams 2 --window-tokens 512 --prompt 'Sum up:' --price-in 1 --price-out 2.5 --out runs/w "
        "--to postgresql:///x --table s"
    ) == (
        {
            "source": ("n.jsonl",),
            "text": "article",
            "task": "summarize",
            "params": {
                "method": "generative",
                "model": "./bart",
                "prompt": "Sum up:",
                "window_tokens": 512,
                "max_tokens": 142,
                "temperature": 0.5,
                "seed": 3,
                "beams": 2,
            },
            "to": {"url": "postgresql:///x", "table": "s"},
        },
        {"price_in": 1.0, "price_out": 2.5},
        "runs/w",
        {},
    )


def test_summarize_with_the_model_of_a_server(meant: Meant) -> None:
    server = {"endpoint": "http://gpu1:8000/v1", "key_variable": "KEY"}
    line = "summarize n.jsonl --text a --endpoint http://gpu1:8000/v1 --key-variable KEY --model qwen3 --out runs/w"
    assert meant(line) == (
        {
            "source": ("n.jsonl",),
            "text": "a",
            "task": "summarize",
            "params": {"method": "generative", "model": "qwen3", **server},
        },
        {"device": "cpu", **server},
        "runs/w",
        {},
    )


def test_answer(meant: Meant) -> None:
    assert meant(
        "answer q.jsonl --over runs/wiki --text question --id id --by words -k 5 --rerank r --reader m "
        "--null-threshold 0.5 --model e --out runs/a"
    ) == (
        {
            "source": ("q.jsonl",),
            "text": "question",
            "id": "id",
            "task": "answer",
            "params": {
                "over": "runs/wiki",
                "by": "words",
                "k": 5,
                "rerank": "r",
                "reader": "m",
                "null_threshold": 0.5,
                "model": "e",
            },
        },
        {},
        "runs/a",
        {},
    )
    work, execution, *_ = meant(
        "answer q.jsonl --over runs/wiki --text q --generator qwen3 --endpoint http://gpu1:8000/v1 --price-in 1 --out r"
    )
    assert work["params"] == {"over": "runs/wiki", "generator": "qwen3"}
    assert execution == {"endpoint": "http://gpu1:8000/v1", "price_in": 1.0}


def test_ask_takes_several_questions_on_the_command_line_and_one_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(over: str, questions: Any, **params: Any) -> list[str]:
        asked.append((over, list(questions), params))
        return [f"to {question}" for question in questions]

    monkeypatch.setattr(answering, "ask", ask)
    assert call_verb("ask", {"over": Path("runs/wiki"), "question": "Who?", "k": 3, "reader": None}) == "to Who?"
    assert asked.pop() == ("runs/wiki", ["Who?"], {"quiet": True, "k": 3})
    monkeypatch.setattr("shardmill.verbs.answer.show.show_answers", lambda request, answers: asked.append(answers))
    app(["ask", "runs/wiki", "Who?", "When?", "--generator", "g", "--endpoint", "http://x/v1"], standalone_mode=False)
    assert asked.pop() == ["to Who?", "to When?"]
    assert asked.pop() == (
        "runs/wiki",
        ["Who?", "When?"],
        {"quiet": False, "generator": "g", "endpoint": "http://x/v1"},
    )
    with pytest.raises(UsageError, match="No question"):
        app(["ask", "runs/wiki"], standalone_mode=False)


def test_apply(meant: Meant) -> None:
    assert meant(
        "apply r.jsonl --call os.path:join --param lower=true --param code=3 --column a --column b,c --batch 32 "
        "--text '{title}: {body}' --id asin --out runs/w --batch-rows 9"
    ) == (
        {
            "source": ("r.jsonl",),
            "text": "{title}: {body}",
            "id": "asin",
            "task": "apply",
            "params": {
                "call": "os.path:join",
                "fields": ["a", "b", "c"],
                "text": True,
                "arguments": {"lower": True, "code": 3},
            },
        },
        {"device": "cpu", "batch_rows": 9, "batch_tokens": 32},
        "runs/w",
        {},
    )
    assert meant("apply r.jsonl --call os.path:join --out runs/w --device cuda")[1] == {"device": "cuda"}


def test_apply_over_a_spec(meant: Meant) -> None:
    assert meant("apply --spec apply.toml --param z=1 --out runs/w")[0] == {
        "source": "a.jsonl",
        "text": "{:none}",
        "task": "apply",
        "params": {"call": "os.path:join", "arguments": {"x": 1, "lower": True, "z": 1}},
    }


def test_apply_takes_the_function_itself_in_python(started: list[Asked]) -> None:
    given = {"source": "r.jsonl", "call": shlex.split, "arguments": {"posix": True}, "out": Path("runs/w"), "batch": 8}
    with pytest.raises(_StartedError):
        call_verb("apply", given)
    assert started == [
        (
            {
                "source": "r.jsonl",
                "text": "{:none}",
                "task": "apply",
                "params": {"call": "shlex:split", "arguments": {"posix": True}},
            },
            {"device": "cpu", "batch_tokens": 8},
            "runs/w",
            {"quiet": True},
        )
    ]
    with speaking("python"), pytest.raises(ShardmillError, match="batch=: must be at least 1"):
        call_verb("apply", {**given, "batch": 0})
    with pytest.raises(ShardmillError, match="cannot be sent to workers"):
        call_verb("apply", {**given, "arguments": {"posix": object()}})


def test_dedup(meant: Meant) -> None:
    assert meant(
        "dedup r.jsonl --text body --threshold 0.7 --exact --id a --keep b --out runs/u --then verify --workers 2"
    ) == (
        {"source": ("r.jsonl",), "text": "body", "id": "a", "keep": "b"},
        {"then": ("verify",), "workers": "2"},
        "runs/u",
        {"threshold": 0.7, "exact": True, "markup": True},
    )
    assert meant("dedup r.jsonl --text body --out runs/u")[3] == {"threshold": 0.8, "markup": True}
    # What is False is left out here.
    assert meant("dedup r.jsonl --text body --strip-markup --out runs/u")[3] == {"threshold": 0.8}


def test_augment(meant: Meant) -> None:
    assert meant("augment --num-samples 10k --out runs/p") == (
        {
            "source": "range:0:10000",
            "text": "sample_id",
            "id": "sample_id",
            "task": "augment",
            "params": {"preset": "moderate", "seed": 0, "epoch": 0},
        },
        {"device": "cpu"},
        "runs/p",
        {},
    )
    work, execution, *_ = meant(
        "augment --num-samples 100 --preset mild --seed 4 --epoch 2 --start-id 7 --out runs/p --engine slurm "
        "--partition gpu"
    )
    assert (work["source"], work["params"]) == ("range:7:107", {"preset": "mild", "seed": 4, "epoch": 2})
    assert execution == {"device": "cpu", "engine": "slurm", "engine_options": {"partition": "gpu"}}


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "load a.jsonl --text t --vector big": "--vector: must be 'vector' or 'halfvec'",
        "augment --out runs/p": "No --num-samples was given",
        "evaluate runs/a": "No --gold was given",
        "answer q.jsonl --text q --out runs/a": "No --over was given",
        "summarize n.jsonl --text t --sentences 0 --out runs/n": "--sentences: must be at least 1",
        "dedup r.jsonl --text body": "No --out was given",
    }.items(),
)
def test_what_is_wrong_is_named_by_its_flag(shardmill: Callable[..., Any], line: str, said: str) -> None:
    done = shardmill(*shlex.split(line))
    assert (done.status, done.out) == (2, "")
    assert said in done.err
