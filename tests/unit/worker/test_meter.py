"""Memory and device use of a worker."""

from __future__ import annotations

import time

import pytest

from shardmill.devices import Device, gpus
from shardmill.worker.meter import Meter


def test_a_cpu_is_busy_for_the_share_of_the_time_that_this_process_runs() -> None:
    meter = Meter(Device("cpu", "cpu", threads=1))
    until = time.process_time() + 0.6
    while time.process_time() < until:
        pass
    seen = meter.read()
    assert 0 < seen["use"] <= 1
    assert seen["device_bytes"] is None
    assert meter.read()["use"] == seen["use"]


def test_a_gpu_that_is_not_there_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-none")
    seen = Meter(Device("cuda", "none")).read()
    assert (seen["device_bytes"], seen["use"]) == (None, None)


@pytest.mark.gpu
def test_a_gpu_is_measured() -> None:
    seen = Meter(gpus()[0]).read()
    assert seen["device_bytes"] > 0
    assert 0 <= seen["use"] <= 1
