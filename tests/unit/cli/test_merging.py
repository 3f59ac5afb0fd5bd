"""`shardmill merge` as a command: pipes, what it prints, and what it refuses in a line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.run import Run
from tests.support.cli import Cli, Said, assert_told, command, process, without_progress
from tests.support.results import make_run
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run("vectors", tmp_path_factory.mktemp("run"))


def test_lines_on_stdout(run: Run) -> None:
    said = process("merge", run.ledger.url, "--out", "-", "--where", "n < 2", "--columns", "id,n", "--rename", "id=key")
    assert said.status == 0, said.err
    assert said.out == '{"row":0,"key":"k0","n":0}\n{"row":1,"key":"k1","n":1}\n'
    assert "2 rows" in said.err


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "jsonl.gz"])
def test_other_formats_on_stdout(run: Run, tmp_path: Path, format: str) -> None:
    done = subprocess.run(
        command("merge", run.ledger.url, "--out", "-", "--format", format), capture_output=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    if format == "arrow":
        assert pa.ipc.open_stream(done.stdout).read_all().num_rows == 60
    else:
        run.merge(tmp_path / f"all.{format}")
        assert done.stdout == (tmp_path / f"all.{format}").read_bytes()


def test_a_reader_that_has_enough(run: Run) -> None:
    words = shlex.join(command("merge", run.ledger.url, "--out", "-"))
    done = subprocess.run(["bash", "-c", f"{words} | head -1"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.startswith('{"row":0,"id":"k0"')
    assert done.stdout.count("\n") == 1
    assert without_progress(done.stderr).count("\n") <= 1
    assert "error" not in done.stderr.lower()


def test_a_pipe_that_is_closed(run: Run) -> None:
    end, pipe = os.pipe()
    os.close(end)
    words = command("merge", run.ledger.url, "--out", "-")
    done = subprocess.run(words, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    os.close(pipe)
    assert (done.returncode, without_progress(done.stderr)) == (141, "")
    nothing = subprocess.run(["bash", "-c", f"{shlex.join(words)} >&-"], capture_output=True, text=True)
    assert_told(Said(nothing.returncode, nothing.stdout, nothing.stderr), 2, "standard output is closed")


def test_what_it_prints(run: Run, shardmill: Cli, tmp_path: Path) -> None:
    words = ("merge", run.ledger.url, "--out", tmp_path / "all.csv", "--rows-per-file", 10)
    said = shardmill(*words)
    assert (said.status, said.out) == (0, "")
    assert f"{tmp_path}/all.csv (6 files)" in said.err
    told = json.loads(shardmill("merge", run.ledger.url, "--out", tmp_path / "two.jsonl", "--json").out)
    size = (tmp_path / "two.jsonl").stat().st_size
    assert told == {"files": [f"{tmp_path}/two.jsonl"], "rows": 60, "bytes": size}


REFUSED: dict[str, tuple[Any, str, str]] = {
    "a suffix": (["--out", "m.xlsx"], "ends in no suffix of a known format", ".parquet, .npy, .jsonl"),
    "a pipe of two files": (["--out", "-", "--format", "npy"], "cannot be written to a pipe", "--out"),
    "a pipe of a folder": (["--out", "-", "--rows-per-file", 3], "A folder of files cannot be written to a pipe", ""),
    "json twice": (["--out", "-", "--json"], "--json prints to stdout", "Give one of them"),
    "a column": (["--out", "m.csv", "--where", "nn = 1"], "--where: the result has no column 'nn'", "Available"),
    "a condition": (["--out", "m.csv", "--where", "n ="], "--where", ""),
    "a new name": (["--out", "m.csv", "--rename", "id"], "--rename 'id' is not KEY=VALUE", "id=key"),
    "no rows": (["--out", "m.csv", "--rows-per-file", 0], "--rows-per-file", "at least 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(run: Run, shardmill: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    words, *said = REFUSED[case]
    assert_told(shardmill("merge", run.ledger.url, *words), 2, *said)
    assert [*tmp_path.iterdir()] == []
