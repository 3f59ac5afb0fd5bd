"""What command lines and calls of train, tune, map, split, bench and kubernetes stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.cli.command import VerbCommand
from shardmill.core.dialect import speaking
from shardmill.core.errors import SpecError, UsageError
from shardmill.plugins import find, names
from shardmill.run import carrying
from shardmill.run import request as requests
from shardmill.run.request import Request, call_verb
from shardmill.verbs.map import start as map_start
from tests.support.cli import Cli, assert_told

MACHINES = [name for name in names("verbs") if " " in name]


def typed(verb: str, *words: str) -> Request:
    """The request that a command line stands for."""
    declared = find("verbs", verb)
    command = VerbCommand(declared)
    context = command.make_context(verb, list(words))
    given = {name: value for name, value in context.params.items() if value is not None and value != ()}
    return requests.make_request(declared, given, quiet=False)


TYPED: dict[tuple[str, ...], tuple[dict[str, Any], dict[str, Any]]] = {
    ("train", "pairs.jsonl", "--model", "m", "--out", "run"): (
        {"source": ("pairs.jsonl",), "params": {"model": "m"}},
        {},
    ),
    (
        *(
            "train",
            "a.csv",
            "b.csv",
            "--columns",
            "first,second",
            "--label",
            "score",
            "--dims",
            "256,128",
            "--model",
            "m",
        ),
        *("--loss", "cosine", "--epochs", "3", "--learning-rate", "1e-4", "--held-out", "0", "--workers", "2:8"),
        *("--engine", "slurm", "--partition", "gpu", "--set", "account=mine", "--max-errors", "5%", "--detach"),
    ): (
        {
            "source": ("a.csv", "b.csv"),
            "params": {
                "columns": "first,second",
                "label": "score",
                "model": "m",
                "loss": "cosine",
                "dims": "256,128",
                "epochs": 3,
                "learning_rate": 1e-4,
                "held_out": 0.0,
            },
        },
        {
            "engine": "slurm",
            "workers": "2:8",
            "detach": True,
            "max_errors": "5%",
            "engine_options": {"account": "mine", "partition": "gpu"},
        },
    ),
    (
        *(
            "train",
            "db",
            "--query",
            "SELECT 1",
            "--format",
            "csv",
            "--hard-negatives",
            "runs/p",
            "--temperature",
            "0.1",
        ),
        *("--batch", "8", "--weight-decay", "0", "--warmup", "0", "--schedule", "cosine", "--clip", "2", "--seed", "7"),
        *(
            "--max-tokens",
            "64",
            "--split-by",
            "title",
            "--evaluate-every",
            "5",
            "--checkpoint-every",
            "6",
            "--model",
            "m",
        ),
        *("--precision", "float32", "--priority", "3", "--device", "cuda:0,2", "--allow-code", "--then", "verify"),
    ): (
        {
            "source": ("db",),
            "query": "SELECT 1",
            "format": "csv",
            "params": {
                "hard_negatives": "runs/p",
                "model": "m",
                "temperature": 0.1,
                "batch": 8,
                "weight_decay": 0.0,
                "warmup": 0.0,
                "schedule": "cosine",
                "clip": 2.0,
                "seed": 7,
                "max_tokens": 64,
                "split_by": "title",
                "evaluate_every": 5,
                "checkpoint_every": 6,
            },
        },
        {"device": "cuda:0,2", "priority": 3, "then": ("verify",), "precision": "float32"},
    ),
    ("tune", "study.toml", "--trials", "5", "--call", "a:b", "--then", "verify", "--workers", "2", "--out", "run"): (
        {},
        {"workers": "2", "then": ("verify",)},
    ),
    (
        *(
            "map",
            "runs/a",
            "--vector",
            "v",
            "--text",
            "t",
            "--keep",
            "price,sold",
            "--id",
            "id",
            "--shard-bytes",
            "1MB",
        ),
        *("--method", "pacmap", "--sample", "9", "--seed", "2", "--points", "more.jsonl", "--device", "cpu"),
    ): (
        {"source": ("runs/a",), "params": {"vector": "v", "text": "t"}, "id": "id", "keep": "price,sold"},
        {"device": "cpu", "shard_bytes": "1MB"},
    ),
    ("kubernetes render", "argo", "--workers", "4", "--device", "cpu", "--set", "most=24", "--out", "s3://b/r"): (
        {},
        {"workers": "4", "device": "cpu", "engine_options": {"most": "24"}},
    ),
    ("kubernetes check", "--namespace", "ml", "--image", "i", "--set", "context=c"): (
        {},
        {"engine_options": {"context": "c", "image": "i"}},
    ),
}


@pytest.mark.parametrize("words", TYPED, ids=" ".join)
def test_a_command_line_stands_for_the_tables_of_a_spec(words: tuple[str, ...]) -> None:
    request = typed(*words)
    assert (request.work, request.execution) == TYPED[words]


def carried(monkeypatch: pytest.MonkeyPatch, verb: str, **given: Any) -> tuple[Any, ...]:
    """What a call of a function passes on to be run."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(carrying, "carry_out", lambda *tables, **how: seen.append((*tables, how)))
    call_verb(verb, given)
    return seen[0]


def test_a_call_of_train_stands_for_the_same_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    found = carried(
        monkeypatch,
        "train",
        source="pairs.jsonl",
        model="m",
        columns=["question", "passage"],
        prompts={"question": "query: "},
        dims=[256, 128],
        out=Path("run"),
        fresh=True,
        engine_options={"account": "mine"},
    )
    params = {
        "columns": ["question", "passage"],
        "prompts": {"question": "query: "},
        "model": "m",
        "dims": [256, 128],
    }
    how = {"fresh": True, "resume": False, "allow_code": False, "quiet": True}
    work = {"source": "pairs.jsonl", "task": "train", "params": params}
    assert found == (work, {"engine_options": {"account": "mine"}}, "run", how)


