"""What earlier versions wrote is read, resumed, verified and merged: nothing that lies on a disk is lost to a release.

The folders are in tests/data/earlier, one for each version kept. They are opened by what users have: the names of
`shardmill`, the command line and `shardmill.testing`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.testing import InProcessEngine, fake_vector
from tests.support.services import PostgresServer
from tests.support.waiting import PATIENCE_S

CLI = [sys.executable, "-m", "shardmill"]
EARLIER = Path(__file__).parent.parent / "data" / "earlier"
MTIME_NS = 1_700_000_000_123_456_789


class Kept:
    """Copies of what one version wrote, in a folder of the test's own."""

    def __init__(self, version: Path, folder: Path) -> None:
        self.version, self.folder = version, folder
        shutil.copytree(version / "sources", folder / "sources")
        for path in (folder / "sources").glob("*.jsonl"):
            os.utime(path, ns=(MTIME_NS, MTIME_NS))

    def bring(self, name: str) -> Path:
        if not (self.version / name).is_dir():
            pytest.skip(f"the set of {self.version.name} has no {name}: see test_runs_of_0_2_0.py")
        return Path(shutil.copytree(self.version / name, self.folder / name))

    def source(self, name: str) -> str:
        return str(self.folder / "sources" / name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in Path(self.source(name)).read_text().splitlines()]

    def spec(self, name: str, **changes: Any) -> shardmill.Spec:
        """The spec of that name, over the source of that name or another."""
        tables = tomllib.loads(Path(self.source(f"{name}.toml")).read_text())
        source = {"source": self.source(changes.pop("source", f"{name}.jsonl"))}
        return shardmill.make_spec(tables["work"] | source | changes, tables["execution"])


@pytest.fixture(params=sorted(p.name for p in EARLIER.iterdir() if (p / "sources").is_dir()))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(EARLIER / request.param, tmp_path / "kept")


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*CLI, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def content(folder: Path, *names: str) -> dict[str, bytes]:
    """The files of some folders, without what a killed process left half written."""
    return {
        f"{name}/{path.name}": path.read_bytes()
        for name in names
        for path in (folder / name).glob("*")
        if not path.name.startswith(".")
    }


def committed(run: Path) -> dict[str, bytes]:
    """The commits, and the parts and error lists that they name."""
    found = content(run, "commits")
    for raw in list(found.values()):
        commit = json.loads(raw)
        found |= {name: (run / name).read_bytes() for name in (commit["part"], commit["errors_file"]) if name}
    return found


def failed(report: Any) -> list[Any]:
    return [check for check in report.checks if not check.ok]


# A run that is done.


