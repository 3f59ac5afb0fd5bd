"""Small jobs are done by the command itself, and nothing else is different: kills, Ctrl-C, poison, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.support.cli import command
from tests.support.tiny_models import bert, pooling, write_model
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

# Every process of the command imports it first. Texts of forty words or more are the poison.
TROUBLE = """
import os, signal, sys, time

if "shardmill" in " ".join(sys.orig_argv):
    from shardmill.core.errors import DeviceLost
    from shardmill.verbs.embed.task import EmbedTask

    begin, trouble = EmbedTask.begin, os.environ["TROUBLE"]

    def once(error):
        if not os.path.exists(os.environ["MARK"]):
            open(os.environ["MARK"], "w").close()
            raise error

    def begin_in_trouble(self, inputs):
        if trouble == "poison" and max(map(len, inputs)) > 40:
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "slow":
            time.sleep(1)
        if trouble == "stuck" and not os.path.exists(os.environ["MARK"]):
            open(os.environ["MARK"], "w").close()
            time.sleep(1e6)
        if trouble == "lost":
            once(DeviceLost("lost once"))
        return begin(self, inputs)

    EmbedTask.begin = begin_in_trouble
    if trouble == "bug":
        EmbedTask.numerics = property(lambda self: once(KeyError("a bug")) or self.encoder.numerics)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", bert(), [pooling("mean")])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [{"text": f"a battery that died after {i} hours"} for i in range(9)]
    (tmp_path / "ten.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "word " * 50}]))
    return tmp_path / "ten.jsonl"


def _start(source: Path, model: Path, *more: object, trouble: str = "") -> subprocess.Popen[str]:
    """The command, and a place for the trouble that its processes have."""
    place = source.parent / "trouble"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(TROUBLE)
    path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        command("embed", source, "--text", "text", "--model", model, "--out", source.parent / "run", *more),
        env={**os.environ, "PYTHONPATH": path, "TROUBLE": trouble, "MARK": str(place / "mark")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )


def _workers(source: Path) -> list[dict[str, Any]]:
    return sorted(Ledger(source.parent / "run").workers.read(), key=lambda beat: beat["started"])


def _check(source: Path, errors: int = 0) -> None:
    report = Run(source.parent / "run").verify()
    assert (report.verified, report.rows, report.errors) == (True, 10, errors), report


def test_the_command_does_a_small_job_itself(source: Path, model: Path) -> None:
    started = _start(source, model)
    assert started.wait(PATIENCE_S) == 0, started.stderr
    assert [(beat["pid"], beat["state"]) for beat in _workers(source)] == [(started.pid, "done")]
    assert Ledger(source.parent / "run").leases.read() == {}
    _check(source)


@pytest.mark.parametrize("why", ["workers", "engine", "size"])
def test_other_jobs_have_processes_of_their_own(source: Path, model: Path, why: str) -> None:
    if why == "size":
        source.write_text(
            "".join(json.dumps({"text": "of no use " * 2, "more": "x" * 20_000}) + "\n" for _ in range(10))
        )
    options = {"workers": ["--workers", "1"], "engine": ["--engine", "local"], "size": []}[why]
    started = _start(source, model, *options)
    assert started.wait(PATIENCE_S) == 0
    assert [beat["state"] for beat in _workers(source)] == ["done"]
    assert _workers(source)[0]["pid"] != started.pid
    _check(source)


def test_ctrl_c_gives_the_leases_back_and_the_same_command_goes_on(source: Path, model: Path) -> None:
    run = Ledger(source.parent / "run")
    started = _start(source, model, trouble="slow")
    wait_for(lambda: (source.parent / "run/plan.json").exists() and run.leases.read())
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 130
    assert "Stopped. The same command resumes." in said
    assert "Traceback" not in said
    assert [(beat["pid"], beat["state"]) for beat in _workers(source)] == [(started.pid, "stopped")]
    assert run.leases.read() == {}
    again = _start(source, model)
    assert again.wait(PATIENCE_S) == 0
    assert [beat["pid"] for beat in _workers(source)] == [started.pid, again.pid]
    _check(source)


def test_a_command_that_was_killed_is_followed_by_a_process_of_its_own(source: Path, model: Path) -> None:
    """Nobody waits for the lease of the dead one."""
    run = Ledger(source.parent / "run")
    started = _start(source, model, trouble="slow")
    wait_for(lambda: (source.parent / "run/plan.json").exists() and run.leases.read())
    started.kill()
    started.wait()
    assert run.leases.read()
    again = _start(source, model)
    assert again.wait(PATIENCE_S) == 0
    assert {beat["pid"] for beat in _workers(source)}.isdisjoint({again.pid})
    _check(source)


def test_a_row_that_kills_the_command_is_found_by_the_next(source: Path, model: Path) -> None:
    started = _start(source, model, "--max-errors", "1", trouble="poison")
    assert started.wait(PATIENCE_S) == -signal.SIGKILL
    again = _start(source, model, "--max-errors", "1", trouble="poison")
    assert again.wait(PATIENCE_S) == 0
    (bad,) = Run(source.parent / "run").errors()
    assert bad["row"] == 9
    assert bad["reason"] == "it crashed every worker that ran it, alone on the device"
    _check(source, errors=1)


@pytest.mark.parametrize("trouble", ["lost", "bug"])
def test_a_worker_that_fails_is_followed_by_a_process_of_its_own(source: Path, model: Path, trouble: str) -> None:
    started = _start(source, model, trouble=trouble)
    assert started.wait(PATIENCE_S) == 0
    first, second = _workers(source)
    assert (first["pid"], first["state"], second["state"]) == (started.pid, "failed", "done")
    assert second["pid"] != started.pid
    _check(source)


def test_a_worker_that_hangs_is_left_behind(source: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(f'[work]\nsource = "{source}"\n[execution]\nstuck_s = 5.0\n')
    started = _start(source, model, "--spec", tmp_path / "spec.toml", trouble="stuck")
    assert started.wait(PATIENCE_S) == 0
    assert _workers(source)[0]["pid"] == started.pid
    assert _workers(source)[-1]["pid"] != started.pid
    _check(source)


def test_a_final_error_is_told_as_a_process_of_its_own_tells_it(source: Path, tmp_path: Path) -> None:
    broken = write_model(tmp_path / "broken", bert(), [pooling("mean")])
    from safetensors.numpy import load_file, save_file

    weights = load_file(broken / "model.safetensors")
    weights = {name: array * float("nan") for name, array in weights.items()}
    save_file(weights, broken / "model.safetensors")
    said = []
    for more in ([], ["--workers", "1", "--fresh"]):
        started = _start(source, broken, *more)
        said.append((started.communicate(timeout=PATIENCE_S)[1], started.returncode))
    assert said[0] == said[1]
    assert "gives NaN or infinity in float32" in said[0][0]
