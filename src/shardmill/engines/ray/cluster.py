"""A connection to a Ray cluster, and what the cluster could hold."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import ray

from shardmill.errors import UsageError

_ANSWER_S = 5.0
# The first frame a gRPC server sends to whoever greets it.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + b"\x00" * 5
_SETTINGS = 4

Resources = Mapping[str, float]


class Connection:
    """To the cluster this process is connected to already, or to an address, or to a Ray started here for a while.

    What was begun here ends with `close`, or when nobody holds it any more.
    """

    def __init__(self, address: str = "") -> None:
        self._end: weakref.finalize[..., Connection] | None = None
        if ray.is_initialized():
            _same_cluster(address)
            return
        if address in ("", "auto"):
            address = os.environ.get("RAY_ADDRESS", address)
        _ask(address)
        with _own_sigterm():
            try:
                ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise UsageError(f"--address {address}: {' '.join(str(error).split())}", hint=_START) from error
        self._end = weakref.finalize(self, _end, _hush())

    def close(self) -> None:
        if self._end is not None:
            self._end()


_START = "Is the cluster up (`ray status`)? Without --address, and RAY_ADDRESS, a Ray is started on this machine."


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes SIGTERM from the program that uses it, and then dies of it with a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _hush() -> ExitStack:
    """Ray tells of dead actors on stdout, which is for data. The engine tells of them itself."""
    talk = ExitStack()
    with suppress(ImportError):
        from ray._private import worker

        if said := vars(worker).get("print_to_stdstream"):
            worker.print_to_stdstream = lambda *args, **named: None
            talk.callback(setattr, worker, "print_to_stdstream", said)
    return talk


def _end(talk: ExitStack) -> None:
    ray.shutdown()
    talk.close()


def _same_cluster(address: str) -> None:
    connected = ray.get_runtime_context().gcs_address
    if address not in ("", "auto", "local") and address != connected:
        raise UsageError(f"--address {address}: this program is connected to the Ray at {connected}.")


def _ask(address: str) -> None:
    """Ray tries a dead address for minutes; whether a Ray listens there is known at once."""
    if address in ("", "auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdecimal()):
        hint = "It is auto, or HOST:PORT of the cluster's head. From outside, use `ray job submit -- shardmill …`."
        raise UsageError(f"--address {address}: this is no address of a Ray cluster.", hint=hint)
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as line:
            line.sendall(_GREETING)
            said = line.recv(9)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--address {address}: nobody answers ({error}).", hint=_START) from error
    if os.environ.get("RAY_USE_TLS", "0") != "1" and said[3:4] != bytes([_SETTINGS]):
        raise UsageError(f"--address {address}: what listens there is no Ray head.", hint="Its port is 6379 mostly.")


def nodes() -> list[dict[str, float]]:
    """What each living node has, in use or not."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def is_alive(node: str) -> bool:
    return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())


def node_types() -> list[dict[str, float]]:
    """What a node has that an autoscaler could still add; none where there is no autoscaler.

    Ray has this for its own libraries only, so it may move; then a demand that only new nodes can meet needs `wait_s`.
    """
    try:
        from ray._private.state import state

        config = state.get_cluster_config()
    except Exception:
        return []
    groups = config.node_group_configs if config is not None else ()
    return [dict(group.resources) for group in groups if group.max_count]


def fits(demand: Resources, node: Resources) -> int:
    """How many workers a node has room for when it is empty; of workers that need nothing, one.

    >>> fits({"CPU": 2, "GPU": 1}, {"CPU": 7, "GPU": 4})
    3
    """
    return min((int(node.get(name, 0) / need + 1e-9) for name, need in demand.items() if need), default=1)


def describe(have: Sequence[Resources], names: Sequence[str]) -> str:
    """The nodes of a cluster by what they have.

    >>> describe([{"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 2.0}], ["CPU", "GPU"])
    '2 nodes with 2 CPU, 1 node with 2 CPU and 1 GPU'
    """
    kinds = Counter(amounts({name: node.get(name, 0) for name in ("CPU", "GPU", *names)}) for node in have)
    return ", ".join(f"{n} node{'s' * (n > 1)} with {what}" for what, n in kinds.items()) or "no nodes"


def amounts(resources: Resources) -> str:
    said = [f"{amount:g} {name}" for name, amount in resources.items() if amount]
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]])) or "nothing"


def group(hexadecimal: str) -> Any:
    """The placement group that has this id."""
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(hexadecimal)))


def bundles(hexadecimal: str) -> list[dict[str, float]]:
    """What each bundle of a placement group holds."""
    return [dict(bundle) for bundle in group(hexadecimal).bundle_specs]


def total(have: Sequence[Resources]) -> dict[str, float]:
    return {name: sum(each.get(name, 0) for each in have) for name in sorted({n for each in have for n in each})}