@pytest.mark.model
def test_a_finished_run_is_opened_merged_verified_and_searched(kept: Kept, tmp_path: Path) -> None:
    folder, rows = kept.bring("run-embed"), kept.rows("articles.jsonl")
    before = content(folder, "commits", "parts", "errors", "workers")
    status = shardmill.Run(folder).status()
    assert (status.shards, status.shards_done, status.rows, status.errors) == (4, 4, 56, 1)
    assert [(e["row"], e["line"]) for e in shardmill.Run(folder).errors()] == [(20, 21)]

    asked = {"text": "text", "id": "id", "keep": "title,price,stars", "model": "demo"}
    run = shardmill.embed(kept.source("articles.jsonl"), out=folder, device="cpu", max_errors="5%", **asked)
    assert content(folder, "commits", "parts", "errors", "workers") == before, "something was computed again"

    run.merge(tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table.column("row").to_pylist() == list(range(56))
    for name in ("id", "title", "price", "stars"):
        assert table.column(name).to_pylist() == [row[name] for row in rows]
    without = np.isnan(np.stack(table.column("embedding").to_pylist())).all(axis=1)
    assert without.nonzero()[0].tolist() == [20]
    assert [i for i, vector in enumerate(run.table().column("embedding").to_pylist()) if vector is None] == [20]

    report = run.verify(sample=8)
    assert report.verified, failed(report)
    (sample,) = (check for check in report.checks if check.name == "sample")
    assert sample.seen.startswith("8 of ")
    assert run.search("when does the light go out?", k=1)[0].values["id"] == "a013"


def test_a_finished_augmentation_is_found_done_and_verified(kept: Kept) -> None:
    folder = kept.bring("augment")
    before = content(folder, "commits", "parts", "workers")
    asked = ("--num-samples", "300", "--preset", "mild", "--seed", "5", "--start-id", "40")
    command("augment", *asked, "--out", folder)
    assert content(folder, "commits", "parts", "workers") == before
    run = shardmill.Run(folder)
    report = run.verify()
    assert report.verified, failed(report)
    assert run.table().column("sample_id").to_pylist() == list(range(40, 340))


# Runs whose parent and worker were killed.


def test_a_half_finished_run_is_resumed_by_the_same_command(kept: Kept, tmp_path: Path) -> None:
    folder, rows = kept.bring("run-half"), kept.rows("half.jsonl")
    before = committed(folder)
    assert content(folder, "parts").keys() - before.keys(), "no part without a commit"
    assert content(folder, "leases"), "no lease of a dead worker"
    status = shardmill.Run(folder).status()
    assert 0 < status.shards_done < status.shards

    command("run", kept.source("half.jsonl"), "--spec", kept.source("half.toml"), "--out", folder)
    after = committed(folder)
    assert {name: after[name] for name in before} == before, "a part or commit changed"
    assert content(folder, "parts").keys() <= after.keys(), "a part of the dead is left"
    assert not content(folder, "leases")
    # Version 0.2.0 passes over keys that it does not know.
    new = {"items_digest", "rows_digest"} if kept.version.name != "0.1.0" else set()
    keys = {frozenset(json.loads(raw).keys() - new) for raw in content(folder, "commits").values()}
    assert len(keys) == 1, "that version reads no commit with other keys than its own"

    run = shardmill.Run(folder)
    report = run.verify()
    assert report.verified, failed(report)
    assert "written before items had digests" in str(report)
    run.merge(tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    for name in ("id", "title", "price"):
        assert table.column(name).to_pylist() == [row[name] for row in rows]
    expected = [fake_vector(row["text"]) for row in rows]
    assert np.allclose(np.stack(table.column("embedding").to_pylist()), expected, atol=1e-6)


def test_a_half_finished_run_of_windows_is_resumed(kept: Kept) -> None:
    folder, rows = kept.bring("run-windows"), kept.rows("windows.jsonl")
    before = committed(folder)
    run = shardmill.start(kept.spec("windows"), folder, engine=InProcessEngine())
    after = committed(folder)
    assert {name: after[name] for name in before} == before
    assert run.status().rows == len(rows)
    report = run.verify()
    assert report.verified, failed(report)
    table = run.table().select(["row", "id", "window", "start", "stop"])
    found = [tuple(row.values()) for row in table.to_pylist()]
    cut = 16
    assert found == [
        (i, row["id"], number, at, min(at + cut, len(row["text"])))
        for i, row in enumerate(rows)
        for number, at in enumerate(range(0, len(row["text"]), cut))
    ]


def test_a_text_that_kills_workers_is_still_suspected(kept: Kept) -> None:
    folder, rows = kept.bring("run-suspects"), kept.rows("suspects.jsonl")
    assert any(json.loads(raw)["rows"] for raw in content(folder, "suspects").values())
    before = committed(folder)
    command("run", kept.source("suspects.jsonl"), "--spec", kept.source("suspects.toml"), "--out", folder)
    after, run = committed(folder), shardmill.Run(folder)
    assert {name: after[name] for name in before} == before
    assert [record["row"] for record in run.errors()] == [13]
    assert run.table().column("id").to_pylist() == [row["id"] for row in rows]
    assert run.verify().verified


# Datasets of chunks.


def test_a_split_is_found_done_and_is_a_source(kept: Kept, tmp_path: Path) -> None:
    out, source = kept.bring("split"), kept.source("notes.jsonl")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert "Already complete: 80 items in 3 chunks" in command("split", source, "--out", out, "--items", "30").stderr
    parts = {"shuffle": 7, "splits": {"train": 0.75, "test": 0.25}, "by": "hash:id"}
    splitter = shardmill.StreamingDatasetSplitter(out, format="jsonl", quiet=True, **parts)
    made = splitter.stream_and_split_from_file(source, "parts", {"chunk_bytes": 2000})
    assert made["total_items"] == 80
    assert {path: path.read_bytes() for path in before} == before, "a chunk was written again"

    ids = [row["id"] for row in kept.rows("notes.jsonl")]
    for name, expected in (("notes", ids), ("parts/train", None), ("parts/test", None)):
        listed = json.loads((out / "datasets" / name / "chunk-metadata.json").read_text())
        spec = kept.spec("half", source=str(out / "datasets" / name), keep=())
        run = shardmill.start(spec, tmp_path / name, engine=InProcessEngine())
        found = run.table().column("id").to_pylist()
        assert len(set(found)) == len(found) == listed["total_items"]
        assert expected is None or found == expected
        assert run.verify().verified


def test_a_half_finished_split_goes_on(kept: Kept) -> None:
    out = kept.bring("split")
    chunks = out / "datasets/half/chunks"
    recorded = json.loads((out / "datasets/half/chunk-progress.json").read_text())["chunks"]
    assert recorded
    before = {chunk["path"]: os.stat(out / "datasets/half" / chunk["path"]).st_mtime_ns for chunk in recorded}
    words = ("--name", "half", "--items", "12", "--format", "jsonl")
    said = command("split", kept.source("notes.jsonl"), "--out", out, *words).stderr
    assert f"80 items in 7 chunks ({len(recorded)} kept)" in said
    assert {name: os.stat(out / "datasets/half" / name).st_mtime_ns for name in before} == before
    written = b"".join(path.read_bytes() for path in sorted(chunks.glob("*.jsonl")))
    assert written == Path(kept.source("notes.jsonl")).read_bytes()


# Tables.


@pytest.fixture
def database(kept: Kept, postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database into which the dump of that version is restored."""
    import psycopg

    postgres.execute("DROP DATABASE IF EXISTS earlier WITH (FORCE)", "CREATE DATABASE earlier")
    url = postgres.url(database="earlier")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(gzip.decompress((kept.version / "table/dump.sql.gz").read_bytes()))
    yield url
    postgres.execute("DROP DATABASE IF EXISTS earlier WITH (FORCE)")


def table_place(url: str, table: str) -> str:
    path, mark, query = url.partition("?")
    return f"{path}/{table}{mark}{query}"


def ask(url: str, statement: str) -> list[Any]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


# Where each row lies tells whether it was written again; the ledger says who wrote it.
_ROWS = "SELECT id, ctid::text, xmin::text, md5(embedding::text) FROM {} ORDER BY id"
_BATCHES = """
SELECT plan, target, table_schema, shard, first_row, rows, last, lines, inputs, tokens, truncated, sent, inserted,
       updated, errors, digest, worker, at
FROM shardmill.batches WHERE table_name = '{}' ORDER BY shard, first_row
"""


@pytest.mark.services
@pytest.mark.model
def test_a_loaded_table_is_verified_and_searched_and_nothing_is_loaded_again(kept: Kept, database: str) -> None:
    folder = kept.bring("table/run")
    rows, batches = (ask(database, each.format("documents")) for each in (_ROWS, _BATCHES))
    assert [row[0] for row in rows] == [row["id"] for row in kept.rows("documents.jsonl")]
    asked = {"text": "title,text", "id": "id", "keep": "price,stars", "model": "demo", "batch_rows": 8}
    to = {"to": database, "table": "documents"}
    run = shardmill.load(kept.source("documents.jsonl"), out=folder, device="cpu", **asked, **to)
    assert [ask(database, each.format("documents")) for each in (_ROWS, _BATCHES)] == [rows, batches]
    load = run.status().load
    assert load is not None
    assert (load.rows, load.inserted, load.updated, load.errors) == (24, 24, 0, 0)
    report = run.verify(sample=0)
    assert report.verified, failed(report)
    assert any("24 rows are as they were sent" in check.seen for check in report.checks)

    place = table_place(database, "documents")
    report = json.loads(command("verify", place, "--sample", "0", "--json").stdout)
    assert report["verified"], report
    words = command("search", place, "battery", "--words", "--json", "-k", "1").stdout
    assert json.loads(words)["hits"][0]["values"]["id"] == "a013"


@pytest.mark.services
def test_a_half_finished_load_is_resumed(kept: Kept, database: str, tmp_path: Path) -> None:
    folder, rows = kept.bring("table/run-half"), kept.rows("half-loaded.jsonl")
    before, batches = (ask(database, each.format("half_loaded")) for each in (_ROWS, _BATCHES))
    assert 0 < len(before) < len(rows)
    words = ("--spec", kept.source("half-loaded.toml"), "--to", database, "--out", folder)
    command("load", kept.source("half-loaded.jsonl"), *words)
    after, done = (ask(database, each.format("half_loaded")) for each in (_ROWS, _BATCHES))
    assert [row[0] for row in after] == [row["id"] for row in rows]
    assert set(before) <= set(after), "a row that was there was written again"
    assert set(map(str, batches)) <= set(map(str, done))
    report = shardmill.Run(folder).verify()
    assert report.verified, failed(report)

    # Another folder has no commits: what the ledger in the database says is enough.
    spec = kept.spec("half-loaded", to={"url": database, "table": "half_loaded"})
    shardmill.start(spec, tmp_path / "again", engine=InProcessEngine())
    assert [ask(database, each.format("half_loaded")) for each in (_ROWS, _BATCHES)] == [after, done]
    place = table_place(database, "half_loaded")
    found = json.loads(command("search", place, rows[17]["text"], "--json", "-k", "1").stdout)
    assert found["hits"][0]["values"]["id"] == rows[17]["id"]


@pytest.mark.services
def test_no_column_of_the_ledger_vanishes(kept: Kept, database: str, postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.execute("DROP DATABASE IF EXISTS later WITH (FORCE)", "CREATE DATABASE later")
    later = postgres.url(database="later")
    spec = kept.spec("half-loaded", to={"url": later, "table": "half_loaded"})
    shardmill.start(spec, tmp_path / "run", engine=InProcessEngine())
    columns = (
        "SELECT table_schema, table_name, column_name, data_type, is_generated FROM information_schema.columns"
        " WHERE table_schema = 'shardmill' OR table_name = 'half_loaded'"
    )
    earlier, now = (set(ask(url, columns)) for url in (database, later))
    postgres.execute("DROP DATABASE later WITH (FORCE)")
    assert {("tables",), ("batches",), ("half_loaded",)} == {(row[1],) for row in earlier}
    assert sorted(earlier - now) == []


# What is in the files.

# What a task or a source names: the runs that are compared have others.
_FREE = {"fingerprint", "work.params", "source.columns"}
# What a worker in a process of its own has besides.
_PLACED = {"workers": {"log"}}


def key_paths(value: Any, at: str = "") -> set[str]:
    """The keys in a JSON value, with those above them; numbers that stand for shards are all one.

    >>> sorted(key_paths({"a": [{"b": 1}, {"c": 2}], "open": {"7": {"d": 3}}}))
    ['a', 'a.b', 'a.c', 'open', 'open.*', 'open.*.d']
    """
    if isinstance(value, list):
        return set().union(*(key_paths(each, at) for each in value))
    if not isinstance(value, dict) or at in _FREE:
        return set()
    found = set()
    for key, below in value.items():
        path = f"{at}.{'*' if key.isdigit() else key}".removeprefix(".")
        found |= {path, *key_paths(below, path)}
    return found


def keys_by_kind(folder: Path) -> dict[str, set[str]]:
    """The keys in each kind of file of a run: plan, execution, report, and by folder commits, leases, errors …"""
    found: dict[str, set[str]] = {}
    for path in folder.rglob("[!.]*.json*"):
        kind = path.parent.name if path.parent != folder else path.name
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            found.setdefault(kind, set()).update(key_paths(json.loads(line)))
    return found


def test_no_key_of_a_run_vanishes(kept: Kept, tmp_path: Path) -> None:
    out = tmp_path / "run"
    passing: dict[str, set[str]] = {"leases": set(), "workers": set()}

    def note_keys(step: str, shard: int) -> None:
        """Leases, and the shards that a worker is at, are gone when a run is done; the first batch waits for a beat."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for name, keys in passing.items():
                for path in (out / name).glob("[!.]*.json"):
                    with contextlib.suppress(FileNotFoundError):
                        keys.update(key_paths(json.loads(path.read_bytes())))
            if step != "batch" or "open.*" in passing["workers"] or time.monotonic() > deadline:
                return
            time.sleep(0.05)

    spec = kept.spec("half", source="articles.jsonl")
    shardmill.start(spec, out, engine=InProcessEngine(on_step=note_keys)).verify()
    now = keys_by_kind(out)
    now |= {name: keys | now.get(name, set()) for name, keys in passing.items()}
    kinds = set()
    for name in ("run-embed", "run-half", "run-windows", "augment"):
        for kind, keys in keys_by_kind(kept.version / name).items():
            assert sorted(keys - now[kind] - _PLACED.get(kind, set())) == [], f"{name}: {kind} has lost keys"
            kinds.add(kind)
    expected = {"plan.json", "execution.json", "report.json", "commits", "leases", "workers"}
    # A run with rows that failed is in the first set; state, history and steps are in later ones.
    more = {"errors"} if (kept.version / "run-embed").is_dir() else {"state.json", "history", "steps"}
    assert kinds == expected | more


def test_no_key_of_a_dataset_vanishes(kept: Kept, tmp_path: Path) -> None:
    splitter = shardmill.StreamingDatasetSplitter(tmp_path, quiet=True, splits={"train": 0.75, "test": 0.25})
    splitter.stream_and_split_from_file(kept.source("notes.jsonl"), "new", {"chunk_size": 30})
    for there in ("notes", "parts", "parts/train"):
        earlier = json.loads((kept.version / "split/datasets" / there / "chunk-metadata.json").read_text())
        now = json.loads(
            (tmp_path / "datasets/new" / ("train" if "/" in there else ".") / "chunk-metadata.json").read_text()
        )
        assert sorted(key_paths(earlier) - key_paths(now)) == []
