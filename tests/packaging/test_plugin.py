"""The example's wheel beside ours in a clean environment: run on four engines, killed, resumed, verified, refused."""

from __future__ import annotations

import contextlib
import json
import mailbox
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardmill.ledger import Ledger
from shardmill.run import Run
from tests.packaging.test_constraints import CONSTRAINTS, ROOT
from tests.support.cli import Said, assert_told
from tests.support.guard import kill_tree
from tests.support.ray_cluster import RAY_HEAD, RAY_NODE
from tests.support.services import unavailable
from tests.support.slurm_cluster import install, slurm_cluster
from tests.support.sshd import TestHost, hosts
from tests.support.waiting import PATIENCE_S, wait_for
from tests.support.wheels import Environment, build_wheel, make_environment

__all__ = ["hosts"]

pytestmark = [pytest.mark.services, pytest.mark.timeout(900)]
EXAMPLE = ROOT / "examples" / "plugin"
MESSAGES, SHARDS = 400, 60
RAY = """
import json, sys
from ray.cluster_utils import Cluster
head, node = map(json.loads, sys.argv[1:])
made = Cluster(initialize_head=True, head_node_args=head)
made.add_node(**node)
print(made.address, flush=True)
sys.stdin.read()
made.shutdown()
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ours, the example's, and the example's of a later version."""
    later = tmp_path_factory.mktemp("later") / "plugin"
    shutil.copytree(EXAMPLE, later)
    about = later / "pyproject.toml"
    about.write_text(about.read_text().replace('version = "1.0"', 'version = "1.1"'))
    projects = {"shardmill": ROOT, "letters": EXAMPLE, "later": later}
    return {name: build_wheel(project, tmp_path_factory.mktemp(name)) for name, project in projects.items()}


