"""Objects of a cluster as they are now, kept by a watch on a thread of its own."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from shardmill.core.errors import EngineRefused, EngineSilent, ShardmillError
from shardmill.engines.kubernetes.api import ClusterApi, Json, ResourceGone, pause

GONE = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """An object that appeared, changed or went; of one that went, the last that was seen."""

    what: str
    object: Json


class Mirror:
    """Lists objects and then watches them. `changes` has every change in order; `trouble` is why none comes now.

    After a cut line the watch continues at the last version seen, which bookmarks keep fresh. If the server has
    forgotten that version, all objects are listed again, and those that went meanwhile are reported as gone.
    """

    def __init__(self, api: ClusterApi, path: str, **selected: str) -> None:
        self._api, self._path, self._selected = api, path, selected
        self.changes: queue.SimpleQueue[Change] = queue.SimpleQueue()
        self.trouble: ShardmillError | None = None
        self._known: dict[str, Json] = {}
        self._version = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def start(self) -> None:
        """List the objects, so that what is wrong is known at once, and watch them from then on."""
        self._list()
        self._thread.start()

    def end(self) -> None:
        """End soon; the thread may be waiting for an answer, and nobody waits for it."""
        self._ended.set()

    def _follow(self) -> None:
        faults = 0
        while not self._ended.is_set():
            try:
                if not self._version:
                    self._list()
                for what, seen in self._api.watch(self._path, self._version, **self._selected):
                    faults, self.trouble = 0, None
                    self._note(what, seen)
                    if self._ended.is_set():
                        return
                faults, self.trouble = 0, None
            except ResourceGone:
                self._version = ""
            except (EngineSilent, EngineRefused) as error:
                # Refused too: a token may be renewed while the run goes on.
                faults += 1
                self.trouble = error
                self._ended.wait(pause(faults))

    def _list(self) -> None:
        found, version = self._api.items(self._path, **self._selected)
        now = {each["metadata"]["uid"]: each for each in found}
        for uid in [uid for uid in self._known if uid not in now]:
            self.changes.put(Change(GONE, self._known.pop(uid)))
        for each in found:
            self._note("MODIFIED", each)
        self._version, self.trouble = version, None

    def _note(self, what: str, seen: Json) -> None:
        self._version = str(seen["metadata"]["resourceVersion"])
        if what == "BOOKMARK":
            return
        uid = seen["metadata"]["uid"]
        if what == GONE:
            self._known.pop(uid, None)
        else:
            self._known[uid] = seen
        self.changes.put(Change(what, seen))
