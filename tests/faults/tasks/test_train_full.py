"""A disk for temporary files that is full ends a training run, which goes on once there is space."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import StoreFull
from shardmill.run.carrying import carry_out
from shardmill.testing import InProcessEngine
from tests.support.training import a_model, topic_pairs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that the tiny model fits on, but not its checkpoint."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("checkpoint_every", [2, None])
def test_a_full_disk_of_temporary_files_costs_no_run(
    checkpoint_every: int | None,
    small_disk: Path,
    tmp_path: Path,
    write_jsonl: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params: dict[str, Any] = {"model": str(a_model(tmp_path / "model")), "columns": ["question", "passage"], "batch": 8}
    params |= {"checkpoint_every": checkpoint_every} if checkpoint_every else {}
    work = {"source": str(write_jsonl(topic_pairs(40))), "task": "train", "params": params}
    if checkpoint_every is None:
        (small_disk / "other").write_bytes(bytes(200 << 10))
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(small_disk))
        with pytest.raises(StoreFull, match="no space left on the disk for a model") as caught:
            carry_out(work, {}, tmp_path / "run", engine=InProcessEngine())
    assert "TMPDIR" in caught.value.hint
    assert "resumes" in caught.value.hint
    run = carry_out(work, {}, tmp_path / "run", engine=InProcessEngine())
    assert run.table()["steps"].to_pylist() == [5]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
