"""Where a worker runs, as its heartbeat says."""

from __future__ import annotations

import socket

import pytest

from shardmill.core.devices import Device
from shardmill.engines.process import worker_environment
from shardmill.worker.tally import describe_place

_VARIABLES = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "KUBERNETES_SERVICE_HOST", "SHARDMILL_LOG")
_NAMES = ("SHARDMILL_WORKER", "SHARDMILL_SLOT")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, {}),
        ({"SHARDMILL_LOG": "worker-3"}, {"log": "logs/worker-3.log"}),
        (
            {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"},
            {"place": "Slurm job 12_3", "log": "logs/slurm-12_3.log"},
        ),
        ({"SLURM_ARRAY_JOB_ID": "12"}, {}),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"place": f"pod {socket.gethostname()}"}),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SHARDMILL_WORKER": "reviews-3-x7f2p"},
            {"place": "pod reviews-3-x7f2p"},
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SHARDMILL_WORKER": "a-0-b", "SHARDMILL_SLOT": "0.0"},
            {"place": f"pod {socket.gethostname()}"},
        ),
    ],
)
def test_a_worker_names_its_place(given: dict[str, str], said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_VARIABLES, *_NAMES):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert describe_place() == said


def test_an_engine_names_the_log() -> None:
    device = Device("cpu", "cpu")
    assert worker_environment("w", device, 0.0, log="worker-1")["SHARDMILL_LOG"] == "worker-1"
    assert "SHARDMILL_LOG" not in worker_environment("w", device, 0.0)
