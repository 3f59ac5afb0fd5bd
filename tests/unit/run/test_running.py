"""How many workers are placed: on GPUs no more than there is work for, unless their number was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.plan.spec import Spec
from shardmill.run.running import _as_many_as_needed
from tests.support.ledgers import a_plan

GPU = Device("cuda", "H", 2, 80 << 30, "0")
# Two workers on each of two GPUs.
FOUR = [replace(GPU, visible=str(i % 2), sharing=2) for i in range(4)]


def placed(shards: int, devices: list[Device], **execution: Any) -> list[tuple[str, int]]:
    plan = a_plan(task="shardmill.testing:FakeTask")
    spec = Spec.model_validate({"work": plan.work.model_dump(mode="json"), "execution": execution})
    return [(one.visible, one.sharing) for one in _as_many_as_needed(devices, plan, spec, shards)]


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        (1, [("0", 1)]),
        (2, [("0", 1), ("1", 1)]),
        (31, [("0", 1), ("1", 1)]),
        (32, [("0", 2), ("1", 2), ("0", 2), ("1", 2)]),
    ],
)
def test_gpus_get_a_second_worker_if_there_is_work_for_it(shards: int, expected: list[tuple[str, int]]) -> None:
    assert placed(shards, FOUR) == expected


def test_what_was_asked_for_and_cpus_stay() -> None:
    assert len(placed(1, FOUR, workers=4)) == 4
    assert len(placed(1, [Device("cpu", "cpu")] * 3)) == 3
