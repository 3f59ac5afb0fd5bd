"""The SSH engine over real sshd: hosts that die, lines that are cut, a home that is killed; and what cannot go well."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import shardmill
from shardmill.core.errors import HostError, ShardmillError, WorkerFailed
from shardmill.ledger import Ledger
from shardmill.run import Run, resume, start, stop
from shardmill.testing import FakeTask
from tests.support import engine_contract as contract
from tests.support.corpora import fake_rows, fake_spec
from tests.support.metadata_service import metadata_service
from tests.support.proof import assert_complete
from tests.support.sshd import TestHost, make_key
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

pytestmark = pytest.mark.services
Write = Callable[..., Path]

HOME = """
import json, sys
from shardmill.run import start
from shardmill.plan.spec import make_spec
spec = json.loads(sys.argv[1])
start(make_spec(spec["work"], spec["execution"]), sys.argv[2], quiet=False)
"""


def cluster(tmp_path: Path, hosts: list[TestHost], before: str = "", **more: Any) -> dict[str, Any]:
    """The options of an engine over these hosts."""
    path = tmp_path / "cluster.toml"
    path.write_text(before + "\n".join(host.entry(**more) for host in hosts))
    return {"engine": "ssh", "engine_options": {"hosts": str(path)}}


def start_home(spec: Any, run: Path) -> subprocess.Popen[bytes]:
    words = json.dumps(spec.model_dump(mode="json"))
    with open(run.parent / "home.log", "ab") as log:
        return subprocess.Popen([sys.executable, "-c", HOME, words, str(run)], stderr=log, preexec_fn=hear_ctrl_c)


def done(run: Path) -> int:
    return len(Ledger(run).commits.shards()) if (run / "plan.json").exists() else 0


def pulled(run: Path) -> int:
    """Bytes of parts that were asked for, over all lives of home."""
    return sum(map(int, re.findall(r"pulling (\d+) bytes", (run / "logs" / "ssh.log").read_text())))


def test_a_host_dies_a_line_is_cut_and_home_is_killed(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]
) -> None:
    rows, run = fake_rows(20_000), tmp_path / "run"
    spec = fake_spec(
        write_jsonl(rows),
        params={"delay_s": 0.04, "dims": 64},
        shard_bytes=12_000,
        lease_s=4.0,
        **cluster(tmp_path, hosts, workers=2),
    )
    home = start_home(spec, run)
    wait_for(lambda: done(run) >= 10)
    assert {w["host"] for w in Run(run).status().workers if w["live"]} <= {"127.0.0.2", "127.0.0.3"}
    hosts[0].kill()
    seen = done(run)
    wait_for(lambda: done(run) >= seen + 5)
    hosts[1].cut()
    time.sleep(6.0)
    assert hosts[1].workers(), "they outlive the connection"
    hosts[1].mend()
    seen = done(run)
    wait_for(lambda: done(run) >= seen + 5)
    home.kill()
    home.wait()
    assert done(run) < len(Run(run).plan.shards)
    survivors = {process.pid for process in hosts[1].workers()}
    assert survivors
    hosts[0].start()
    home = start_home(spec, run)
    wait_for(lambda: hosts[0].workers())
    assert {process.pid for process in hosts[1].workers()} == survivors
    assert home.wait(PATIENCE_S) == 0, (tmp_path / "home.log").read_text()
    assert_complete(run, rows)
    parts = sum(c.part_bytes for c in Ledger(run).commits.read().values())
    assert parts <= pulled(run) <= 1.3 * parts
    for host in hosts:
        assert host.workers() == []
        left = [p.name for p in host.home.rglob("*") if p.is_file()]
        assert all(name.endswith(".log") or name == ".shardmill-work" for name in left), left


def test_a_run_whose_home_is_gone_is_stopped_and_resumed(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]
) -> None:
    """Workers outlive home; `stop` ends those of this run on every host, and `resume` needs the folder alone."""
    rows, run = fake_rows(4_000), tmp_path / "run"
    how = {"params": {"delay_s": 0.04}, "shard_bytes": 6_000, "lease_s": 4.0}
    home = start_home(fake_spec(write_jsonl(rows), **how, **cluster(tmp_path, hosts, workers=1)), run)
    wait_for(lambda: done(run) >= 3)
    home.kill()
    home.wait()
    assert any(host.workers() for host in hosts)
    stop(run, patience_s=PATIENCE_S)
    assert [host.workers() for host in hosts] == [[], []]
    assert done(run) < len(Run(run).plan.shards)
    resume(run)
    assert_complete(run, rows)


def test_hosts_that_their_cloud_takes_give_their_shards_back(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's variable is that of its workers: they end at once, the hosts are lost, and the run goes on."""
    rows, run = fake_rows(4_000), tmp_path / "run"
    how = {"params": {"delay_s": 0.4}, "shard_bytes": 6_000, "lease_s": 600.0}
    with metadata_service() as service:
        monkeypatch.setenv("SHARDMILL_SPOT_NOTICE", f"gcp={service.address}")
        home = start_home(fake_spec(write_jsonl(rows), **how, **cluster(tmp_path, hosts, workers=1)), run)
        # A worker that comes once the notice is withdrawn would do the rest.
        wait_for(lambda: done(run) >= 3 and all(host.workers() for host in hosts))
        service.taken = True
        wait_for(lambda: not any(host.workers() for host in hosts))
        service.taken = False
        monkeypatch.delenv("SHARDMILL_SPOT_NOTICE")
        assert home.wait(PATIENCE_S) != 0
    assert "its workers were told to stop" in (tmp_path / "home.log").read_text()
    assert done(run) < len(Run(run).plan.shards)
    resume(run)
    assert_complete(run, rows)