def test_prompts_are_typed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ("question=query: ", "passage=a=b")
    found = carried(monkeypatch, "train", source="a.jsonl", model="m", prompt=prompts)
    assert found[0]["params"] == {"model": "m", "prompts": {"question": "query: ", "passage": "a=b"}}
    with speaking("command"), pytest.raises(UsageError, match="--prompt 'question' is not KEY=VALUE"):
        carried(monkeypatch, "train", source="a.jsonl", model="m", prompt=("question",))


def test_a_study_says_what_the_command_line_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"source": ["pairs.jsonl"], "params": {"model": "m", "batch": 8, "epochs": 2}}
    monkeypatch.setattr("shardmill.verbs.train.best.best_training", lambda place: best)
    found = carried(monkeypatch, "train", study="runs/study", epochs=5)
    assert found[0] == {"source": ["pairs.jsonl"], "params": {"model": "m", "batch": 8, "epochs": 5}, "task": "train"}


def test_a_call_of_tune_passes_on_what_replaces_keys_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("shardmill.verbs.tune.work.tune_study", lambda *given, **how: seen.append((given, how)))
    study = {"work": {"call": "a:b"}, "space": {"x": [1]}}
    call_verb("tune", {"study": study, "call": len, "trials": 3, "out": "run", "max_errors": "0"})
    how = {"fresh": False, "resume": False, "allow_code": False, "quiet": True}
    assert seen == [((study, {"call": len, "trials": 3}, {"max_errors": "0"}, "run"), how)]


def test_marks_are_a_file_on_the_command_line_and_texts_in_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "marks.txt").write_text("one\ntwo\n")
    seen: list[Any] = []
    monkeypatch.setattr("shardmill.verbs.map.making.make_map", lambda *given, **how: seen.append((given, how)))
    map_start.start(typed("map", "runs/a", "--mark", str(tmp_path / "marks.txt"), "--out", "map", "--resume"))
    call_verb("map", {"source": "runs/a", "marks": ["one", "two"], "out": "map", "text": "body", "batch_tokens": 512})
    usual = {"method": "umap", "sample": 20_000, "seed": 0, "points": ""}
    assert seen == [
        (
            ({"source": ("runs/a",), **usual, "marks": ["one", "two"]}, {}, "map"),
            {"fresh": False, "resume": True, "quiet": False},
        ),
        (
            (
                {"source": "runs/a", "params": {"text": "body"}, "text": "body", **usual, "marks": ("one", "two")},
                {"batch_tokens": 512},
                "map",
            ),
            {"fresh": False, "resume": False, "quiet": True},
        ),
    ]


def test_split_takes_its_options_as_they_are_typed() -> None:
    options = typed(
        *("split", "a.jsonl", "b.jsonl", "--out", "data", "--bytes", "64MB", "--format", "jsonl", "--compress", "gzip"),
        *("--shuffle", "7", "--splits", "train=0.9,test=0.1", "--by", "hash:asin", "--name", "n", "--fresh", "--json"),
    ).options
    assert options.model_dump(exclude_unset=True) == {
        "source": ("a.jsonl", "b.jsonl"),
        "bytes": "64MB",
        "out": "data",
        "name": "n",
        "format": "jsonl",
        "compress": "gzip",
        "shuffle": 7,
        "splits": "train=0.9,test=0.1",
        "by": "hash:asin",
        "fresh": True,
        "as_json": True,
    }


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:0,2", "all"])
def test_a_bench_takes_the_devices_of_embed(device: str) -> None:
    assert typed("bench embed", "--device", device).options.device == device
    with pytest.raises(SpecError, match="'tpu' is not a device"):
        typed("bench embed", "--device", "tpu")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "a.jsonl", "--out", "run"], ["No model was given", "--model all-MiniLM-L6-v2"]),
        (["train", "a.jsonl", "--model", "m", "--batch", "0"], ["--batch: must be at least 1 (got 0)"]),
        (["train", "a.jsonl", "--model", "m", "--loss", "best"], ["--loss: must be 'in-batch'"]),
        (["train", "a.jsonl", "--model", "m", "--workers", "8:2"], ["At least 8 workers are more than the 2 at most"]),
        (
            ["train", "a.jsonl", "--model", "m", "--columns", "one", "--out", "run"],
            ["columns names 1, not two or three"],
        ),
        (["tune", "study.toml", "--trials", "0"], ["--trials: must be at least 1 (got 0)"]),
        (["map", "runs/a"], ["No --out was given", "--out maps/mine"]),
        (["map", "runs/a", "--method", "tsne", "--out", "m"], ["--method: 'tsne' is neither umap nor pacmap"]),
        (["split", "a.jsonl"], ["No --out was given", "--out data"]),
        (["hosts", "check", "none.toml"], ["none.toml"]),
        (["kubernetes", "report", "runs/a", "--status", "Failed"], ["No --workflow was given"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_is_told_what_to_type(
    words: list[str], told: list[str], shardmill: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_told(shardmill(*words), 2, *told)


@pytest.mark.parametrize("verb", ["train", "tune", "study", "map", "split", *MACHINES])
def test_help_shows_few_options_and_says_each_in_a_line(verb: str) -> None:
    declared, command = find("verbs", verb), VerbCommand(find("verbs", verb))
    assert sum(each.about.common or each.about.argument for each in command.declared) <= 15
    assert len(declared.summary) <= 80
    assert all(each.help.endswith(".") for each in command.declared)
