"""Every verb of the command line once, with real workers, a real PostgreSQL and a real sshd, on small data."""

from __future__ import annotations

import json
import os
import sched
import shutil
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.plugins import names
from tests.support.answers import passages, questions, write_embedder, write_reader, write_reranker
from tests.support.classifiers import write_classifier
from tests.support.cli import Cli, Said, write_spec
from tests.support.colbert_models import write_pylate
from tests.support.corpora import fake_rows
from tests.support.llm_server import MODEL, llm_server
from tests.support.monitored import monitor
from tests.support.objectives import STUDY
from tests.support.services import PostgresServer
from tests.support.sparse_models import write_splade
from tests.support.sshd import running_hosts
from tests.support.summaries import NEWS, write_encoder
from tests.support.training import a_model, topic_pairs

pytestmark = pytest.mark.services

VERBS = set(names("verbs"))
CALLED: set[str] = set()
# It runs three verbs that are called here, which takes a minute: unit/bench/test_tasks.py has it.
LEFT = {"bench tasks"}
ON_CPU = ("--device", "cpu", "--workers", 1)


@pytest.fixture
def verb(shardmill: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command, which succeeds. Its workers find the modules of the tests."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))

    def call(*words: object, status: int = 0) -> Said:
        said = shardmill(*words)
        assert said.status == status, said
        CALLED.update(name for name in VERBS if name.split() == [str(word) for word in words[: len(name.split())]])
        return said

    return call


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def embedder(place: Path) -> Path:
    return write_embedder(place / "embedder")


@pytest.fixture
def docs(place: Path, embedder: Path, verb: Cli) -> Path:
    """A run of embed, made by the first who asks."""
    run = place / "runs" / "docs"
    if not run.exists():
        source = lines(place / "docs.jsonl", passages())
        verb("embed", source, "--text", "text", "--id", "id", "--model", embedder, *ON_CPU, "--out", run)
    return run


def test_a_run_is_looked_at_and_proved(docs: Path, place: Path, verb: Cli, shardmill: Cli) -> None:
    assert "Verified: 48 rows" in verb("verify", docs).out
    verb("receipt", docs)
    assert "48 rows in" in verb("receipt", docs, "--check", docs / "receipt.json").out
    assert json.loads(verb("status", docs, "--json").out)["rows"] == 48
    assert "docs" in verb("runs", docs.parent).out
    verb("plugins")
    assert json.loads(shardmill("doctor", docs, "--json").out)["findings"]
    CALLED.add("doctor")
    verb("show", docs, "--errors")
    verb("cost", docs, "--price", 1)
    verb("merge", docs, "--out", place / "docs.parquet")
    assert (place / "docs.parquet").stat().st_size > 0
    verb("report", docs, "--out", place / "docs.html")
    assert "circle" in (place / "docs.html").read_text() or "<svg" in (place / "docs.html").read_text()
    verb("stop", docs)
    verb("resume", docs)
    assert "Nothing has changed: edition 1 has 48 items." in verb("refresh", docs, *ON_CPU).err
    assert "Edition 2 is read from now on." in verb("migrate", docs, "--dims", 8, "--sample", 4, *ON_CPU).err
    assert "Edition 1 is read from now on; it was 2." in verb("rollback", docs).err
    assert "Nothing to delete." in verb("prune", docs).err


def test_a_run_is_searched_asked_and_mapped(docs: Path, place: Path, verb: Cli) -> None:
    assert "Arden" in verb("search", docs, "Its harbour was built in 1500", "-k", 48).out
    verb("index", docs)
    reader = write_reader(place / "reader")
    verb("ask", docs, "When was the castle of Arden built?", "--by", "words", "-k", 2, "--reader", reader)
    asked = lines(place / "questions.jsonl", questions(6))
    answers = place / "runs" / "answers"
    words = ["--over", docs, "--text", "question", "--id", "id", "--reader", reader, *ON_CPU]
    verb("answer", asked, *words, "--out", answers)
    pairs = lines(place / "pairs.jsonl", [{"q": "When?", "text": row["text"]} for row in passages()[:4]])
    columns = ["--query-text", "q", "--text", "text", "--model", write_reranker(place / "reranker")]
    verb("score", pairs, *columns, *ON_CPU, "--out", place / "runs" / "scores")
    assert json.loads(verb("evaluate", answers, "--gold", asked, "--json").out)
    verb("audit", docs, "--sample", 8)
    verb("map", docs, "--out", place / "map", *ON_CPU)
    assert (place / "map" / "map.html").exists()


def test_a_page_of_runs_is_served(docs: Path) -> None:
    with monitor(docs.parent, "--port", 0) as served:
        request = urllib.request.Request(f"{served.base}api/runs", headers=served.bearer)
        with urllib.request.urlopen(request) as answer:
            assert "docs" in answer.read().decode()
    CALLED.add("monitor")


def test_texts_are_written_and_sorted_out(place: Path, verb: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    news = lines(place / "news.jsonl", NEWS)
    encoder = write_encoder(place / "encoder")
    short = place / "runs" / "short"
    verb("summarize", news, "--text", "article", "--id", "id", "--model", encoder, *ON_CPU, "--out", short)
    spec = place / "job.toml"
    verb("init", news, "--text", "article", "--task", "summarize", "--model", encoder, "--file", spec)
    verb("run", "--spec", spec, *ON_CPU, "--out", place / "runs" / "job")
    classes = write_classifier(place / "classes")
    verb("classify", news, "--text", "article", "--model", classes, *ON_CPU, "--out", place / "runs" / "classes")
    splade = write_splade(place / "splade")
    verb("embed-sparse", news, "--text", "article", "--model", splade, *ON_CPU, "--out", place / "runs" / "sparse")
    colbert = write_pylate(place / "colbert")
    verb("embed-tokens", news, "--text", "article", "--model", colbert, *ON_CPU, "--out", place / "runs" / "tokens")
    with llm_server() as server:
        words = ["--template", "Translate: {article}", "--model", MODEL, "--endpoint", server.url]
        verb("generate", news, *words, "--out", place / "runs" / "french")
    verb("dedup", news, "--text", "article", *ON_CPU, "--out", place / "runs" / "unique")
    (place / "lengths.py").write_text("def f(rows):\n    return [{'length': len(row['article'])} for row in rows]\n")
    assert json.loads(verb("peek", news, "--text", "article", "--model", encoder, "--json").out)["items"] == len(NEWS)
    verb("apply", news, "--call", f"{place / 'lengths.py'}:f", *ON_CPU, "--out", place / "runs" / "lengths")
    verb("split", news, "--out", place / "chunks", "--bytes", "1KB")
    library = place / "library"
    library.mkdir()
    shutil.copy(sched.__file__, library)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    verb("sample", place / "docstrings.jsonl")


def test_models_are_trained_and_tuned(place: Path, verb: Cli) -> None:
    pairs = lines(place / "pairs.jsonl", topic_pairs(24))
    words = ["--columns", "question,passage", "--model", a_model(place / "small"), "--batch", 8, *ON_CPU]
    verb("train", pairs, *words, "--out", place / "runs" / "tuned")
    study = place / "study.toml"
    space = "\n".join(f"{name} = {_toml(value)}" for name, value in STUDY["space"].items())
    study.write_text(f'[work]\ncall = "{STUDY["work"]["call"]}"\ntrials = 4\nsampler = "random"\n\n[space]\n{space}\n')
    verb("tune", study, *ON_CPU, "--out", place / "runs" / "study")
    assert "best" in verb("study", place / "runs" / "study").out
    verb("augment", "--num-samples", 1000, *ON_CPU, "--out", place / "runs" / "parameters")


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value)
    return "{ " + ", ".join(f"{name} = {json.dumps(each)}" for name, each in value.items()) + " }"


def test_a_table_is_loaded_and_read(postgres: PostgresServer, place: Path, embedder: Path, verb: Cli) -> None:
    """PostgreSQL as a sink and as a source."""
    postgres.execute("CREATE DATABASE every_verb")
    url = postgres.url(database="every_verb")
    source = lines(place / "rows.jsonl", passages()[:12])
    words = ["--text", "text", "--id", "id", "--model", embedder, "--to", url, "--table", "places"]
    verb("load", source, *words, *ON_CPU, "--out", place / "runs" / "table")
    table = url.replace("/every_verb", "/every_verb/places")
    said = verb("audit", table, "--text", "text", "--id", "id", "--model", embedder, "--sample", 8)
    assert "8 of 12 rows recomputed" in said.out
    task = ["--task", "shardmill.testing:FakeTask", "--text", "text", "--id", "id"]
    run = place / "runs" / "query"
    verb("run", url, "--query", "SELECT id, text FROM places", *task, *ON_CPU, "--out", run)
    assert json.loads(verb("status", run, "--json").out)["rows"] == 12


def test_a_run_is_planned_and_worked_at(place: Path, verb: Cli) -> None:
    spec = write_spec(place, lines(place / "items.jsonl", fake_rows(60)))
    run = place / "runs" / "planned"
    verb("plan", "--spec", spec, "--out", run)
    verb("work", run, "--device", "cpu")
    assert json.loads(verb("status", run, "--json").out)["rows"] == 60


def test_speeds_are_measured(place: Path, embedder: Path, verb: Cli) -> None:
    verb("bench", "augment", "--samples", 512, "--iterations", 1, "--out", place / "bench.html")
    verb("bench", "embed", "--texts", 8, "--model", embedder, "--device", "cpu", "--json")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    with running_hosts(tmp_path / "hosts", 1) as (host,):
        (tmp_path / "cluster.toml").write_text(host.entry())
        yield tmp_path / "cluster.toml"


def test_hosts_are_checked_stopped_and_cleaned(cluster: Path, verb: Cli) -> None:
    for word in ("check", "stop", "clean"):
        verb("hosts", word, cluster)


def test_kubernetes_is_written_for_and_reported_to(
    place: Path, verb: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a cluster `check` says that there is none: tests/services/kubernetes has one."""
    spec = write_spec(tmp_path, "s3://bucket/items.jsonl")
    words = ["--spec", spec, "--out", "s3://bucket/runs/job", "--set", "image=example.org/shardmill:1"]
    assert "kind: Job" in verb("kubernetes", "render", "job", *words).out
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    verb("kubernetes", "check", status=2)
    verb("kubernetes", "probe", str(tmp_path / "store"))
    verb("kubernetes", "report", place / "runs" / "planned", "--workflow", "ml/planned", "--status", "Failed")


def test_every_verb_was_called(request: pytest.FixtureRequest) -> None:
    """What is new on the command line is called above."""
    here = [item for item in request.session.items if item.path == request.path]
    whole = sum(name.startswith("test_") for name in vars(sys.modules[__name__]))
    if len(here) < whole:
        pytest.skip("only a part of this file is run")
    missed = VERBS - CALLED
    assert missed == LEFT