def refusal(tmp_path: Path, write_jsonl: Write, options: dict[str, Any], **settings: Any) -> ShardmillError:
    with pytest.raises(ShardmillError) as caught:
        start(fake_spec(write_jsonl(fake_rows(200)), **{"lease_s": 3.0, **settings}, **options), tmp_path / "run")
    assert caught.value.hint
    return caught.value


def test_hosts_that_cannot_be_used_are_refused_before_anything_begins(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]
) -> None:
    host, other = hosts
    stranger = tmp_path / "stranger"
    make_key(stranger)
    old = tmp_path / "old_shardmill"
    (old / "shardmill").mkdir(parents=True)
    (old / "shardmill" / "__init__.py").write_text('__version__ = "0.0.1"')
    old_python = tmp_path / "old_python"
    old_python.write_text(f'#!/bin/sh\nexport PYTHONPATH={old}\nexec {sys.executable} "$@"\n')
    old_python.chmod(0o755)
    nothing = tmp_path / "nothing"
    nothing.touch()
    changed = host.known_hosts.read_text().split()[0] + " " + other.known_hosts.read_text().split(" ", 1)[1]
    (tmp_path / "changed").write_text(changed)
    for more, said in (
        ({"address": "no-such-host.invalid"}, "cannot be resolved"),
        ({"known_hosts": str(nothing)}, "is not in"),
        ({"known_hosts": str(tmp_path / "changed")}, "is not the one in"),
        ({"key": str(stranger)}, "denies access to this user"),
        ({"key": str(tmp_path / "absent")}, "No such file"),
        ({"gpus": 1}, "GPU 0 is asked for"),
        ({"python": "/no/such/python"}, "the interpreter '/no/such/python' was not found"),
        ({"python": str(old_python)}, "has shardmill 0.0.1; this machine has"),
        ({"python": None, "conda": "absent"}, "the conda environment 'absent'"),
    ):
        error = refusal(tmp_path, write_jsonl, cluster(tmp_path, [host], **more))
        assert isinstance(error, HostError), more
        assert said in error.message, more
    assert not (tmp_path / "run").exists()
    assert list(host.home.rglob("*")) == []


