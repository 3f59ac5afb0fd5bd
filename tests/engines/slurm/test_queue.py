"""The Slurm engine on a real Slurm of two nodes with two GPUs each: placed, killed, requeued, timed out, refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import EXIT_TRY_AGAIN, EngineRefused, EngineSilent, SpecError, UsageError, WorkerFailed
from shardmill.engines import open_engine
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution, Spec
from shardmill.run import Run, resume, start, stop
from tests.support import engine_contract as contract
from tests.support.corpora import fake_rows, fake_spec
from tests.support.proof import assert_complete
from tests.support.services import unavailable
from tests.support.slurm_cluster import SlurmCluster
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

Write = Callable[..., Path]
_ON_SLURM = {"engine": "slurm", "engine_options": {"partition": "gpu"}, "device": "cpu"}

HOME = """
import json, sys
from shardmill.run import start
from shardmill.plan.spec import make_spec
spec = json.loads(sys.argv[1])
start(make_spec(spec["work"], spec["execution"]), sys.argv[2])
"""


@pytest.fixture
def slurm(slurm_nodes: SlurmCluster) -> Iterator[SlurmCluster]:
    yield slurm_nodes
    slurm_nodes.cancel_all()


def _spec(source: Path, *, delay_s: float = 0.01, options: dict[str, Any] | None = None, **execution: Any) -> Spec:
    how = {"engine": "slurm", "engine_options": {"partition": "gpu", **(options or {})}, **execution}
    return fake_spec(source, params={"delay_s": delay_s}, batch_tokens=300, **how)


def _home(spec: Spec, run: Path) -> subprocess.Popen[bytes]:
    words = json.dumps(spec.model_dump(mode="json"))
    command = [sys.executable, "-c", HOME, words, str(run)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=hear_ctrl_c)


def _done(run: Path) -> int:
    return len(Ledger(run).commits.shards()) if (run / "plan.json").exists() else 0


def _jobs(cluster: SlurmCluster, *words: str) -> list[str]:
    """What is in the queue, as JOB_TASK STATE NODE."""
    return cluster.squeue("%F_%K %T %N", *words)


def _logs(run: Path) -> str:
    return "".join(path.read_text() for path in sorted((run / "logs").glob("slurm-*.log")))


def test_workers_are_placed_over_both_nodes_each_with_a_gpu_of_its_own(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write
) -> None:
    """Six are asked for, in arrays of at most four tasks, and four have room: the late ones join or are not needed."""
    rows, run = fake_rows(1200), tmp_path / "run 100%"
    note = 'echo "seat $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SHARDMILL_SLOT $SHARDMILL_THREADS"'
    options = {"setup": note, "cpus": "2", "wrap": "env SHARDMILL_DEVICE_NAME=wrapped", "directives": "--comment=mine"}
    home = _home(_spec(write_jsonl(rows), workers=6, options=options), run)
    wait_for(lambda: (run / "placement.json").exists())
    assert re.search(r"slurm jobs \d+, \d+: .*\d pending \(\w+\)", Run(run).status().placement)
    assert set(slurm.squeue("%k")) == {"mine"}
    assert home.wait(PATIENCE_S) == 0, home.stderr and home.stderr.read()
    assert_complete(run, rows)
    seats = re.findall(r"^seat (\w+) (\d) (\S+) (\d)$", _logs(run), re.MULTILINE)
    assert {(node, gpu) for node, gpu, _, _ in seats} == {("n1", "0"), ("n1", "1"), ("n2", "0"), ("n2", "1")}
    assert {threads for *_, threads in seats} == {"2"}
    assert {slot for _, _, slot, _ in seats} >= {"0.000000", "0.166666", "0.333333", "0.500000"}
    workers = Ledger(run).workers.read()
    assert {w["id"].partition("-")[0] for w in workers} == {"n1", "n2"}
    assert {(w["state"], w["device"]) for w in workers} == {("done", "wrapped")}
    assert not _jobs(slurm)
    assert Run(run).status().placement == ""


def test_a_killed_worker_is_replaced_and_what_someone_cancels_is_not(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write
) -> None:
    rows, run = fake_rows(1200), tmp_path / "run"
    home = _home(_spec(write_jsonl(rows), workers=2, lease_s=600.0, device="cpu"), run)
    first, second = wait_for(lambda: len(found := Ledger(run).workers.read()) == 2 and _done(run) and found)
    os.kill(first["pid"], signal.SIGKILL)
    cancelled = second["id"].split("-")[1]
    slurm.scancel(cancelled)
    assert home.wait(PATIENCE_S) == 0, home.stderr and home.stderr.read()
    assert_complete(run, rows)
    third = [w for w in Ledger(run).workers.read() if w["id"] not in (first["id"], second["id"])]
    assert len(third) == 1
    assert {w["device"] for w in Ledger(run).workers.read()} == {"cpu"}


def test_a_run_whose_home_is_gone_is_stopped_and_resumed(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write
) -> None:
    rows, run = fake_rows(1200), tmp_path / "run"
    home = _home(_spec(write_jsonl(rows), workers=2, lease_s=600.0, device="cpu"), run)
    wait_for(lambda: _done(run) >= 2)
    home.kill()
    home.wait()
    assert stop(run, patience_s=PATIENCE_S).living == 0
    wait_for(lambda: not _jobs(slurm))
    assert _done(run) < len(Run(run).plan.shards)
    resume(run)
    assert_complete(run, rows)
    assert not _jobs(slurm)


def test_before_the_time_limit_leases_are_given_back_and_the_run_goes_on(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write
) -> None:
    """Then Ctrl-C cancels what is queued, and the local engine finishes."""
    rows, run = fake_rows(8000), tmp_path / "run"
    spec = _spec(
        write_jsonl(rows), delay_s=0.1, shard_bytes=20_000, lease_s=600.0, options={"time": "1", "signal_s": "60"}
    )
    home = _home(spec, run)
    (first,) = wait_for(lambda: _jobs(slurm, "--states=RUNNING"))
    job = first.partition("_")[0]
    again = wait_for(lambda: [j for j in _jobs(slurm, "--states=RUNNING") if not j.startswith(job)])
    told = [w for w in Ledger(run).workers.read() if f"-{job}_0-0" in w["id"]]
    if told:
        assert [(w["state"], w["told_to_stop"]) for w in told] == [("stopped", True)]
        assert slurm.exit_status(job) == EXIT_TRY_AGAIN
    else:
        # Slurm signals up to a minute early: on a busy machine while the worker imports, or Python itself starts.
        assert slurm.exit_status(job) in (EXIT_TRY_AGAIN, -signal.SIGUSR1)
    assert slurm.squeue("%T", "--states=all", f"--jobs={job}") == ["FAILED"], "it ended before the limit did it"
    assert len(again) == 1
    wait_for(lambda: [lease for lease in Ledger(run).leases.read().values() if f"-{job}_" not in lease.worker])
    assert not [lease for lease in Ledger(run).leases.read().values() if f"-{job}_" in lease.worker]
    os.kill(home.pid, signal.SIGINT)
    assert home.wait(PATIENCE_S) != 0
    assert Ledger(run).leases.read() == {}
    wait_for(lambda: not _jobs(slurm))
    assert len(Ledger(run).commits.shards()) < len(Run(run).plan.shards)
    here = {"engine": "local", "engine_options": {}, "batch_tokens": 100_000}
    start(spec.model_copy(update={"execution": spec.execution.model_copy(update=here)}), run)
    assert_complete(run, rows)


def _leases_of(node: str, run: Path) -> list[str]:
    return [lease.worker for lease in Ledger(run).leases.read().values() if lease.worker.startswith(node)]


def test_a_node_is_lost_a_task_requeued_and_home_killed(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write
) -> None:
    rows, run = fake_rows(4000), tmp_path / "run"
    spec = _spec(write_jsonl(rows), delay_s=0.04, workers=4, lease_s=600.0)
    home = _home(spec, run)
    lost = wait_for(lambda: _done(run) and _leases_of("n1-", run) and _leases_of("n2-", run))
    slurm.kill_node("n2")
    wait_for(lambda: not [x for x in Ledger(run).leases.read().values() if x.worker in lost and x.until > time.time()])
    task = next(j.split()[0] for j in _jobs(slurm, "--states=RUNNING") if j.endswith(" n1"))
    slurm.scontrol("requeue", task)
    home.kill()
    home.wait()
    before = {j.partition("_")[0] for j in _jobs(slurm)}
    slurm.revive_node("n2")
    killed_at = time.time()
    again = _home(spec, run)
    wait_for(lambda: Ledger(run).notes.placement()[1] > killed_at)
    assert {j.partition("_")[0] for j in _jobs(slurm)} == before, "the job that is there is joined"
    assert again.wait(PATIENCE_S) == 0, again.stderr and again.stderr.read()
    assert_complete(run, rows)
    names = {w["id"] for w in Ledger(run).workers.read()}
    assert any(name.endswith(f"-{task}-1") for name in names), names


@pytest.mark.parametrize(
    ("setup", "restarts", "says"),
    [
        ("echo all is broken\nexit 3", 1, r"died 2 times in a row \(exit status 3\); its last lines:\n  all is broken"),
        ("exit 75", 0, "reached its time limit without committing a shard"),
        ("exec sleep 60", 0, "no progress for . s: cancelled"),
    ],
    ids=["dies", "is told to stop", "is stuck"],
)
def test_a_worker_that_gets_nothing_done_ends_the_run(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write, setup: str, restarts: int, says: str
) -> None:
    spec = _spec(write_jsonl(fake_rows(20)), max_restarts=restarts, stuck_s=2.0, options={"setup": setup})
    with pytest.raises(WorkerFailed, match=says):
        start(spec, tmp_path / "run")
    wait_for(lambda: not _jobs(slurm))


def test_waiting_for_what_does_not_come_is_said(slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write) -> None:
    run = tmp_path / "run"
    home = _home(_spec(write_jsonl(fake_rows(20)), options={"partition": "down"}), run)
    said = r"slurm job \d+: 1 pending \(PartitionDown: the partition is down\)"
    wait_for(lambda: (run / "placement.json").exists() and re.fullmatch(said, Run(run).status().placement))
    home.terminate()
    home.wait()
    assert Run(run).status().state == "planned"


@pytest.mark.parametrize(
    ("options", "says", "hint"),
    [
        ({"partition": "gpux"}, "nvalid partition", "Did you mean 'gpu'?"),
        ({"partition": "staff", "account": "guests"}, "account", "--set account=NAME"),
        ({"gres": "gpu:a100:1"}, "Requested node configuration is not available", "shows what nodes have"),
        ({"gres": "tpu:1"}, "gres", "shows what nodes have"),
        ({"partition": "short", "time": "10:00:00"}, "time limit", "--set time"),
        ({"directives": "--qos"}, "requires an argument", "--set"),
    ],
    ids=str,
)
def test_what_slurm_refuses_is_told_in_its_words(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write, options: dict[str, str], says: str, hint: str
) -> None:
    with pytest.raises(EngineRefused) as refused:
        start(_spec(write_jsonl(fake_rows(20)), options=options), tmp_path / "run")
    assert says in refused.value.message
    assert hint in refused.value.hint
    assert not _jobs(slurm)


def test_a_folder_that_nodes_do_not_see_is_said(slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write) -> None:
    if slurm.only_at_home is None:
        unavailable("a mount namespace, in which nodes do not see a folder, needs more rights")
    run = Path(slurm.only_at_home or "") / "runs" / "run"
    with pytest.raises(WorkerFailed, match=f"A node could not write its task's log to {run}") as failed:
        start(_spec(write_jsonl(fake_rows(20))), run)
    assert "--set logs=FOLDER" in failed.value.hint


def _open(options: dict[str, Any] | None = None, **execution: Any) -> Any:
    return open_engine(Execution(engine="slurm", engine_options=options or {}, **execution))


def test_options_are_checked_before_anything_is_done(slurm: SlurmCluster) -> None:
    with pytest.raises(SpecError, match="no option 'acount'") as unknown:
        _open({"acount": "mine"})
    assert "Did you mean 'account'?" in unknown.value.hint
    with pytest.raises(SpecError, match="cpus=four of the engine 'slurm' is not a whole number"):
        _open({"cpus": "four"})
    with pytest.raises(SpecError, match="more than one line"):
        _open({"wrap": "a\nb"})
    with pytest.raises(SpecError, match="is for workers on a GPU"):
        _open({"gres": "gpu:1"}, device="cpu")
    with pytest.raises(SpecError, match="--device all"):
        _open(device="all")


def test_without_slurm_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="sbatch was not found"):
        _open()


def test_a_slurm_that_does_not_answer_is_said(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, write_jsonl: Write
) -> None:
    """Its configuration names a controller that is not there."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", slurm.conf.read_text()) + "MessageTimeout=1\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(EngineSilent, match="Unable to contact slurm controller") as silent:
        start(_spec(write_jsonl(fake_rows(20))), tmp_path / "run")
    assert "scontrol ping" in silent.value.hint


