"""Watches a folder of runs: one thread decides what is read when, and nothing else touches the store.

with Watcher("runs") as watcher:
    print(watcher.runs())
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from shardmill.core.errors import ShardmillError, UsageError
from shardmill.plugins import find_verb
from shardmill.store import LocalStore, list_folders, open_store
from shardmill.watch.monitor.files import OpenPage
from shardmill.watch.monitor.reading import RunReader, RunSeen, name_key

# A run that somebody looks at is read this often, others less, complete ones still less. It is looked at for as long
# after somebody asked for it.
_NEAR_S, _FAR_S, _STILL_S, _LOOKED_S = 2.0, 15.0, 30.0, 10.0
_LIST_EVERY_S = 5.0
_TICK_S = 0.2
_READ_AT_ONCE = 8
# A map holds the runs of further points: their vectors, and the maps that show them.
# A run that was deleted is shown for this long.
_GONE_S = 300.0


class Watcher:
    """The runs of a folder, or the one run that it is, by key. It lists them and reads each again and again.

    `trouble` says why the folder itself could not be listed the last time; it is empty while all is well.
    """

    def __init__(self, place: str | os.PathLike[str], clock: Callable[[], float] = time.time) -> None:
        self._store = open_store(place)
        self.url = self._store.url
        self.trouble = ""
        self.version = 0
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="reader")
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Read all runs once, then watch them. UsageError if there is no such folder."""
        for first in (True, False):
            self._list(first=first)
            for future in [self._submit(watched) for watched in self._every() if watched.read_at is None]:
                future.result()
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def runs(self) -> list[RunSeen]:
        """All runs as they were last read, in order."""
        return [watched.reader.seen for watched in self._every()]

    def run(self, key: str) -> RunSeen | None:
        """One run as it was last read; None if there is none of this key. It is read more often for a while."""
        with self._lock:
            watched = self._watched.get(key)
        if watched is None:
            return None
        watched.looked_at = time.monotonic()
        return watched.reader.seen

    def log(self, key: str, worker: str) -> str:
        """The last lines of a worker's log. UsageError if there is none."""
        return self._reader(key).read_log(worker)

    def page(self, key: str, name: str) -> OpenPage:
        """A page that lies in a run folder. UsageError if there is none."""
        return self._reader(key).open_page(name)

    def _reader(self, key: str) -> RunReader:
        with self._lock:
            watched = self._watched.get(key)
        if watched is None:
            raise UsageError("There is no such run.")
        return watched.reader

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` from another thread after each change; what is returned ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _every(self) -> list[_Watched]:
        with self._lock:
            return [self._watched[key] for key in sorted(self._watched)]

    def _watch(self) -> None:
        listed = time.monotonic()
        while not self._ended.wait(_TICK_S):
            now = time.monotonic()
            if now - listed >= _LIST_EVERY_S:
                listed = now
                self._list()
            for watched in self._every():
                if watched.is_due(now):
                    self._submit(watched)

    def _submit(self, watched: _Watched) -> Future[None]:
        watched.busy = True
        return self._pool.submit(self._read, watched)

    def _read(self, watched: _Watched) -> None:
        try:
            watched.reader.read()
        finally:
            watched.read_at, watched.busy = time.monotonic(), False
        self._changed()

    def _changed(self) -> None:
        with self._lock:
            self.version += 1
        for listener in list(self._listeners):
            listener()

    def _list(self, *, first: bool = False) -> None:
        """Find new runs, and those that are gone."""
        try:
            found = self._find()
        except FileNotFoundError:
            if first:
                raise UsageError(
                    f"{self.url}: no such folder.", hint="Give a run folder, or the folder that the runs are in."
                ) from None
            found, self.trouble = {}, f"{self.url}: no such folder."
        except (ShardmillError, OSError) as error:
            if first:
                raise
            self.trouble = error.message if isinstance(error, ShardmillError) else f"{self.url}: {error}"
            self._changed()
            return
        else:
            self.trouble = ""
        with self._lock:
            keys = {name_key(name): name for name in found}
            for key, name in keys.items():
                if key not in self._watched or self._watched[key].gone_at is not None:
                    self._watched[key] = _Watched(RunReader(name, found[name], self._clock))
            lost = [watched for key, watched in self._watched.items() if key not in keys]
            for watched in lost:
                watched.gone_at = watched.gone_at or time.monotonic()
                if time.monotonic() - watched.gone_at >= _GONE_S:
                    del self._watched[watched.reader.seen.key]
        for watched in lost:
            watched.reader.lose()
        self._changed()

    def _find(self) -> dict[str, str]:
        """The runs that exist, by name: only folders inside this one and in its maps, and none that a link leads to."""
        one = self._store.head("plan.json") is not None
        found = {_name(self.url): self.url} if one else self._find_in(self.url)
        known = [seen for seen in self.runs() if seen.plan is not None and seen.name in found]
        for name, task in [(seen.name, seen.plan.work.task) for seen in known if seen.plan is not None]:
            for part in find_verb(task).folders:
                below = self._find_below(f"{found[name]}/{part}", f"{name}.{part}.")
                found = {**below, **found}
        return found

    def _find_in(self, folder: str, before: str = "") -> dict[str, str]:
        places = [place for place in list_folders(folder) if not self._is_link(place)]
        known = {watched.reader.seen.url for watched in self._every()}
        with_plan = self._pool.map(lambda place: place in known or _is_run(place), places)
        return {before + _name(place): place for place, is_run in zip(places, with_plan, strict=True) if is_run}

    def _find_below(self, folder: str, before: str) -> dict[str, str]:
        """The runs in a part of a map. While it cannot be listed, they are those that were there."""
        if self._is_link(folder):
            return {}
        try:
            return self._find_in(folder, before)
        except FileNotFoundError:
            return {}
        except (ShardmillError, OSError):
            return {seen.name: seen.url for seen in self.runs() if seen.name.startswith(before) and not seen.gone}

    def _is_link(self, place: str) -> bool:
        return isinstance(self._store, LocalStore) and Path(place).is_symlink()


class _Watched:
    """One run and when it was read, looked at and lost, by the monotonic clock."""

    def __init__(self, reader: RunReader) -> None:
        self.reader = reader
        self.busy = False
        self.read_at: float | None = None
        self.looked_at: float | None = None
        self.gone_at: float | None = None

    def is_due(self, now: float) -> bool:
        if self.busy or self.gone_at is not None:
            return False
        near = self.looked_at is not None and now - self.looked_at < _LOOKED_S
        status = self.reader.seen.status
        far_s = _STILL_S if status is not None and status.state == "complete" else _FAR_S
        return self.read_at is None or now - self.read_at >= (_NEAR_S if near else far_s)


def _is_run(place: str) -> bool:
    try:
        return open_store(place).head("plan.json") is not None
    except ShardmillError:
        # It is shown with what is wrong with it.
        return True


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]
