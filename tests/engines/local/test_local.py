"""The local engine keeps the contract of all engines; tests/faults/engines has what is its own."""

from __future__ import annotations

from pathlib import Path

from tests.support import engine_contract as contract
from tests.support.engine_contract import LOCALLY


def test_every_row_comes_out_once(tmp_path: Path) -> None:
    contract.every_row_comes_out_once(LOCALLY, tmp_path)


def test_stopping_leaves_nothing_behind(tmp_path: Path) -> None:
    contract.stopping_leaves_nothing_behind(LOCALLY, tmp_path)


def test_a_stopped_run_is_resumed(tmp_path: Path) -> None:
    contract.a_stopped_run_is_resumed(LOCALLY, tmp_path)


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    contract.a_killed_worker_is_replaced(LOCALLY, tmp_path)


def test_a_worker_that_always_dies_stops_the_run(tmp_path: Path) -> None:
    contract.a_worker_that_always_dies_stops_the_run(LOCALLY, tmp_path)


def test_detached_workers_finish_a_run_alone(tmp_path: Path) -> None:
    contract.detached_workers_finish_a_run_alone(LOCALLY, tmp_path)


def test_detached_workers_are_adopted_and_stopped(tmp_path: Path) -> None:
    contract.detached_workers_are_adopted_and_stopped(LOCALLY, tmp_path)
