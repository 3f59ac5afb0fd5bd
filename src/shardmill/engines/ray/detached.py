"""Actors that outlive the program that made them. Later ones find them by name, in a namespace of the run's own."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError

from shardmill.core.devices import Device
from shardmill.engines.process import name_worker
from shardmill.engines.ray.post import Birth, End, Post
from shardmill.ledger import ENDED, Ledger

# How long an actor whose worker has ended stays, for those who ask how it ended.
_STAYS_S = 5.0
_ANSWER_S = 10.0
# Calls wait for the end while others are answered.
_ASKED_S = 30.0
CALLS_AT_ONCE = 8


class DetachedPost(Post):
    """Starts its worker by itself, as nobody may be there once Ray has a node for it, and ends after the worker."""

    def __init__(
        self, run: str, generation: str, device: Device, version: str, seat: int, slot: float, handed_on: dict[str, str]
    ) -> None:
        super().__init__(run, generation, device, version, detached=True)
        birth = super().look()
        self._birth = Birth(birth.host, birth.node, birth.trouble, name_worker(seat, birth.host))
        self._end: End | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._stay, args=(seat, slot, handed_on), daemon=True).start()

    def look(self) -> Birth:
        return self._birth

    def has_ended(self) -> bool:
        """Whether its worker is gone, or has said that it ends: its process may take a while to do so."""
        gone = self._ended.is_set() or (self._worker is not None and self._worker.poll() is not None)
        return gone or (Ledger(self._run).workers.find(self._birth.worker) or {}).get("state") in ENDED

    def wait(self) -> End | None:
        """How the worker ended; None if it has not after a while: whoever asked may be gone."""
        if not self._ended.wait(_ASKED_S):
            return None
        return self._end or End(-signal.SIGKILL, [])

    def _stay(self, seat: int, slot: float, handed_on: dict[str, str]) -> None:
        try:
            if self._birth.trouble is None:
                self._end = self.work(self._birth.worker, seat, slot, handed_on)
        finally:
            self._ended.set()
            time.sleep(_STAYS_S)
            ray.kill(ray.get_runtime_context().current_actor)


def namespace_of(generation: str) -> str:
    """Where the detached actors of a run have their names."""
    return f"shardmill-{generation}"


def find_left(generation: str) -> dict[int, Any]:
    """The actors of a run that work, or wait for a node, by seat. Those whose worker has ended are dismissed."""
    namespace = namespace_of(generation)
    named = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == namespace]
    left: dict[int, Any] = {}
    for name in named:
        with suppress(ValueError, RayError):
            actor = ray.get_actor(name, namespace)
            answer = actor.has_ended.remote()
            ready, _ = ray.wait([answer], timeout=_ANSWER_S)
            if ready and ray.get(answer):
                ray.kill(actor)
            else:
                left[int(name.rsplit("-", 2)[1])] = actor
    return left