def test_a_worker_that_dies_at_once_every_time_ends_the_run(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys\nif sys.orig_argv[1:3] == ['-m', 'shardmill.worker']:\n    sys.exit('the driver is broken')\n"
    )
    text = hosts[0].python.read_text()
    hosts[0].python.write_text(text.replace("PYTHONPATH=", f"PYTHONPATH={broken}:"))
    error = refusal(tmp_path, write_jsonl, cluster(tmp_path, hosts[:1]), max_restarts=1)
    assert isinstance(error, WorkerFailed)
    assert "died 2 times in a row" in error.message
    assert "the driver is broken" in error.message
    assert hosts[0].workers() == []


def test_a_row_that_ends_its_worker_is_set_aside(tmp_path: Path, hosts: list[TestHost]) -> None:
    contract.a_row_that_ends_its_worker_is_set_aside(cluster(tmp_path, hosts[:1]), tmp_path)


def test_a_full_disk_on_a_host_is_said(tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]) -> None:
    work = tmp_path / "small"
    work.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(work)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        source = write_jsonl(fake_rows(20_000), "many.jsonl")
        with pytest.raises(ShardmillError) as caught:
            start(
                fake_spec(source, shard_bytes=400_000, **cluster(tmp_path, hosts[:1], work=str(work))), tmp_path / "run"
            )
        assert re.search(r"Host 127\.0\.0\.2: .*(room|full)", str(caught.value))
    finally:
        hosts[0].kill()
        subprocess.run(["umount", "-l", str(work)], check=True)


