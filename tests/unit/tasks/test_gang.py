"""Processes that work together: what is done about an error in one of them."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from shardmill.core.devices import own_address
from shardmill.core.errors import DeviceLost, TaskError
from shardmill.tasks import gang
from shardmill.tasks.context import Group
from shardmill.tasks.gang import GroupChanged, process_group, run_together
from shardmill.testing import FakeContext
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S

processes = multiprocessing.get_context("spawn")


class PairContext(FakeContext):
    """A context whose group is the first of two processes; nobody is lost."""

    def join(self) -> AbstractContextManager[Group]:
        return nullcontext(Group(0, 2, "127.0.0.1:1", 1, 0.0, lambda: True, lambda seconds: False))


def _work(context: PairContext, *errors: Exception | int) -> str:
    """Raises these errors one after another; a number is a checkpoint before the next error."""
    left = list(errors)

    def work(group: Group) -> str:
        while left:
            if isinstance(now := left.pop(0), Exception):
                raise now
            context.keep(now, {"state.json": b"{}"})
        return "done"

    meet: Callable[[Group], Any] = lambda group: nullcontext()  # noqa: E731
    return run_together(context, work, meet)


def test_a_group_that_was_late_or_lost_a_connection_meets_again() -> None:
    late = RuntimeError("Timed out waiting 30000ms for recv operation to complete")
    assert _work(PairContext(), late, ConnectionResetError("gone"), late) == "done"
    assert _work(PairContext(), late, late, 1, late, late, 2, late, late, late) == "done"


def test_a_group_that_never_gets_further_ends() -> None:
    with pytest.raises(RuntimeError, match="the fifth"):
        _work(PairContext(), 1, *[RuntimeError(f"the {n}") for n in ("first", "second", "third", "fifth")])


@pytest.mark.parametrize("error", [TaskError("The loss is nan."), ValueError("no such item"), DeviceLost("gone")])
def test_an_error_of_the_task_is_not_tried_again(error: Exception) -> None:
    with pytest.raises(type(error)):
        _work(PairContext(), error)


def _group(rank: int, address: str, timeout_s: float, listener: socket.socket | None = None) -> Group:
    return Group(rank, 2, address, 1, timeout_s, lambda: True, lambda seconds: False, listener)


def _add(rank: int, address: str, listener: socket.socket | None = None) -> int:
    import torch

    with process_group(_group(rank, address, PATIENCE_S, listener)):
        said = torch.tensor([rank + 1])
        torch.distributed.all_reduce(said)
        return int(said)


def test_processes_meet_after_one_of_them_met_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    needed("torch")

    def listen() -> tuple[str, socket.socket]:
        listener = socket.create_server(("", 0))
        return f"{own_address()}:{listener.getsockname()[1]}", listener

    monkeypatch.setattr(gang, "_SHORTEST_S", 0.1)
    address, listener = listen()
    with pytest.raises(RuntimeError, match="timeout"), process_group(_group(0, address, 0.1, listener)):
        pass
    address, listener = listen()
    other = processes.Process(target=_add, args=(1, address))
    other.start()
    try:
        assert _add(0, address, listener) == 3
        other.join(PATIENCE_S)
        assert other.exitcode == 0
    finally:
        other.kill()


def test_who_comes_too_late_for_a_group_waits_for_the_next() -> None:
    needed("torch")
    listener = socket.create_server(("", 0))
    address = f"{own_address()}:{listener.getsockname()[1]}"
    listener.close()
    with pytest.raises(GroupChanged), process_group(_group(1, address, PATIENCE_S)):
        pass
