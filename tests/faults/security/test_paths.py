"""Names that others wrote lead to no file outside their folder: each test plants a way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.errors import CorruptState, SpecError
from shardmill.ledger import Ledger
from shardmill.run import Run, start
from shardmill.store import open_store
from shardmill.testing import InProcessEngine
from shardmill.verbs.split import StreamingDatasetSplitter
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec

Write = Callable[..., Path]
OUTSIDE = ["../theirs.txt", "{}/theirs.txt", "parts/../../theirs.txt", "errors/../../theirs.txt", "theirs/kept.txt"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with errors, beside a file and a folder of somebody else."""
    folder = tmp_path_factory.mktemp("paths")
    rows = [json.dumps(row) for row in fake_rows(60)] + ["not JSON"]
    (folder / "items.jsonl").write_text("\n".join(rows) + "\n")
    spec = fake_spec(folder / "items.jsonl", shard_bytes=2_000, max_errors="5")
    start(spec, folder / "run", engine=InProcessEngine())
    (folder / "theirs.txt").write_text("kept")
    (folder / "theirs").mkdir()
    (folder / "theirs" / "kept.txt").write_text("kept")
    return folder


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def assert_kept(run: Path) -> None:
    assert (run.parent / "theirs.txt").read_text() == "kept"
    assert [p.name for p in (run.parent / "theirs").iterdir()] == ["kept.txt"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("field", ["part", "errors_file"])
def test_a_commit_names_only_files_of_its_run(run: Path, field: str, name: str, shardmill: Cli) -> None:
    commit = sorted((run / "commits").iterdir())[-1]
    name = name.format(run.parent)
    commit.write_text(json.dumps({**json.loads(commit.read_text()), field: name}))
    for words in (["merge", run, "--out", run.parent / "out.parquet"], ["show", run, "--errors"], ["verify", run]):
        assert_told(shardmill(*words), 2, commit.name, name)
    with pytest.raises(CorruptState):
        Ledger(run).sweep()
    ledger = Ledger(run)
    ledger.plan()
    with pytest.raises(CorruptState):
        ledger.commits.delete([int(commit.name.partition(".")[0])])
    assert_kept(run)


@pytest.mark.parametrize("folder", ["leases", "errors", "parts/deep"])
def test_a_link_out_of_the_run_is_not_swept_or_started_over(run: Path, folder: str) -> None:
    shutil.rmtree(run / folder, ignore_errors=True)
    (run / folder).symlink_to(run.parent / "theirs")
    ledger = Ledger(run)
    plan = ledger.plan()
    for act in (ledger.sweep, lambda: ledger.start_over(plan)):
        with pytest.raises(CorruptState, match="leads out of this folder"):
            act()
    assert_kept(run)


@pytest.mark.parametrize("link", ["logs", "logs/worker-0.log"])
def test_a_worker_logs_into_no_link(run: Path, link: str) -> None:
    shutil.rmtree(run / "logs", ignore_errors=True)
    if "/" in link:
        (run / "logs").mkdir()
    (run / link).symlink_to(run.parent / ("theirs.txt" if "/" in link else "theirs"))
    with pytest.raises(CorruptState):
        Ledger(run).folder.log_path("worker-0")
    assert_kept(run)


@pytest.mark.parametrize("index", ["../theirs.txt", "/etc/passwd", "index/../../theirs.txt"])
def test_an_index_is_in_the_run(run: Path, index: str, shardmill: Cli) -> None:
    plan = json.loads((run / "plan.json").read_text())
    plan["source"]["files"][0]["index"] = index
    (run / "plan.json").write_text(json.dumps(plan))
    assert_told(shardmill("verify", run), 2, "plan.json", index)


def test_a_generation_is_no_path(run: Path, shardmill: Cli) -> None:
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps({**plan, "generation": "x/../../../theirs"}))
    assert_told(shardmill("status", run), 2, "plan.json", "generation")


@pytest.mark.parametrize("key", ["../theirs.txt", "a/../../theirs.txt", "/etc/passwd", "..", "a/.."])
def test_a_store_refuses_keys_that_leave_it(run: Path, key: str) -> None:
    store = open_store(run)
    for act in (store.get, store.head, store.delete, lambda k: store.put(k, b"x"), store.writer, store.reader):
        with pytest.raises(CorruptState, match="leads out"):
            act(key)
    assert_kept(run)


def test_split_writes_only_below_its_folder(tmp_path: Path) -> None:
    for name, splits in (("../theirs", None), ("..", None), ("fine", {"../../theirs": 1.0}), ("fine", {"a/b": 1.0})):
        splitter = StreamingDatasetSplitter(tmp_path / "out", splits=splits, quiet=True)
        with pytest.raises(SpecError):
            splitter.from_iterable([{"a": 1}], name, {"chunk_size": 1})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_itself_a_link_is_a_run(run: Path) -> None:
    (run.parent / "link").symlink_to(run)
    assert Run(run.parent / "link").verify(sample=4).verified