def test_a_controller_that_is_away_for_a_while_is_waited_for(
    slurm: SlurmCluster, tmp_path: Path, write_jsonl: Write
) -> None:
    run = tmp_path / "run"
    home = _home(_spec(write_jsonl(fake_rows(20)), options={"partition": "down"}), run)
    wait_for(lambda: (run / "placement.json").exists() and "pending" in Run(run).status().placement)
    slurm.stop_controller()
    try:
        wait_for(lambda: "Unable to contact slurm controller" in Run(run).status().placement)
    finally:
        slurm.start_controller()
    wait_for(lambda: "1 pending" in Run(run).status().placement)
    slurm.scontrol("update", "PartitionName=down", "State=UP")
    assert home.wait(PATIENCE_S) == 0, home.stderr and home.stderr.read()
    assert Run(run).verify().verified


def test_a_row_that_ends_its_worker_is_set_aside(slurm: SlurmCluster, tmp_path: Path) -> None:
    contract.a_row_that_ends_its_worker_is_set_aside(_ON_SLURM, tmp_path)


def test_detached_tasks_finish_a_run_alone(slurm: SlurmCluster, tmp_path: Path) -> None:
    contract.detached_workers_finish_a_run_alone(_ON_SLURM, tmp_path)


def test_detached_tasks_are_adopted_and_stopped(slurm: SlurmCluster, tmp_path: Path) -> None:
    contract.detached_workers_are_adopted_and_stopped(_ON_SLURM, tmp_path)
