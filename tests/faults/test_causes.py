"""A passing fault of one place does not end a run: it is tried again here or elsewhere, and only then reported."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import (
    WORKER_FAILED,
    Cure,
    HubBusy,
    ModelError,
    SourceError,
    StoreError,
    UsageError,
    WorkerFailed,
)
from shardmill.engines.deaths import Deaths
from shardmill.ledger import Ledger
from shardmill.models.location import find_model
from shardmill.run import running, start
from shardmill.sources.files import readable
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.ledgers import a_plan


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ETIMEDOUT])
def test_a_source_on_nfs_that_stumbles_is_read_again(number: int) -> None:
    with pytest.raises(StoreError) as caught, readable("/nfs/a.jsonl"):
        raise OSError(number, os.strerror(number), "/nfs/a.jsonl")
    assert caught.value.cure is Cure.HERE


def test_a_source_that_may_not_be_read_is_refused() -> None:
    with pytest.raises(SourceError) as caught, readable("/nfs/a.jsonl"):
        raise PermissionError(errno.EACCES, "Permission denied", "/nfs/a.jsonl")
    assert caught.value.cure is Cure.FINAL


class Answer(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{status}")
        self.response = type("Response", (), {"status_code": status})()


@pytest.mark.parametrize(("status", "kind"), [(429, HubBusy), (503, HubBusy), (404, ModelError)])
def test_a_busy_hub_is_asked_again(status: int, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("wrapped") from Answer(status)

    monkeypatch.setattr(hub, "snapshot_download", refuse)
    with pytest.raises(kind):
        find_model("nobody/no-such-model")


def _lines(cure: Cure) -> list[str]:
    return [WORKER_FAILED + json.dumps({"message": "it broke.", "hint": "", "cure": cure.name})]


def _deaths(folder: Path, **options: Any) -> Deaths:
    ledger = Ledger(folder)
    ledger.create(a_plan())
    return Deaths(ledger, options.pop("forgiven", 1), **options)


def test_a_fault_of_one_machine_ends_the_run_only_if_there_is_no_other(tmp_path: Path) -> None:
    many = _deaths(tmp_path / "many")
    assert many.judge(0, "w", Cure.ELSEWHERE, _lines(Cure.ELSEWHERE)) is None
    failed = many.judge(0, "w", Cure.ELSEWHERE, _lines(Cure.ELSEWHERE))
    assert failed is not None
    assert failed.exit_status == 69
    with pytest.raises(WorkerFailed):
        _deaths(tmp_path / "one", one_machine=True).judge(0, "w", Cure.ELSEWHERE, _lines(Cure.ELSEWHERE))


def test_a_passing_fault_that_stays_tells_the_scheduler_to_try_again(tmp_path: Path) -> None:
    deaths = _deaths(tmp_path / "run")
    assert deaths.judge(0, "w", Cure.HERE, _lines(Cure.HERE)) is None
    failed = deaths.judge(0, "w", Cure.HERE, _lines(Cure.HERE))
    assert failed is not None
    assert failed.exit_status == 74


def _of_task(place: str, message: str = "it broke.") -> list[str]:
    return [WORKER_FAILED + json.dumps({"message": message, "hint": "", "cure": "HERE", "place": place})]


def _fails_alike(deaths: Deaths, *died: tuple[int, str]) -> list[bool]:
    """Of each death, by its seat and the place of its error, whether it ends the run."""
    ended = []
    for number, (seat, place) in enumerate(died):
        try:
            deaths.judge(seat, f"w{number}", Cure.HERE, _of_task(place, f"row {number} broke it."))
            ended.append(False)
        except WorkerFailed:
            ended.append(True)
    return ended


def test_a_task_that_fails_in_one_place_for_every_worker_is_final(tmp_path: Path) -> None:
    many = {"forgiven": 9, "seats": 2}
    assert _fails_alike(_deaths(tmp_path / "a", **many), (0, "x.py:1"), (1, "x.py:1")) == [False, True]
    assert _fails_alike(_deaths(tmp_path / "b", **many), (0, "x.py:1"), (0, "x.py:1")) == [False, False]
    assert _fails_alike(_deaths(tmp_path / "c", **many), (0, "x.py:1"), (1, "x.py:2"), (0, "x.py:2")) == [
        *(False, False, True)
    ]
    assert _fails_alike(_deaths(tmp_path / "d", **many), (0, ""), (1, "")) == [False, False]
    assert _fails_alike(_deaths(tmp_path / "e", forgiven=9, seats=1), (0, "x.py:1"), (0, "x.py:1")) == [False, True]
    assert _fails_alike(_deaths(tmp_path / "f", forgiven=9), (0, "x.py:1"), (0, "x.py:1")) == [False, False]


def test_the_workers_of_a_run_say_how_many_seats_there_are(tmp_path: Path) -> None:
    deaths = _deaths(tmp_path, forgiven=9)
    ledger = Ledger(tmp_path)
    ledger.plan()
    ledger.put_execution({"workers": 2})
    assert _fails_alike(deaths, (0, "x.py:1"), (1, "x.py:1")) == [False, True]


@pytest.mark.parametrize(("one_machine", "cure"), [(True, Cure.ELSEWHERE), (False, Cure.FINAL)])
def test_a_task_that_fails_for_every_worker_may_do_on_another_machine(
    tmp_path: Path, one_machine: bool, cure: Cure
) -> None:
    deaths = _deaths(tmp_path, seats=1, forgiven=9, one_machine=one_machine)
    deaths.judge(0, "w", Cure.HERE, _of_task("x.py:1"))
    with pytest.raises(WorkerFailed, match="it broke") as caught:
        deaths.judge(0, "w", Cure.HERE, _of_task("x.py:1"))
    assert caught.value.cure is cure


def test_workers_that_get_on_are_no_reason_to_give_up(tmp_path: Path) -> None:
    deaths = _deaths(tmp_path, seats=1, forgiven=9)
    for worker in ("one", "two", "three"):
        Ledger(tmp_path).workers.beat(worker, {"commits": 1, "state": "failed"})
        assert deaths.judge(0, worker, Cure.HERE, _of_task("x.py:1")) is None


def test_a_final_fault_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailed) as caught:
        _deaths(tmp_path / "run").judge(0, "w", Cure.FINAL, _lines(Cure.FINAL))
    assert caught.value.exit_status == 1


def test_a_bad_ray_node_costs_a_seat_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from shardmill.engines.ray import engine
    from shardmill.engines.ray.post import Birth

    placed: list[int] = []
    monkeypatch.setattr(engine.RayPlacement, "_place", lambda self, seat: placed.append(seat.number))
    placement: Any = object.__new__(engine.RayPlacement)
    placement._deaths, placement._failed = _deaths(tmp_path / "run"), None
    bad = Birth("bad-node", "n1", UsageError("bad-node has no GPU."))
    placement._begin(engine._Seat(4), bad)
    assert (placed, placement._failed) == ([4], None)
    placement._begin(engine._Seat(4), bad)
    assert (placed, placement._failed) == ([4], bad.trouble)


def test_a_worker_exits_with_the_status_of_the_cause(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl(fake_rows(5))
    start(fake_spec(source), tmp_path / "run", engine=InProcessEngine())
    (tmp_path / "run" / "plan.json").unlink()
    command = [sys.executable, "-m", "shardmill.worker", str(tmp_path / "run")]
    assert subprocess.run(command, capture_output=True).returncode == Cure.FINAL


class _Polled(InProcessEngine):
    """Asks for three more rounds of the watcher after its work is done; the second round fails in the engine."""

    rounds = 3

    def poll(self) -> bool:
        self.rounds -= 1
        if self.rounds == 1:
            raise StoreError("the store is away.")
        return self.rounds > 0


def test_a_store_error_while_watching_does_not_end_the_run(
    tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, read_status = [0], running.read_status

    def stumble(*args: Any) -> Any:
        asked[0] += 1
        if asked[0] == 1:
            raise StoreError("the store is away.")
        return read_status(*args)

    monkeypatch.setattr(running, "read_status", stumble)
    monkeypatch.setattr(running, "_SHOW_EVERY_S", 0.0)
    done = start(fake_spec(write_jsonl(fake_rows(20))), tmp_path / "run", engine=_Polled())
    assert asked[0] > 1
    assert done.status().state == "complete"


def test_a_store_that_stays_away_ends_the_run(
    tmp_path: Path, write_jsonl: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise StoreError("the store is away.")

    engine = _Polled()
    monkeypatch.setattr(engine, "poll", fail)
    monkeypatch.setattr(running, "_STORE_AWAY_S", 0.0)
    with pytest.raises(StoreError, match="the store is away"):
        start(fake_spec(write_jsonl(fake_rows(20))), tmp_path / "run", engine=engine)