@pytest.fixture(scope="module")
def shardmill(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the plug-in, and what the engines need."""
    folder = tmp_path_factory.mktemp("clean")
    ours = f"shardmill[ssh,ray] @ {wheels['shardmill'].as_uri()}"
    bin = make_environment(folder / "venv", sys.executable, "--constraint", CONSTRAINTS, ours, wheels["letters"])
    return Environment(bin, folder)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mail") / "archive.mbox"
    box = mailbox.mbox(path)
    for number in range(MESSAGES):
        message = EmailMessage()
        message["Message-ID"], message["Subject"] = f"<{number}@example.org>", f"Letter {number}"
        message.set_content("\n".join(["a letter of many words"] * (number % 40 + 1)))
        box.add(mailbox.mboxMessage(message))
    box.flush()
    return path


def words_by_id() -> dict[str, int]:
    return {f"<{number}@example.org>": 5 * (number % 40 + 1) for number in range(MESSAGES)}


def write_spec(folder: Path, archive: Path) -> Path:
    spec = folder / "spec.toml"
    spec.write_text(
        f'[work]\nsource = "{archive}"\ntext = "body"\nid = "id"\nkeep = ["subject"]\ntask = "count"\n'
        f"[execution]\nlease_s = 4.0\nshard_bytes = {archive.stat().st_size // SHARDS}\n"
    )
    return spec


def committed(run: Path) -> int:
    return len(Ledger(run).commits.shards()) if (run / "plan.json").exists() else 0


def workers(run: Path) -> list[int]:
    return [int(worker["pid"]) for worker in Run(run).status().workers if worker["live"]]


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def interrupt(shardmill: Environment, spec: Path, run: Path, *engine: object) -> None:
    """Kill a worker in the middle of the work, and later its successor and the command."""
    home = shardmill.start("count", "--spec", spec, "--out", run, *engine)

    def at_work(done: int, but: int = 0) -> list[int]:
        assert home.poll() is None, shardmill.log.read_text()[-2000:]
        return [pid for pid in workers(run) if pid != but] if committed(run) >= done else []

    try:
        (first,) = wait_for(lambda: at_work(2))
        kill(first)
        before = committed(run)
        (second,) = wait_for(lambda: at_work(before + 1, but=first))
    finally:
        home.kill()
        home.wait()
    kill(second)
    assert 3 <= committed(run) < len(Run(run).plan.shards), "killed in the middle"


def finish(shardmill: Environment, run: Path, *engine: object) -> None:
    """Resume, verify, and compare with what the standard library reads."""
    done = committed(run)
    assert done < len(Run(run).plan.shards)
    resumed = shardmill("resume", run, *engine)
    assert resumed.status == 0, resumed.err
    verified = shardmill("verify", run)
    assert f"Verified: {MESSAGES} rows" in verified.out, verified
    merged = run.with_suffix(".parquet")
    assert shardmill("merge", run, "--out", merged).status == 0
    rows = pq.read_table(merged).to_pylist()
    assert {row["id"]: row["words"] for row in rows} == words_by_id()
    assert len(rows) == MESSAGES
    assert Run(run).plan.packages == {"verbs/count": "shardmill-letters 1.0", "sources/mbox": "shardmill-letters 1.0"}


def test_what_is_installed_is_listed(shardmill: Environment) -> None:
    found = json.loads(shardmill("plugins", "--json").out)
    brought = [("sinks", "outbox"), ("sources", "mbox"), ("verbs", "count")]
    assert [(each["group"], each["name"]) for each in found] == brought
    assert {(each["package"], each["version"], each["fault"]) for each in found} == {("shardmill-letters", "1.0", "")}


def test_here(shardmill: Environment, archive: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    interrupt(shardmill, write_spec(tmp_path, archive), run, "--workers", 1)
    finish(shardmill, run)


def test_from_python(shardmill: Environment, archive: Path, tmp_path: Path) -> None:
    code = (
        "import shardmill, sys; print(shardmill.count(sys.argv[1], text='body', id='id', out='run').verify().verified)"
    )
    how: dict[str, Any] = {"env": shardmill.variables, "cwd": tmp_path, "timeout": PATIENCE_S}
    done = subprocess.run([shardmill.python, "-c", code, archive], capture_output=True, text=True, **how)
    assert done.stdout == "True\n", done.stderr


def test_on_a_host_that_is_sent_the_wheels(
    shardmill: Environment, archive: Path, hosts: list[TestHost], tmp_path: Path
) -> None:
    host, listed, run = hosts[0], tmp_path / "cluster.toml", tmp_path / "run"
    listed.write_text(host.entry(python=None))
    interrupt(shardmill, write_spec(tmp_path, archive), run, "--engine", "ssh", "--hosts", listed)
    finish(shardmill, run)
    (place,) = host.home.glob(".cache/shardmill-work/env/*/lib/python3*/site-packages/shardmill_letters")
    assert (place / "mbox.py").read_bytes() == (EXAMPLE / "src/shardmill_letters/mbox.py").read_bytes()


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The variables by which commands find a Slurm."""
    try:
        install()
    except (LookupError, OSError) as error:
        unavailable(f"no Slurm: {error}")
    with slurm_cluster() as running:
        yield {"SLURM_CONF": str(running.conf)}


def test_in_a_queue(shardmill: Environment, archive: Path, slurm: dict[str, str], tmp_path: Path) -> None:
    run, there = tmp_path / "run", shardmill.with_variables(slurm)
    queue = ("--engine", "slurm", "--partition", "gpu", "--workers", 1)
    interrupt(there, write_spec(tmp_path, archive), run, *queue)
    finish(there, run)


@contextlib.contextmanager
def ray_of(environment: Environment) -> Iterator[str]:
    """The address of a cluster whose nodes have this environment."""
    command = [environment.python, "-c", RAY, json.dumps(RAY_HEAD), json.dumps(RAY_NODE)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment.variables, **pipes) as cluster:
        try:
            assert cluster.stdout is not None
            yield cluster.stdout.readline().strip()
        finally:
            cluster.communicate(timeout=PATIENCE_S)


def on_ray(address: str) -> tuple[object, ...]:
    return ("--engine", "ray", "--address", address, "--workers", 1, "--set", "num_cpus=1")


def test_on_a_ray_cluster(shardmill: Environment, archive: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with ray_of(shardmill) as address:
        interrupt(shardmill, write_spec(tmp_path, archive), run, *on_ray(address))
        finish(shardmill, run, "--address", address)


def rows_in(box: Path) -> dict[str, int]:
    """The rows that count in an outbox, each once."""
    files = [box / "rows" / mark.read_text() for mark in (box / "marks").glob("*")]
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["words"] for row in found}


def test_a_sink_takes_every_row_once_if_its_delivery_is_killed(
    shardmill: Environment, archive: Path, tmp_path: Path
) -> None:
    box, run, spec = tmp_path / "letters", tmp_path / "run", write_spec(tmp_path, archive)
    home = shardmill.start("count", "--spec", spec, "--out", run, "--workers", 1, "--into", f"outbox:{box}")
    try:
        wait_for(lambda: list(box.glob("rows/*")))
    finally:
        kill_tree(home)
    assert committed(run) == len(Run(run).plan.shards)
    assert shardmill("resume", run).status == 0
    assert rows_in(box) == words_by_id()
    verified = shardmill("verify", run)
    assert f"{MESSAGES} of {MESSAGES} rows are in outbox:" in verified.out, verified
    assert f"Verified: {MESSAGES} rows" in verified.out


@pytest.mark.parametrize("engine", ["ssh", "slurm", "ray"])
def test_a_sink_of_one_machine_is_refused_where_workers_run_on_others(
    shardmill: Environment, archive: Path, tmp_path: Path, engine: str
) -> None:
    words = ("--spec", write_spec(tmp_path, archive), "--out", tmp_path / "run", "--into", "outbox:letters")
    said = shardmill("count", *words, "--engine", engine)
    assert_told(said, 2, "The sink 'outbox' reaches one machine", f"the engine {engine!r}", "--engine local --into")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def without(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With shardmill and Ray alone."""
    folder, ours = tmp_path_factory.mktemp("without"), f"shardmill[ray] @ {wheels['shardmill'].as_uri()}"
    bin = make_environment(folder / "venv", sys.executable, "--constraint", CONSTRAINTS, ours)
    return Environment(bin, folder)


@pytest.fixture(scope="module")
def later(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With another version of the plug-in."""
    folder, pins = tmp_path_factory.mktemp("with-later"), ("--constraint", CONSTRAINTS)
    bin = make_environment(folder / "venv", sys.executable, *pins, wheels["shardmill"], wheels["later"])
    return Environment(bin, folder)


NEEDED, REMEDY = "of shardmill-letters 1.0", "Install it with: pip install shardmill-letters==1.0"
ABSENT, ANOTHER = "which is not installed here", "and this machine has shardmill-letters 1.1"


def test_who_has_no_plug_in_or_another_version_is_refused(
    shardmill: Environment, without: Environment, later: Environment, archive: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    interrupt(shardmill, write_spec(tmp_path, archive), run, "--workers", 1)
    for environment, state in ((without, ABSENT), (later, ANOTHER)):
        for verb, status in (("resume", 2), ("work", 69), ("verify", 2)):
            assert_told(environment(verb, run), status, NEEDED, state, REMEDY)
        assert environment("status", run).status == 0
    done = committed(run)
    worker = subprocess.run(
        [without.python, "-m", "shardmill.worker", str(run)], env=without.variables, capture_output=True, text=True
    )
    assert worker.returncode != 0
    assert (NEEDED in worker.stderr, REMEDY in worker.stderr, "Traceback" in worker.stderr) == (True, True, False)
    assert committed(run) == done


def test_workers_elsewhere_without_the_plug_in_are_refused(
    shardmill: Environment,
    without: Environment,
    later: Environment,
    archive: Path,
    hosts: list[TestHost],
    slurm: dict[str, str],
    tmp_path: Path,
) -> None:
    listed, spec = tmp_path / "cluster.toml", write_spec(tmp_path, archive)
    for environment, state in ((without, ABSENT), (later, ANOTHER)):
        listed.write_text(hosts[0].entry(python=environment.python))
        engines = (
            ("--engine", "ssh", "--hosts", listed),
            ("--engine", "slurm", "--partition", "gpu", "--set", f"python={environment.python}"),
        )
        for engine in engines:
            run = tmp_path / f"{engine[1]}-{environment.folder.name}"
            assert_refused(shardmill.with_variables(slurm)("count", "--spec", spec, "--out", run, *engine), state)
            assert committed(run) == 0


def test_ray_workers_without_the_plug_in_are_refused(
    shardmill: Environment, without: Environment, archive: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with ray_of(without) as address:
        words = ("--spec", write_spec(tmp_path, archive), "--out", run)
        assert_refused(shardmill("count", *words, *on_ray(address)), ABSENT)
    assert committed(run) == 0


def assert_refused(said: Said, state: str) -> None:
    assert said.status != 0
    error, hint = said.err.splitlines()[-2:]
    assert (error.startswith("error: "), NEEDED in error, state in error) == (True, True, True), said.err
    assert (hint, "Traceback" in said.err) == (REMEDY, False)
