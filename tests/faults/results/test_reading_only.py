"""Proof for whoever may only read, and for whom the folder is gone; merges that are cut short or misplaced."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import CorruptState, StoreError, UsageError
from shardmill.plan import Shard
from shardmill.results import sample
from shardmill.results.again import RowsAgain
from shardmill.run import Run, start
from shardmill.store import LocalStore, open_store
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli
from tests.support.corpora import fake_rows, fake_spec

Write = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Write) -> Run:
    return start(fake_spec(write_jsonl(fake_rows(60)), shard_bytes=500), tmp_path / "run", engine=InProcessEngine())


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system answers to who may not write; root may, so that a mode of the folder would not do."""

    def refuse(self: LocalStore, key: str, data: bytes = b"") -> None:
        with self._explained(key):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("put", "put_if_absent", "delete"):
        monkeypatch.setattr(LocalStore, name, refuse)


def test_a_folder_that_may_only_be_read_is_proved(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read_only(monkeypatch)
    assert run.verify(sample="all").verified
    said = capsys.readouterr().err
    assert "The report is not kept" in said
    assert "Read-only file system" in said
    assert not (Path(run.ledger.url) / "report.json").exists()


def test_the_command_proves_before_it_writes(run: Run, shardmill: Cli) -> None:
    place = Path(run.ledger.url)
    (place / "report.json").mkdir()
    done = shardmill("verify", place)
    assert done.status == 0, done.err
    assert "Verified: 60 rows" in done.out
    assert "The report is not kept" in done.err
    (place / "report.json").rmdir()
    assert shardmill("verify", place, "--no-report").status == 0
    assert not (place / "report.json").exists()
    told = json.loads(shardmill("verify", place, "--json", "--sample", "10%").out)
    assert "6 of 60 rows computed again" in next(c["seen"] for c in told["checks"] if c["name"] == "sample")
    assert (place / "report.json").exists()


def test_a_folder_that_vanishes_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(run.ledger.url)
    reader = LocalStore.reader

    def vanish(self: LocalStore, key: str) -> Any:
        shutil.rmtree(place, ignore_errors=True)
        return reader(self, key)

    monkeypatch.setattr(LocalStore, "reader", vanish)
    with pytest.raises(CorruptState, match="is gone: it was there when its verification began") as told:
        run.verify()
    assert told.value.hint
    assert not place.exists()


def test_an_interrupted_sample_goes_on_where_it_was(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_KEEP_EVERY_S", 0.0)
    read: list[int] = []
    compare, stop = RowsAgain.compare, [2]

    def listen(self: RowsAgain, shard: Shard, *others: Any) -> Any:
        if shard.index in stop:
            raise KeyboardInterrupt
        read.append(shard.index)
        return compare(self, shard, *others)

    monkeypatch.setattr(RowsAgain, "compare", listen)
    with pytest.raises(KeyboardInterrupt):
        run.verify(sample="all")
    read.clear()
    stop.clear()
    report = Run(run.ledger.url).verify(sample="all")
    assert report.verified
    assert read == list(range(2, len(run.plan.shards)))
    (seen,) = (check.seen for check in report.checks if check.name == "sample")
    before = sum(run.ledger.commits.get(shard).rows for shard in (0, 1))
    assert seen.startswith("60 of 60 rows computed again in float32 on the CPU")
    assert f"{before} of them by a verification that was interrupted" in seen
    read.clear()
    assert run.verify(sample="all").verified
    assert len(read) == len(run.plan.shards)


def test_vectors_never_stand_beside_the_ids_of_another_merge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Path(run.ledger.url).parent / "all.npy"
    run.merge(out)
    assert len(np.load(out)) == pq.read_table(out.with_suffix(".ids.parquet")).num_rows == 60
    rename = LocalStore.rename

    def killed(self: LocalStore, key: str, new: str) -> None:
        if new.endswith(".npy"):
            raise KeyboardInterrupt
        rename(self, key, new)

    monkeypatch.setattr(LocalStore, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        run.merge(out)
    assert not out.exists()
    assert out.with_suffix(".ids.parquet").exists()


@pytest.mark.parametrize("folder", ["parts", "commits", "./parts/deeper", "link/parts"])
def test_a_merge_among_the_run_s_own_files_is_refused(run: Run, folder: str) -> None:
    place = Path(run.ledger.url)
    (place.parent / "link").symlink_to(place)
    out = place.parent / folder / "all.parquet" if folder.startswith("link") else place / folder / "all.parquet"
    with pytest.raises(UsageError, match="among the run's own files"):
        run.merge(out)
    assert not out.exists()
    assert run.merge(place / "all.parquet").rows == 60


def test_a_file_system_without_hard_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreError, match="has no hard links") as told:
        open_store(tmp_path / "run").put_if_absent("commits/1", b"1")
    assert "--out" in str(told.value.hint)
