"""What bounds the speed of a run."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.run.status.bound import find_bound


def a_worker(**changes: Any) -> dict[str, Any]:
    stages = {"read_s": 5.0, "prepare_s": 20.0, "device_s": 90.0, "write_s": 5.0}
    return {"rows": 9, "began": 0.0, "at": 100.0, "idle_s": 1.0, "sink_wait_s": 1.0, "timings": stages, **changes}


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ({}, "device"),
        ({"idle_s": 60.0}, "preparing"),
        ({"idle_s": 60.0, "timings": {"read_s": 70.0, "prepare_s": 5.0}}, "reading"),
        ({"idle_s": 20.0, "sink_wait_s": 40.0}, "sink"),
    ],
)
def test_the_device_waits_for_what_bounds_it(changes: dict[str, Any], by: str) -> None:
    found = find_bound([a_worker(**changes), a_worker(**changes)])
    assert found is not None
    assert found["by"] == by
    assert found["device_busy"] + found["waiting_for_input"] + found["waiting_for_sink"] == pytest.approx(1.0)


@pytest.mark.parametrize("changes", [{"rows": 0}, {"timings": None}, {"at": 1.0}])
def test_too_little_is_known(changes: dict[str, Any]) -> None:
    assert find_bound([a_worker(**changes)]) is None