class FolderTask(FakeTask):
    """A task with a folder of its own."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = Path(model)

    def fingerprint(self) -> dict[str, str]:
        return {"weights": (self._model / "weights").read_text()}


def test_a_folder_that_the_task_needs_is_sent_once(tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("1")
    rows = fake_rows(200)
    spec = fake_spec(write_jsonl(rows), params={"model": str(model)}, **cluster(tmp_path, hosts[:1]))
    work = spec.work.model_copy(update={"task": "tests.engines.ssh.test_hosts:FolderTask"})
    start(spec.model_copy(update={"work": work}), tmp_path / "run")
    assert_complete(tmp_path / "run", rows)
    (copy,) = hosts[0].home.rglob("weights")
    assert copy.parent.name == "model"
    # Another model of that name there: what was sent before is not taken for it.
    copy.write_text("2")
    with pytest.raises(WorkerFailed, match="not the one that the run was planned with"):
        start(spec.model_copy(update={"work": work}), tmp_path / "again")


def test_with_a_common_folder_nothing_is_copied(tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]) -> None:
    rows = fake_rows(600)
    start(fake_spec(write_jsonl(rows), **cluster(tmp_path, hosts, "shared = true\n")), tmp_path / "run")
    assert_complete(tmp_path / "run", rows)
    workers = {c.worker.split("-")[0] for c in Ledger(tmp_path / "run").commits.read().values()}
    assert workers <= {"127.0.0.2", "127.0.0.3"}
    assert not [p for host in hosts for p in host.home.rglob("*.jsonl")]


@pytest.mark.parametrize("kind", ["csv", "parquet", "small files"])
def test_other_sources_are_read_there_as_here(tmp_path: Path, hosts: list[TestHost], kind: str) -> None:
    rows = fake_rows(300)
    rows[7]["text"] = "!raise"
    table = pa.Table.from_pylist(rows)
    source = tmp_path / f"a.{kind}"
    if kind == "small files":
        source.mkdir()
        for i in range(60):
            pyarrow.csv.write_csv(table.slice(5 * i, 5), source / f"{i:02d}.csv")
            (source / f"{i:02d}-empty.csv").touch()
    elif kind == "csv":
        pyarrow.csv.write_csv(table, source)
    else:
        pyarrow.parquet.write_table(table, source, row_group_size=100)
    run = start(fake_spec(source, shard_bytes=5_000, **cluster(tmp_path, hosts[:1])), tmp_path / "run")
    assert_complete(tmp_path / "run", rows)
    assert [error["reason"] for error in run.errors()] == ["ValueError: this text is poison"]
    if kind == "small files":
        assert len(run.plan.shards) < 10
        assert [(error["file"], error["line"]) for error in run.errors()] == [("01.csv", 4)]


def test_only_the_bytes_of_its_shards_are_on_a_host(tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]) -> None:
    rows = fake_rows(4000)
    source = write_jsonl(rows)
    spec = fake_spec(source, params={"delay_s": 0.5}, shard_bytes=4_000, **cluster(tmp_path, hosts))
    home = start_home(spec, tmp_path / "run")
    wait_for(lambda: done(tmp_path / "run") >= 4)
    home.send_signal(signal.SIGINT)
    assert home.wait(PATIENCE_S) != 0
    assert [host.workers() for host in hosts] == [[], []]
    assert Ledger(tmp_path / "run").leases.read() == {}
    whole = source.read_bytes()
    for host in hosts:
        (copy,) = host.home.rglob("items.jsonl")
        ranges = json.loads(copy.with_name("items.jsonl.ranges").read_text())
        there = copy.read_bytes()
        assert len(there) == len(whole)
        assert sum(stop - start for start, stop in ranges) < len(whole) * 0.9
        for a, b in ranges:
            assert there[a:b] == whole[a:b]


def test_hosts_are_checked_stopped_and_cleaned(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret := "handed-on")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho '0, NVIDIA H200, 570.1, 143771'\n")
    (tools / "nvidia-smi").chmod(0o755)
    hosts[0].python.write_text(hosts[0].python.read_text().replace("exec", f"export PATH={tools}:$PATH\nexec"))
    options = cluster(tmp_path, hosts)
    file = options["engine_options"]["hosts"]
    spec = fake_spec(write_jsonl(fake_rows(4000)), params={"delay_s": 0.1}, **options)
    home = start_home(spec, tmp_path / "run")
    wait_for(lambda: hosts[0].workers() and hosts[1].workers())
    command = [sys.executable, "-m", "shardmill", "hosts"]
    checked = subprocess.run([*command, "check", file, "--json"], capture_output=True, text=True, check=True)
    first, second = json.loads(checked.stdout)
    assert (first["gpus"], first["driver"], first["trouble"]) == (["NVIDIA H200"], "570.1", "")
    assert (second["gpus"], second["shardmill"], second["trouble"]) == ([], shardmill.__version__, "")
    assert first["free_bytes"] > 0
    assert first["clock_skew_s"] == 0, "the same clock, read between question and answer"
    home.kill()
    assert hosts[0].workers()[0].environ()["AWS_SECRET_ACCESS_KEY"] == secret
    stopped = subprocess.run([*command, "stop", file], capture_output=True, text=True, check=True)
    assert stopped.stderr.count("1 workers stopped") == 2
    assert [host.workers() for host in hosts] == [[], []]
    subprocess.run([*command, "clean", file], capture_output=True, check=True)
    assert not any((host.home / ".cache" / "shardmill-work").exists() for host in hosts)
    (hosts[0].home / "mine").mkdir()
    (hosts[0].home / "mine" / "thesis.tex").touch()
    cluster(tmp_path, hosts[:1], work=str(hosts[0].home / "mine"))
    refused = subprocess.run([*command, "clean", file], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "is not a work folder of shardmill" in refused.stderr
    assert (hosts[0].home / "mine" / "thesis.tex").exists()


def test_a_clock_that_is_ahead_is_shown(tmp_path: Path, hosts: list[TestHost]) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\nnow = time.time\ntime.time = lambda: now() + 1000\n")
    host = hosts[0]
    host.python.write_text(host.python.read_text().replace("PYTHONPATH=", f"PYTHONPATH={tmp_path}:"))
    command = [sys.executable, "-m", "shardmill", "hosts", "check", "--json"]
    file = cluster(tmp_path, [host])["engine_options"]["hosts"]
    began = time.monotonic()
    done = subprocess.run([*command, file], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - began
    (found,) = json.loads(done.stdout)
    assert 999.999 - took_s <= found["clock_skew_s"] <= 1000, "off by no more than the answer took"
