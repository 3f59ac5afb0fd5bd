"""A simulated clock, and a store whose requests take time on it."""

from __future__ import annotations

import heapq
import math
import random
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Protocol

from shardmill.store import Entry

PAGE = 1000
# The median and the 99th percentile of each kind of request, in seconds.
LATENCY_S = {"GET": (0.020, 0.080), "PUT": (0.040, 0.160), "DELETE": (0.025, 0.100), "LIST": (0.070, 0.250)}
# What a listing takes for each key, about.
ENTRY_BYTES = 250
_LOG_NORMAL = {kind: (math.log(median), math.log(rare / median) / 2.326) for kind, (median, rare) in LATENCY_S.items()}


class Turn:
    """One simulated thread: a real one that runs only when it is its turn. It belongs to an `owner`, if any."""

    __slots__ = ("lock", "owner", "ticket")

    def __init__(self, owner: Owner | None) -> None:
        self.owner, self.ticket = owner, 0
        self.lock = threading.Lock()
        self.lock.acquire()


class Owner(Protocol):
    """What threads belong to: it can be killed, which ends them, and frozen until some time."""

    killed: bool
    frozen_until: float


class Killed(BaseException):
    """Raised in every thread of an owner that was killed, wherever it waits."""


class Turns:
    """Runs one of many threads at a time: the one whose time comes first. Time stands still while it runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current: Turn | None = None
        self.failure: BaseException | None = None
        self._queue: list[tuple[float, int, Turn | Callable[[], None], int]] = []
        self._count = 0
        self._over = threading.Event()

    def clock(self) -> float:
        return self.now

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._push(when, what, 0)

    def spawn(self, body: Callable[[], None], owner: Owner | None = None) -> Turn:
        """Start a thread; its turn comes later, at the present time."""
        turn = Turn(owner)
        # It gets a turn only once it is there: if the machine has no more threads, that is told, and nobody waits.
        threading.Thread(target=self._run, args=(body, turn), daemon=True).start()
        self.wake(turn)
        return turn

    def wake(self, turn: Turn) -> None:
        """End the pause of a thread at the present time; nothing happens if it does not pause."""
        if turn.ticket >= 0:
            self._push(self.now, turn, turn.ticket)

    def pause(self, until: float = math.inf) -> None:
        """Let others run until this time, or until the calling thread is woken."""
        turn = self.current
        assert turn is not None
        owner = turn.owner
        if owner is not None and owner.killed:
            raise Killed
        if until < math.inf:
            until = max(self.now, until)
            if (not self._queue or self._queue[0][0] > until) and (owner is None or owner.frozen_until <= until):
                self.now = until
                return
            self._push(until, turn, turn.ticket)
        if self._hand_on(turn):
            turn.lock.acquire()
        if owner is not None and owner.killed:
            raise Killed

    def run(self) -> None:
        """Run until no thread has anything left to do."""
        self._over.clear()
        size = threading.stack_size(512 << 10)
        try:
            if self._hand_on(None):
                self._over.wait()
        finally:
            threading.stack_size(size)
        self.current = None
        if self.failure is not None:
            raise self.failure

    def _push(self, when: float, what: Turn | Callable[[], None], ticket: int) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, what, ticket))

    def _run(self, body: Callable[[], None], turn: Turn) -> None:
        turn.lock.acquire()
        try:
            if turn.owner is None or not turn.owner.killed:
                body()
        except Killed:
            pass
        except BaseException as error:
            self.failure = self.failure or error
        turn.ticket = -1
        self._hand_on(None)

    def _hand_on(self, mine: Turn | None) -> bool:
        """Pass the turn to the next thread; False if that is the caller."""
        while self._queue:
            when, _, what, ticket = heapq.heappop(self._queue)
            if isinstance(what, Turn):
                if what.ticket != ticket:
                    continue
                owner = what.owner
                if owner is not None and not owner.killed and owner.frozen_until > max(when, self.now):
                    self._push(owner.frozen_until, what, ticket)
                    continue
                self.now = max(self.now, when)
                what.ticket += 1
                self.current = what
                if what is mine:
                    return False
                what.lock.release()
                return True
            self.now = max(self.now, when)
            what()
        self.current = None
        self._over.set()
        return True


class Objects:
    """The objects in the store that all workers share."""

    def __init__(self) -> None:
        self.data: dict[str, tuple[bytes, str]] = {}
        self.entries: dict[str, Entry] = {}
        self.keys: dict[str, list[str]] = {}
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        # Sizes of objects that are larger in a real run than here.
        self.sizes: dict[str, int] = {}
        self._writes = 0

    def size(self, key: str, data: bytes) -> int:
        return self.sizes.get(key.partition("/")[0], len(data))

    def put(self, key: str, data: bytes) -> None:
        if key not in self.data:
            insort(self.keys.setdefault(_folder(key), []), key)
            self.entries[key] = Entry(key, len(data), "")
        self._writes += 1
        self.data[key] = (data, str(self._writes))

    def delete(self, key: str) -> None:
        if self.data.pop(key, None) is not None:
            keys = self.keys[_folder(key)]
            del keys[bisect_left(keys, key)]


class SlowStore:
    """One worker's access to the shared objects: the worker waits for each request."""

    url = "memory://simulation"
    name = "work"

    def __init__(self, objects: Objects, turns: Turns, chance: random.Random) -> None:
        self._objects, self._turns, self._chance = objects, turns, chance

    def _ask(self, kind: str) -> None:
        self._objects.requests[kind] += 1
        took = self._chance.lognormvariate(*_LOG_NORMAL[kind])
        self._turns.pause(self._turns.now + took)

    def get(self, key: str) -> bytes:
        return self.get_tagged(key)[0]

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        found = self.get_if_changed(key, "")
        assert found is not None
        return found

    def get_if_changed(self, key: str, tag: str) -> tuple[bytes, str] | None:
        self._ask("GET")
        if key not in self._objects.data:
            raise FileNotFoundError(key)
        found = self._objects.data[key]
        if found[1] == tag:
            return None
        self._objects.bytes[self.name] += self._objects.size(key, found[0])
        return found

    def head(self, key: str) -> Entry | None:
        self._ask("GET")
        found = self._objects.data.get(key)
        return Entry(key, len(found[0]), found[1]) if found else None

    def put(self, key: str, data: bytes) -> None:
        self._send(key, data)
        self._objects.put(key, data)

    def _send(self, key: str, data: bytes) -> None:
        self._ask("PUT")
        self._objects.bytes[self.name] += self._objects.size(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._send(key, data)
        if key not in self._objects.data:
            self._objects.put(key, data)
            return True
        self._objects.requests["refused PUT"] += 1
        try:
            return self.get(key) == data
        except FileNotFoundError:
            return False

    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool:
        self._send(key, data)
        found = self._objects.data.get(key)
        if found is None or found[1] != tag:
            self._objects.requests["refused PUT"] += 1
            self._ask("GET")
            return False
        self._objects.put(key, data)
        return True

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        keys = self._objects.keys.setdefault(_folder(prefix), [])
        while True:
            self._ask("LIST")
            first = bisect_right(keys, after)
            page = keys[first : first + PAGE]
            self._objects.bytes[self.name] += ENTRY_BYTES * len(page)
            yield from map(self._objects.entries.__getitem__, page)
            if len(page) < PAGE:
                return
            after = page[-1]

    def delete(self, key: str) -> None:
        self._ask("DELETE")
        self._objects.delete(key)

    def delete_all(self, keys: Iterable[str]) -> None:
        for first in range(0, len(every := list(keys)), PAGE):
            self._ask("DELETE")
            for key in every[first : first + PAGE]:
                self._objects.delete(key)

    def get_range(self, key: str, start: int, stop: int, tag: str = "") -> bytes:
        raise NotImplementedError

    def writer(self, key: str) -> IO[bytes]:
        raise NotImplementedError

    def reader(self, key: str) -> IO[bytes]:
        raise NotImplementedError


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


class InstantStore(SlowStore):
    """Requests beside the work: they take no time of it, and are counted under their own name."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects, self.name = objects, name

    def _ask(self, kind: str) -> None:
        self._objects.requests[self.name] += 1
