"""The wanted number of workers of a run: one small file, decided by whichever worker has the duty, read by engines.

Design: docs/design/deadlines.md
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.core.records import read_object
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode
from shardmill.plan.sizing.staff import Staff

KEY = "staff.json"
_DAMAGED = "Delete it: the number is decided again."
# Of the decisions, the last are kept.
_MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class StaffLog:
    """What was decided: `now` holds, `past` has the wanted number, the time and the reason of each decision.

    `by` has the duty to decide `until` then; another worker takes it if it is not renewed.
    """

    generation: str
    by: str = ""
    until: float = 0.0
    now: Staff | None = None
    past: tuple[dict[str, Any], ...] = ()

    def decided(self, staff: Staff) -> StaffLog:
        """The log with another decision in it."""
        if staff == self.now:
            return self
        said = {"at": staff.at, "wanted": staff.wanted, "reason": staff.reason, "by": self.by}
        return replace(self, now=staff, past=(*self.past, said)[-_MOST_KEPT:])

    def encode(self) -> bytes:
        return encode({**asdict(self), "now": None if self.now is None else asdict(self.now)})

    @classmethod
    def decode(cls, data: bytes) -> StaffLog:
        said = read_object(data, KEY, _DAMAGED)
        try:
            now = said["now"]
            staff = None if now is None else Staff(**{**now, "by_kind": dict(now["by_kind"])})
            if staff is not None and not isinstance(staff.wanted, int):
                raise TypeError("wanted")
            past = tuple(dict(each) for each in said["past"])
            return cls(str(said["generation"]), str(said["by"]), float(said["until"]), staff, past)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptState(f"{KEY} is damaged: {type(error).__name__}.", hint=_DAMAGED) from error


class StaffRecord:
    """Keeps the wanted number of workers, changed only by compare-and-swap."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock
        self._tag = ""
        self.seen: StaffLog | None = None

    def reset(self) -> None:
        """Forget what was seen."""
        self._tag, self.seen = "", None

    def look(self) -> StaffLog | None:
        """What was decided, in one request that is answered in full only after a change; None if nothing was."""
        try:
            found = self._store.get_if_changed(KEY, self._tag)
        except FileNotFoundError:
            self.reset()
            return None
        if found is not None:
            self.seen, self._tag = self._decode(found[0]), found[1]
        return self.seen

    @property
    def is_ending(self) -> bool:
        """Whether no shard is to be begun any more, as it was last seen here: no request."""
        return self.seen is not None and self.seen.now is not None and self.seen.now.ends

    def decide(self, worker: str, lease_s: float, decide: Callable[[Staff | None], Staff]) -> StaffLog | None:
        """Take the duty and decide; None if another has it, or was faster."""
        log, tag = self._read()
        if log is not None and log.by != worker and log.until > self._clock():
            return None
        mine = replace(log or StaffLog(self._folder.known_generation()), by=worker)
        if log is None or log.by != worker:
            # Others leave it alone while this one reads what it needs.
            taken = self._change(replace(mine, until=self._clock() + lease_s), tag)
            if taken is None:
                return None
            tag = taken
        new = replace(mine.decided(decide(mine.now)), until=self._clock() + lease_s)
        return new if self._change(new, tag) is not None else None

    def begin_again(self) -> None:
        """The run is resumed: what was decided is past, and another number may be wanted."""
        log, tag = self._read()
        if log is not None and log.now is not None:
            self._change(replace(log, by="", until=0.0, now=None), tag)
        self.reset()

    def _read(self) -> tuple[StaffLog | None, str]:
        try:
            data, tag = self._store.get_tagged(KEY)
        except FileNotFoundError:
            return None, ""
        return self._decode(data), tag

    def _decode(self, data: bytes) -> StaffLog | None:
        """The log of this generation; no run rests on one that is damaged."""
        with contextlib.suppress(CorruptState):
            log = StaffLog.decode(data)
            return log if log.generation == self._folder.known_generation() else None
        return None

    def _change(self, new: StaffLog, tag: str) -> str | None:
        """Write the log unless another has done so since; the tag of what is stored then."""
        data = new.encode()
        done = self._store.replace_if_same(KEY, data, tag) if tag else self._store.put_if_absent(KEY, data)
        if not done:
            return None
        stored, tag = self._store.get_tagged(KEY)
        return tag if stored == data else None
