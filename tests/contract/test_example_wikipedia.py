"""examples/wikipedia in small: its commands, its criteria, and the fields of its hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import shardmill

EXAMPLE = Path(__file__).parents[2] / "examples" / "wikipedia"
FIELDS = {"name", "address", "user", "port", "key", "gpus", "python", "conda", "work", "weight"}


def _say(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(shardmill.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )


def _shardmill(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return _say(folder, "-m", "shardmill", *words)


def test_the_job_in_small_meets_its_criteria_and_no_others(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "fake.toml", tmp_path)
    made = _say(tmp_path, str(EXAMPLE / "make_articles.py"), "wikipedia.pkl", "--items", "260")
    assert made.returncode == 0, made.stderr
    ran = _shardmill(tmp_path, "run", "--spec", "fake.toml", "--out", "runs/wiki")
    assert ran.returncode == 0, ran.stderr
    proved = _shardmill(tmp_path, "verify", "runs/wiki", "--rows", "260", "--dims", "1024")
    assert proved.returncode == 0, proved.stdout
    assert "260 rows, 1,024 dimensions, as expected" in proved.stdout
    assert f"{260 * 1024 * 4:,} of them vectors" in proved.stdout
    assert _shardmill(tmp_path, "verify", "runs/wiki", "--rows", "250010").returncode == 1
    merged = _shardmill(tmp_path, "merge", "runs/wiki", "--out", "embeddings.npy")
    assert merged.returncode == 0, merged.stderr
    vectors = np.load(tmp_path / "embeddings.npy", mmap_mode="r")
    assert vectors.shape == (260, 1024)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    (beside,) = tmp_path.glob("embeddings*.parquet")
    ids = pq.read_table(beside).column("id").to_pylist()
    assert (ids[0], ids[249], ids[250], ids[-1]) == ("article-0", "article-249", "question-0", "question-9")


def test_the_hosts_of_the_example_have_only_fields_that_there_are() -> None:
    hosts = tomllib.loads((EXAMPLE / "cluster.toml").read_text())["hosts"]
    assert [host["name"] for host in hosts] == ["tensor01", "tensor02"]
    for host in hosts:
        assert set(host) <= FIELDS
        assert len({"python", "conda"} & set(host)) == 1
