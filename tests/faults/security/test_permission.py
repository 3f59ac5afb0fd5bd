"""A run folder may name code, but does not decide that it runs: whoever resumes, verifies or searches it does."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill import make_spec, start
from shardmill.core import permission
from shardmill.core.errors import UsageError
from shardmill.engines.process import worker_environment
from shardmill.run import Run, resume, stop
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec

Write = Callable[..., Path]
READING = (["status"], ["show", "--errors"], ["show", "--shard", "0"], ["cost"], ["merge", "--out", "{}/out.parquet"])
COMPUTING = (["resume"], ["verify"], ["verify", "--sample", "0"])


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mark that is made when a module is imported that has a task and a function that connects."""
    mark = tmp_path / "imported"
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "planted.py").write_text(
        f"import pathlib, sqlite3\npathlib.Path({str(mark)!r}).touch()\n"
        "from shardmill.testing import FakeTask as Mill\n"
        f"def connect():\n    return sqlite3.connect({str(tmp_path / 'rows.db')!r})\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    return mark


@pytest.fixture(params=["task", "source", "places"])
def run(request: pytest.FixtureRequest, tmp_path: Path, write_jsonl: Write, planted: Path) -> Path:
    """A finished run of a built-in task, in which somebody then named code."""
    folder = tmp_path / "run"
    start(fake_spec(write_jsonl(fake_rows(20)), device="cpu"), folder, engine=InProcessEngine())
    plan, execution = (json.loads((folder / name).read_text()) for name in ("plan.json", "execution.json"))
    if request.param == "task":
        plan["work"]["task"] = "planted:Mill"
    elif request.param == "source":
        plan["work"] |= {"source": ["python:planted:connect"], "query": "SELECT id, text FROM rows"}
        plan["source"]["files"][0]["place"] = "python:planted:connect"
    else:
        plan["work"] |= {"query": "SELECT id, text FROM rows"}
        execution["settings"]["places"] = ["python:planted:connect"]
    if request.param == "source":
        execution["settings"].pop("places")
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "execution.json").write_text(json.dumps(execution))
    return folder


@pytest.mark.parametrize("run", ["task"], indirect=True)
@pytest.mark.parametrize("verb", READING, ids=" ".join)
def test_reading_a_run_imports_nothing(run: Path, verb: list[str], planted: Path, shardmill: Cli) -> None:
    name, *options = verb
    assert shardmill(name, run, *(o.format(run.parent) for o in options)).status == 0
    assert not planted.exists()


@pytest.mark.parametrize("verb", COMPUTING, ids=" ".join)
def test_what_computes_refuses_code_that_the_folder_names(
    run: Path, verb: list[str], planted: Path, shardmill: Cli
) -> None:
    name, *options = verb
    if name == "resume":
        next((run / "commits").iterdir()).unlink()
    assert_told(shardmill(name, run, *options), 2, "planted:", "--allow-code")
    assert not planted.exists()


@pytest.mark.parametrize("run", ["task"], indirect=True)
def test_a_search_refuses_code_that_the_folder_names(run: Path, planted: Path, shardmill: Cli) -> None:
    assert_told(shardmill("search", run, "words"), 2, "planted:", "--allow-code")
    assert not planted.exists()


@pytest.mark.parametrize("run", ["task"], indirect=True)
def test_with_permission_it_runs_on_workers_too(run: Path, planted: Path, shardmill: Cli) -> None:
    next((run / "commits").iterdir()).unlink()
    said = shardmill("resume", run, "--allow-code")
    assert said.status == 0, said
    assert planted.exists()
    assert shardmill("verify", run, "--allow-code").status == 0


def test_a_worker_started_by_hand_needs_the_permission(run: Path, planted: Path) -> None:
    next((run / "commits").iterdir()).unlink()
    done = subprocess.run([sys.executable, "-m", "shardmill.worker", str(run)], capture_output=True, text=True)
    assert "planted:" in done.stderr
    assert done.returncode == 2
    assert not planted.exists()


def test_whoever_names_code_has_allowed_it(tmp_path: Path, write_jsonl: Write, planted: Path) -> None:
    work = {"source": str(write_jsonl(fake_rows(5))), "text": "text", "task": "planted:Mill"}
    done = start(make_spec(work), tmp_path / "run", engine=InProcessEngine())
    assert done.verify().verified
    assert planted.exists()
    handed = pickle.dumps(done)
    permission._allowed.clear()
    with pytest.raises(UsageError, match="allow-code"):
        Run(tmp_path / "run").verify()
    assert pickle.loads(handed).verify().verified
    permission._allowed.clear()
    assert Run(tmp_path / "run", allow_code=True).verify().verified


def test_a_worker_is_handed_the_names_and_not_more(tmp_path: Path) -> None:
    from shardmill.core.devices import Device
    from shardmill.engines.slurm.options import SlurmOptions
    from shardmill.engines.slurm.script import make_script

    permission.allow(["lengths:Count", "python:db:connect"])
    assert worker_environment("w", Device("cpu", "cpu"), 0.0)["SHARDMILL_CODE"] == "lengths:Count,python:db:connect"
    script = make_script("/runs/a", SlurmOptions(), "cpu", 0, 1)
    assert 'export SHARDMILL_CODE="lengths:Count,python:db:connect"\n' in script
    for name in ("a:b,c:d", 'a:b";reboot;"', "a:$(reboot)", "os:system\n", "python:x"):
        with pytest.raises(UsageError):
            permission.allow([name])


COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("slurm", {"setup": ["touch /tmp/x"]}),
    ("slurm", {"wrap": "strace"}),
    ("slurm", {"python": "/elsewhere/python"}),
    ("slurm", {"directives": ["--output=/home/ann/.bashrc"]}),
    ("ray", {"runtime_env": {"pip": ["planted"]}}),
    ("ray", {"address": "10.0.0.66:6379"}),
    ("ssh", {"hosts": "theirs.toml"}),
]


@pytest.mark.parametrize(("engine", "options"), COMMANDS, ids=lambda v: v if isinstance(v, str) else next(iter(v)))
def test_commands_of_an_engine_are_not_taken_from_the_folder(
    tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch, engine: str, options: dict[str, Any]
) -> None:
    """A hosts file is refused if it belongs to neither the user nor root."""
    start(fake_spec(write_jsonl(fake_rows(5))), tmp_path / "run", engine=InProcessEngine())
    stored = tmp_path / "run" / "execution.json"
    execution = json.loads(stored.read_text())
    if "hosts" in options:
        (tmp_path / "theirs.toml").touch()
        options = {"hosts": str(tmp_path / "theirs.toml")}
        if os.getuid() == 0:
            os.chown(tmp_path / "theirs.toml", 12345, 12345)
        else:
            monkeypatch.setattr(os, "getuid", lambda: 12345)
    execution["settings"] |= {"engine": engine, "engine_options": options, "device": "cpu"}
    stored.write_text(json.dumps(execution))
    with pytest.raises(UsageError, match=f"sets {next(iter(options))} of the engine '{engine}'"):
        resume(tmp_path / "run")
    if engine == "ssh":
        next((tmp_path / "run" / "commits").iterdir()).unlink()
        with pytest.raises(UsageError, match="sets hosts"):
            stop(tmp_path / "run")
    assert resume(tmp_path / "run", {"engine": "local"}).verify().verified
