"""A merge that is killed, or whose disk is full: what was there stays, and nothing half-written looks complete."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.errors import StoreFull
from shardmill.results.files.chosen import Chosen
from shardmill.run import Run
from shardmill.store import local
from tests.support.forking import Forking
from tests.support.results import make_run
from tests.support.waiting import PATIENCE_S

processes = Forking()
FILES = ["all.parquet", "all.npy", "all.jsonl", "all.csv.gz", "all.jsonl.zst", "all.arrow"]
FOLDERS: dict[str, dict[str, Any]] = {
    "numbered": {"rows_per_file": 5},
    "by value": {"partition_by": "lang"},
    "both": {"partition_by": "lang", "rows_per_file": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run("vectors", tmp_path_factory.mktemp("run"))


def _merge_and_die(place: str, out: str, asked: dict[str, Any]) -> None:
    """Die after all rows were read but before the last were written, which is as late as it can be."""
    read = Chosen.read

    def dying(self: Chosen, label: str, *, quiet: bool) -> Iterator[pa.RecordBatch]:
        yield from read(self, label, quiet=quiet)
        if label != "sorting":
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_name(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if "partition_by" in asked:
        os.rename = dying_name  # type: ignore[assignment]
    else:
        Chosen.read = dying  # type: ignore[method-assign]
    Run(place).merge(out, **asked)


def _kill(run: Run, out: Path, asked: dict[str, Any]) -> None:
    process = processes.Process(target=_merge_and_die, args=(run.ledger.url, str(out), asked))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL


def _seen(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize("name", FILES)
def test_a_killed_merge_leaves_the_file_before_it(run: Run, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    _kill(run, out, {})
    assert _seen(tmp_path) == []
    run.merge(out, where="n < 7")
    before, names = out.read_bytes(), _seen(tmp_path)
    _kill(run, out, {})
    assert (out.read_bytes(), _seen(tmp_path)) == (before, names)
    run.merge(out)
    assert out.read_bytes() != before
    assert sorted(path.name for path in tmp_path.iterdir()) == names


@pytest.mark.parametrize("case", FOLDERS)
def test_a_killed_merge_leaves_no_folder(run: Run, tmp_path: Path, case: str) -> None:
    out = tmp_path / "all.parquet"
    _kill(run, out, FOLDERS[case])
    assert _seen(tmp_path) == []
    assert len([*tmp_path.iterdir()]) == 1
    assert run.merge(out, **FOLDERS[case]).rows == 60
    assert [path.name for path in tmp_path.iterdir()] == ["all.parquet"]
    assert not [path for path in out.rglob("*") if path.name.startswith((".", "_"))]


@pytest.mark.parametrize("asked", [{}, *FOLDERS.values()], ids=str)
@pytest.mark.parametrize("name", ["all.parquet", "all.jsonl", "all.csv", "all.arrow"])
def test_a_full_disk(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, asked: dict[str, Any]
) -> None:
    out = tmp_path / name
    if not asked:
        run.merge(out, where="n < 7")
    before = _seen(tmp_path)
    content = out.read_bytes() if before else b""
    write, left = local._DurableFile.write, [1_000]

    def fill(self: local._DurableFile, data: Any, /) -> int:
        left[0] -= len(memoryview(data).cast("B"))
        with self._store._explained(self._key):
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    monkeypatch.setattr(local._DurableFile, "write", fill)
    with pytest.raises(StoreFull, match="no space left on the disk"):
        run.merge(out, **asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert not before or out.read_bytes() == content
