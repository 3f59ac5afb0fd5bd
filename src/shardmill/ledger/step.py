"""What follows the last shard: which process does each step, and what came of it. Lots of a delivery are such, too."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from shardmill.core.errors import ShardmillError
from shardmill.core.records import read_record
from shardmill.ledger.folder import Folder
from shardmill.ledger.process import name_process, process_alive
from shardmill.ledger.record import Step, encode

FREE, TAKEN, DONE, FAILED = "free", "taken", "done", "failed"
# After this many deaths, for instance for lack of memory, a step has failed.
_MOST_DEATHS = 3
_LOOK_EVERY_S = 0.2


class StepRecords:
    """Keeps one record per step, changed only by compare-and-swap. A step is done once, by whoever holds it then.

    They lie in the folder `within` of the run.
    """

    def __init__(self, folder: Folder, clock: Callable[[], float], within: str = "steps") -> None:
        self._folder, self._store, self._clock, self._within = folder, folder.store, clock, within

    def take(self, step: str, worker: str, lease_s: float) -> Step:
        """Take a step unless it is over or a living process holds it; returns the record that holds then."""
        while True:
            found, tag = self._read(step)
            if found is not None and not self._is_free(found):
                return found
            new = self._next(step, worker, lease_s, found)
            if self._change(new, tag):
                return new

    def renew(self, step: str, worker: str, lease_s: float) -> None:
        found, tag = self._read(step)
        if found is not None and found.state == TAKEN and found.worker == worker:
            self._change(replace(found, until=self._clock() + lease_s), tag)

    @contextlib.contextmanager
    def kept(
        self,
        step: str,
        worker: str,
        lease_s: float,
        stop: threading.Event,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[None]:
        """Renew the lease of a step while it is done; give it back if told to `stop`, or if it is not wanted."""
        ended = threading.Event()

        def keep() -> None:
            renewed = time.monotonic()
            while not ended.wait(min(_LOOK_EVERY_S, lease_s / 4)):
                with contextlib.suppress(ShardmillError):
                    if stop.is_set():
                        self.release(step, worker)
                        return
                    if time.monotonic() - renewed >= lease_s / 4:
                        renewed = time.monotonic()
                        self.renew(step, worker, lease_s)
                        if not is_wanted():
                            stop.set()

        keeper = threading.Thread(target=keep, name="step", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ended.set()
            keeper.join()

    def release(self, step: str, worker: str) -> None:
        """Give a step back that is not done, for others."""
        self._end(step, worker, Step(step, FREE))

    def finish(self, step: str, worker: str, result: dict[str, Any]) -> None:
        self._end(step, worker, Step(step, DONE, worker, result=result))

    def fail(self, step: str, worker: str, error: str, hint: str = "") -> Step:
        failed = Step(step, FAILED, worker, error=error, hint=hint)
        self._end(step, worker, failed)
        return failed

    def forget(self, step: str) -> None:
        """Make a step that is over one that is still to be done."""
        found, tag = self._read(step)
        if found is not None and found.state in (DONE, FAILED):
            self._change(Step(step, FREE), tag)

    def find(self, step: str) -> Step | None:
        return self._read(step)[0]

    def read(self, kind: str = "") -> list[Step]:
        """The steps that were begun, or those of a kind (`KIND:…`), in any order."""
        begin, ending = f"{self._within}/" + (f"{kind}." if kind else ""), f".{self._folder.known_generation()}.json"
        found = []
        for key in [entry.key for entry in self._store.list(begin) if entry.key.endswith(ending)]:
            # Whoever starts the run over deletes them.
            with contextlib.suppress(FileNotFoundError):
                found.append(self._decode(self._store.get(key)))
        return found

    def _is_free(self, found: Step) -> bool:
        if found.state != TAKEN:
            return found.state == FREE
        return found.until <= self._clock() or process_alive(found.host, found.pid) is False

    def _next(self, step: str, worker: str, lease_s: float, found: Step | None) -> Step:
        deaths = found.deaths + (found.state == TAKEN) if found is not None else 0
        if deaths >= _MOST_DEATHS:
            return Step(step, FAILED, deaths=deaths, error=f"{deaths} processes in a row died at it.")
        now = self._clock()
        return Step(step, TAKEN, worker, name_process(), os.getpid(), now + lease_s, deaths, began_at=now)

    def _end(self, step: str, worker: str, new: Step) -> None:
        """Change the record unless another process has taken the step over."""
        while True:
            found, tag = self._read(step)
            if found is None or found.state != TAKEN or found.worker != worker:
                return
            ended = replace(new, deaths=found.deaths, began_at=found.began_at, ended_at=self._clock())
            if self._change(ended, tag):
                return

    def _change(self, new: Step, tag: str) -> bool:
        key, data = self._key(new.step), encode(new)
        return self._store.replace_if_same(key, data, tag) if tag else self._store.put_if_absent(key, data)

    def _read(self, step: str) -> tuple[Step | None, str]:
        try:
            data, tag = self._store.get_tagged(self._key(step))
        except FileNotFoundError:
            return None, ""
        return self._decode(data), tag

    def _decode(self, data: bytes) -> Step:
        return read_record(Step, data, f"A record in {self._within}/", "Delete it and resume: the step is done again.")

    def _key(self, step: str) -> str:
        """A step may name a file, so it is named by its kind and a digest."""
        digest = hashlib.sha256(step.encode()).hexdigest()[:8]
        return f"{self._within}/{step.partition(':')[0]}.{digest}.{self._folder.known_generation()}.json"
