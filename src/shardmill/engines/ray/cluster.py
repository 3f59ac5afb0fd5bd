"""A connection to a Ray cluster, and the resources of its nodes."""

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

from shardmill.core.errors import UsageError

_ANSWER_S = 5.0
# An HTTP/2 preface; a gRPC server answers it with a SETTINGS frame.
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + b"\x00" * 5
_SETTINGS = 4

Resources = Mapping[str, float]


class Connection:
    """Uses the cluster this process is already connected to, connects to an address, or starts a local Ray.

    What shardmill started ends with the last connection that is closed or garbage-collected; a `lasting` cluster
    must be there.
    """

    def __init__(self, address: str = "", *, lasting: bool = False) -> None:
        self._session = _Session.current()
        if ray.is_initialized():
            _same_cluster(address)
            return
        if address in ("", "auto"):
            address = os.environ.get("RAY_ADDRESS", address)
        _check_address(address)
        if lasting and address in ("", "local"):
            raise UsageError(
                "--detach needs a Ray cluster: without an address, the command starts a Ray that ends with it.",
                hint="Start one (`ray start --head`) and say --address auto, or use --engine local --detach.",
            )
        # Ray reports the use of a cluster that it starts, unless the user's own setting says otherwise.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with _keep_sigterm():
            try:
                ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise UsageError(f"--address {address}: {' '.join(str(error).split())}", hint=_START) from error
        self._session = _Session()

    def close(self) -> None:
        self._session = None


class _Session:
    """Ray as shardmill started it: it ends when no connection holds it, and never ends a Ray that came after it."""

    _latest: weakref.ref[_Session] | None = None

    def __init__(self) -> None:
        self.name = _session_name()
        weakref.finalize(self, _end, self.name, _silence_ray())
        _Session._latest = weakref.ref(self)

    @staticmethod
    def current() -> _Session | None:
        session = _Session._latest() if _Session._latest is not None else None
        return session if session is not None and session.name == _session_name() else None


def _session_name() -> str | None:
    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else None


_START = "Is the cluster up (`ray status`)? Without --address and RAY_ADDRESS, a Ray is started on this machine."


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Restore our SIGTERM handler: Ray installs its own, which ends the program with a stack trace."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _silence_ray() -> ExitStack:
    """Silence Ray's messages about dead actors on stdout, which is for data. The engine reports them itself."""
    talk = ExitStack()
    with suppress(ImportError):
        from ray._private import worker

        if said := vars(worker).get("print_to_stdstream"):
            worker.print_to_stdstream = lambda *args, **named: None
            talk.callback(setattr, worker, "print_to_stdstream", said)
    return talk


def _end(session: str | None, talk: ExitStack) -> None:
    if session == _session_name():
        ray.shutdown()
    talk.close()


def _same_cluster(address: str) -> None:
    connected = ray.get_runtime_context().gcs_address
    if address not in ("", "auto", "local") and address != connected:
        raise UsageError(f"--address {address}: this program is connected to the Ray at {connected}.")


def _check_address(address: str) -> None:
    """Check that a Ray head listens at an address: Ray itself retries a dead one for minutes."""
    if address in ("", "auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdecimal()):
        hint = "Use auto, or HOST:PORT of the cluster's head. From outside, use `ray job submit -- shardmill …`."
        raise UsageError(f"--address {address}: this is not the address of a Ray cluster.", hint=hint)
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as line:
            line.sendall(_GREETING)
            said = line.recv(9)
    except (OSError, OverflowError) as error:
        raise UsageError(f"--address {address}: no answer ({error}).", hint=_START) from error
    if os.environ.get("RAY_USE_TLS", "0") != "1" and said[3:4] != bytes([_SETTINGS]):
        raise UsageError(f"--address {address}: what listens there is not a Ray head.", hint="The usual port is 6379.")


def nodes() -> list[dict[str, float]]:
    """The resources of each live node, in use or not."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def is_alive(node: str) -> bool:
    return any(each["NodeID"] == node and each["Alive"] for each in ray.nodes())


def node_types() -> list[dict[str, float]]:
    """The resources of each kind of node that an autoscaler can add; empty without an autoscaler.

    This API is private to Ray and may move. Without it, a demand that only new nodes can meet needs `wait_s`.
    """
    try:
        from ray._private.state import state

        config = state.get_cluster_config()
    except Exception:
        return []
    groups = config.node_group_configs if config is not None else ()
    return [dict(group.resources) for group in groups if group.max_count]


def fits(demand: Resources, node: Resources) -> int:
    """How many workers fit on an empty node; one if a worker needs nothing.

    >>> fits({"CPU": 2, "GPU": 1}, {"CPU": 7, "GPU": 4})
    3
    """
    return min((int(node.get(name, 0) / need + 1e-9) for name, need in demand.items() if need), default=1)


def describe(have: Sequence[Resources], names: Sequence[str]) -> str:
    """The nodes of a cluster, counted by their resources.

    >>> describe([{"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 2.0}], ["CPU", "GPU"])
    '2 nodes with 2 CPU, 1 node with 2 CPU and 1 GPU'
    """
    kinds = Counter(amounts({name: node.get(name, 0) for name in ("CPU", "GPU", *names)}) for node in have)
    return ", ".join(f"{n} node{'s' * (n > 1)} with {what}" for what, n in kinds.items()) or "no nodes"


def amounts(resources: Resources) -> str:
    said = [f"{amount:g} {name}" for name, amount in resources.items() if amount]
    return " and ".join(filter(None, [", ".join(said[:-1]), *said[-1:]])) or "nothing"


def group(hexadecimal: str) -> Any:
    """The placement group with this id."""
    from ray.util.placement_group import PlacementGroup

    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(hexadecimal)))


def bundles(hexadecimal: str) -> list[dict[str, float]]:
    """The resources of each bundle of a placement group."""
    return [dict(bundle) for bundle in group(hexadecimal).bundle_specs]


def total(have: Sequence[Resources]) -> dict[str, float]:
    return {name: sum(each.get(name, 0) for each in have) for name in sorted({n for each in have for n in each})}
