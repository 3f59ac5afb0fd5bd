"""Whether a run is wanted: one small file, changed only by compare-and-swap, that the workers of any engine obey."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from shardmill.core.dialect import shell_command
from shardmill.core.errors import CorruptState, Preempted, ShardmillError, WorkerFailed
from shardmill.core.records import read_object
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode

_KEY = "state.json"
_DAMAGED = "Delete it: the run is then wanted, and can be resumed."
_START_OVER = "Mend the cause, then start over with --fresh."
# Of a run that was resumed more often, the last are kept.
_MOST_PLACED = 64
WANTED, STOPPED, FAILED, DONE = "wanted", "stopped", "failed", "done"


@dataclass(frozen=True, slots=True)
class RunState:
    """What was last decided about a run, by whom and when.

    A failed run has its cause, the next thing to do, and whether it `resumes` after that. One that stopped itself has
    the first two. `placed` has, for each time that workers were placed, when a command was given to do so and when it
    began to.
    """

    generation: str
    state: str = WANTED
    by: str = ""
    at: float = 0.0
    cause: str = ""
    hint: str = ""
    resumes: bool = True
    placed: tuple[tuple[float, float], ...] = ()

    def encode(self) -> bytes:
        final = {} if self.resumes else {"resumes": False}
        cause = {"message": self.cause, "hint": self.hint, **final} if self.cause else None
        said = {"generation": self.generation, "state": self.state, "by": self.by, "at": self.at, "cause": cause}
        return encode({**said, "placed": self.placed} if self.placed else said)

    @classmethod
    def decode(cls, data: bytes) -> RunState:
        said = read_object(data, _KEY, _DAMAGED)
        cause = said.get("cause") or {}
        try:
            generation, state, by = (str(said[name]) for name in ("generation", "state", "by"))
            message, hint = (str(cause.get(name, "")) for name in ("message", "hint"))
            resumes = cause.get("resumes") is not False
            placed = tuple((float(asked), float(at)) for asked, at in said.get("placed", ()))
            return cls(generation, state, by, float(said["at"]), message, hint, resumes, placed)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptState(f"{_KEY} is damaged: {type(error).__name__}.", hint=_DAMAGED) from error


def started_over(url: str) -> Preempted:
    return Preempted("Another process has started the run over.", hint=f"See: {shell_command('status', url)}")


class StateRecord:
    """Keeps the state of the run. A run without a record, as version 0.1.0 left it, is wanted."""

    def __init__(self, folder: Folder, clock: Callable[[], float]) -> None:
        self._folder, self._store, self._clock = folder, folder.store, clock
        self._tag = ""
        self._seen: RunState | None = None

    def reset(self) -> None:
        """Forget what was seen."""
        self._tag, self._seen = "", None

    def look(self) -> RunState:
        """The state now, in one request that is answered in full only after a change.

        If the record is gone that was here before, the run is being started over: its generation is then "".
        """
        try:
            found = self._store.get_if_changed(_KEY, self._tag)
        except FileNotFoundError:
            self._tag = ""
            if self._seen is None:
                return RunState(self._folder.known_generation())
            self._seen = RunState("")
        else:
            if found is not None:
                self._seen, self._tag = RunState.decode(found[0]), found[1]
        assert self._seen is not None
        return self._seen

    def is_wanted(self) -> bool:
        """Whether the run is still the one whose plan was read here, and was neither stopped nor failed."""
        return self.refusal() is None

    def refusal(self) -> ShardmillError | None:
        """Why no worker may work on the run, as an error to raise; None while it is wanted. One request, as `look`."""
        now, resume = self.look(), f"Resume it with: {shell_command('resume', self._store.url)}"
        if now.generation != self._folder.known_generation():
            return started_over(self._store.url)
        if now.state == STOPPED and now.cause:
            # Nobody needs to start others before a person has decided.
            return WorkerFailed(f"The run was stopped by {now.by}: {now.cause}.", hint=now.hint or resume)
        if now.state == STOPPED:
            return Preempted(f"The run was stopped by {now.by}.", hint=resume)
        if now.state == FAILED and not now.resumes:
            return WorkerFailed(now.cause, hint=now.hint or _START_OVER).without_resume()
        if now.state == FAILED:
            return WorkerFailed(now.cause, hint=f"{now.hint} {resume}".strip())
        return None

    def want(self, by: str, asked_at: float | None = None) -> RunState:
        """Shards are left and workers are to do them, whatever was decided before.

        `asked_at` is when the command was given that places them now.
        """
        return self._change(WANTED, by, unless=(), asked_at=asked_at)

    def stop(self, by: str, cause: str = "", hint: str = "") -> RunState:
        """Tell all workers of the run to stop, on every host. One that stops by itself has its cause."""
        return self._change(STOPPED, by, unless=(STOPPED, FAILED, DONE), cause=cause, hint=hint)

    def fail(self, by: str, cause: str, hint: str = "", *, resumes: bool = True) -> RunState:
        """The run cannot go on as it is: its workers stop, and nobody needs to start others."""
        said: dict[str, Any] = {"cause": cause, "hint": hint, "resumes": resumes}
        return self._change(FAILED, by, unless=(STOPPED, FAILED, DONE), **said)

    def finish(self, by: str) -> RunState:
        """All shards are committed."""
        return self._change(DONE, by, unless=(DONE,))

    def _change(
        self, state: str, by: str, *, unless: Collection[str], asked_at: float | None = None, **said: Any
    ) -> RunState:
        """Change the state unless it is one of these, and return the state that holds then.

        The record of another generation is changed only if that generation is over: its plan is no longer here.
        """
        generation = self._folder.known_generation()
        while True:
            now, tag = self._read()
            placed: tuple[tuple[float, float], ...] = ()
            if now is not None and now.generation == generation:
                if now.state in unless:
                    return now
                placed = now.placed
            elif not self._is_planned(generation):
                return now or RunState("")
            at = self._clock()
            if asked_at is not None:
                placed = (*placed, (min(asked_at, at), at))[-_MOST_PLACED:]
            new = RunState(generation, state, by, at, placed=placed, **said)
            if now is None:
                changed = self._store.put_if_absent(_KEY, new.encode())
            else:
                changed = self._store.replace_if_same(_KEY, new.encode(), tag)
            if changed:
                return new

    def _is_planned(self, generation: str) -> bool:
        plan = self._folder.read_plan()
        return plan is not None and plan.generation == generation

    def _read(self) -> tuple[RunState | None, str]:
        try:
            data, tag = self._store.get_tagged(_KEY)
        except FileNotFoundError:
            return None, ""
        return RunState.decode(data), tag
