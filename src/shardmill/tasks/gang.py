"""Work on an item in several processes with torch.distributed, whoever is lost or joins meanwhile."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from shardmill.core.devices import Device, own_address
from shardmill.core.errors import DeviceLost, TaskError
from shardmill.tasks.context import Context, Group, Stopped

_Made = TypeVar("_Made")
_SHORTEST_S = 30.0
# A machine that is late or a broken connection ends a group whose processes all live. It may try so often in a row.
_TRIES = 3
_OF_A_COLLECTIVE = (RuntimeError, OSError)
_ANSWERS_S = 5.0
_SIOCGIFADDR = 0x8915


class GroupChanged(Exception):
    """All processes of a group have left it together, after a checkpoint, so that others can join."""


def backend_of(device: Device) -> str:
    """torch's backends for tensors of the CPU and of the device."""
    return "cpu:gloo,cuda:nccl" if device.kind == "cuda" else "gloo"


@contextmanager
def process_group(group: Group, backend: str = "gloo") -> Iterator[None]:
    """torch.distributed's default group, of these processes."""
    from torch import distributed
    from torch.distributed import distributed_c10d

    if "nccl" in backend:
        # Else nothing is raised when a process is gone: a step goes on with what has not arrived, or torch ends this
        # process too.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    timeout = timedelta(seconds=max(_SHORTEST_S, group.timeout_s))
    store = _open_store(group, timeout)
    # torch names a group by how many were begun in this process. One that failed would count, and the processes of the
    # next group would look for each other under different names.
    distributed_c10d._world.group_count = 0
    distributed.init_process_group(backend, store=store, rank=group.rank, world_size=group.size, timeout=timeout)
    try:
        yield
        distributed.destroy_process_group()
    except BaseException:
        # Who lost touch with the others takes no leave: NCCL would wait for those who are gone.
        leave = distributed_c10d._abort_process_group if "nccl" in backend else distributed.destroy_process_group
        if distributed.is_initialized():
            leave()
        raise


def run_together(
    context: Context,
    work: Callable[[Group], _Made],
    meet: Callable[[Group], AbstractContextManager[object]] = process_group,
) -> _Made:
    """Call `work` in every process of a group, once they `meet`, until it returns.

    It is called again, and goes on from the last checkpoint, if it raises GroupChanged or if a process is lost; and a
    few times if the processes lost touch though none is gone.
    """
    tries, step = 0, -1
    while True:
        with context.join() as group:
            try:
                with meet(group):
                    return work(group)
            except (Stopped, DeviceLost, TaskError):
                raise
            except GroupChanged:
                continue
            except Exception as error:
                # A collective fails if a process of the group is gone. All else is an error of the task; the first
                # process makes sure of that, and the others leave at once.
                own = not isinstance(error, _OF_A_COLLECTIVE)
                if own and group.rank:
                    raise
                if group.is_lost():
                    continue
                if own or group.size == 1:
                    raise
                step, before = _kept_step(context), step
                tries = 1 if step > before else tries + 1
                if tries > _TRIES:
                    raise
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)


def _kept_step(context: Context) -> int:
    kept = context.checkpoint()
    return kept.step if kept is not None else -1


def _open_store(group: Group, timeout: timedelta) -> Any:
    """Where the processes find one another: at the first."""
    from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

    if group.size == 1:
        return HashStore()
    _choose_interface()
    host, _, port = group.address.rpartition(":")
    if group.listener is None:
        _reach(host, int(port))
    store = TCPStore(
        host if group.listener is None else "127.0.0.1",
        int(port),
        world_size=group.size,
        is_master=group.listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=group.listener.detach() if group.listener is not None else None,
    )
    return PrefixStore(str(group.generation), store)


def _reach(host: str, port: int) -> None:
    """See that the first process is there. It listens before its address is known, so it is in another group if not."""
    try:
        socket.create_connection((host, port), _ANSWERS_S).close()
    except ConnectionRefusedError as error:
        raise GroupChanged from error
    except OSError:
        pass  # The network is slow; torch goes on trying.


def _choose_interface() -> None:
    """Let gloo use the interface that others reach; by itself it looks up the name of the host."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
            except OSError:
                continue
            if socket.inet_ntoa(found[20:24]) == own_address():
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
                return
