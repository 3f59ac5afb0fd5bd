"""One tree of errors. Each says what happened, where, the value seen, and the next thing to do.

ShardmillError
├── UsageError            the request cannot be carried out as it was made (exit status 2)
│   ├── SpecError         the spec is invalid
│   ├── SourceError       the source is missing, empty, unreadable or lacks a field
│   │   └── GroupTooLarge  the rows of a group do not fit into one item
│   ├── DatabaseError     a database denies access or rejects the query
│   ├── ModelError        the model cannot be found, read or used
│   ├── MissingExtra      an optional library is not installed
│   ├── TaskError         a task broke its contract
│   ├── CorruptState      a saved state or parameter file is damaged, or belongs to something else
│   ├── EngineRefused     the cluster behind an engine rejects the workers as requested
│   ├── EndpointRefused   the server of a model refuses every request
│   ├── RunExists         the output folder holds something else
│   └── StaleResume       source, model or fields changed since the run began
├── StoreError            a request to a store failed; a retry often helps
│   ├── StoreChanged      an object has changed since it was first read
│   └── StoreFull         no space left
├── HubBusy               the model hub does not answer now; a retry helps
├── EndpointSilent        the server of a model does not answer; a retry helps
├── AlertNotSent          a target of alerts did not take a message; it is sent again
├── DatabaseLost          the connection to a database was lost; the shard is retried
├── TooManyErrors         more rows failed than the user allows
├── NotComplete           the run has shards that are not committed
│   └── Preempted         its workers were told to stop (exit status 75)
├── EditionPruned         the edition was deleted while it was read; begin again (exit status 75)
├── EngineSilent          the cluster behind an engine does not answer
├── WorkerFailed          workers died too often
├── StepFailed            all shards are committed, but a step after them failed
├── HostError             a host cannot be used as it is
├── HostLost              a host does not answer; it is retried
├── DeviceOutOfMemory     a batch does not fit; the worker uses smaller ones
└── DeviceLost            the device is unusable in this process; the worker is restarted
"""

from __future__ import annotations

import errno
import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Self

from shardmill.core.dialect import shell_command, speak

# Exit statuses besides those of `Cure`, and the prefix of the line with a worker's error.
EXIT_DONE, EXIT_FAILED, EXIT_TRY_AGAIN = 0, 1, 75
WORKER_FAILED = "shardmill.worker failed: "


class Cure(IntEnum):
    """What may cure a fault. The value is the exit status of a worker that met it."""

    HERE = 74  # try again here
    ELSEWHERE = 69  # try again on another machine
    FINAL = 2


class ShardmillError(Exception):
    """Anything shardmill raises on purpose; `hint` is the next thing to do."""

    # Set below, in one table; one error may differ from its class.
    cure = Cure.FINAL
    # Whether the run can go on as it was planned, once the hint was followed.
    resumes = True
    # Where a task failed before it had done a row, if it did: the same for every worker if the task cannot work.
    place = ""
    _status: int | None = None

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return speak(f"{self.message}\n{self.hint}" if self.hint else self.message)

    @property
    def retryable(self) -> bool:
        return self.cure is not Cure.FINAL

    @property
    def exit_status(self) -> int:
        """The exit status of the command line."""
        if self._status is not None:
            return self._status
        return int(self.cure) if self.retryable else EXIT_FAILED

    def with_cure_as_status(self, *, even_final: bool = False) -> ShardmillError:
        """This error, with the exit status that a worker has for it; `even_final`, also if it is final."""
        if self.retryable or even_final:
            self._status = int(self.cure)
        return self

    def without_resume(self) -> Self:
        """This error, after which the run cannot go on as it was planned."""
        self.resumes = False
        return self

    def as_last_words(self) -> str:
        """The line by which a worker tells whoever placed it why it ended."""
        said = {"message": self.message, "hint": self.hint, "cure": self.cure.name, "resumes": self.resumes}
        said |= {"place": self.place} if self.place else {}
        return WORKER_FAILED + json.dumps(said)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.cure, self.resumes))


def _rebuild(kind: type[ShardmillError], message: str, hint: str, cure: Cure, resumes: bool) -> ShardmillError:
    error = kind(message, hint=hint)
    error.cure, error.resumes = cure, resumes
    return error


class UsageError(ShardmillError):
    """The request cannot be carried out as it was made."""

    _status = 2


class SpecError(UsageError):
    pass


class SourceError(UsageError):
    pass


class GroupTooLarge(SourceError):
    pass


class DatabaseError(UsageError):
    pass


class ModelError(UsageError):
    pass


class MissingExtra(UsageError):
    pass


class TaskError(UsageError):
    pass


class CorruptState(UsageError):
    pass


class EngineRefused(UsageError):
    pass


class EndpointRefused(UsageError):
    pass


class RunExists(UsageError):
    pass


class StaleResume(UsageError):
    pass


class StoreError(ShardmillError):
    pass


class StoreChanged(StoreError):
    pass


class StoreFull(StoreError):
    pass


class HubBusy(ShardmillError):
    pass


class EndpointSilent(ShardmillError):
    pass


class AlertNotSent(ShardmillError):
    pass


class DatabaseLost(ShardmillError):
    pass


class TooManyErrors(ShardmillError):
    pass


class NotComplete(ShardmillError):
    pass


class Preempted(NotComplete):
    _status = EXIT_TRY_AGAIN


class EditionPruned(ShardmillError):
    _status = EXIT_TRY_AGAIN


class EngineSilent(ShardmillError):
    pass


class WorkerFailed(ShardmillError):
    pass


class StepFailed(ShardmillError):
    pass


class HostError(ShardmillError):
    pass


class HostLost(ShardmillError):
    pass


class DeviceOutOfMemory(ShardmillError):
    pass


class DeviceLost(ShardmillError):
    pass


# Faults by cause, sorted here and nowhere else. A class that is not named is final.
_CURES: dict[type[ShardmillError], Cure] = {
    StoreError: Cure.HERE,
    StoreChanged: Cure.FINAL,
    StoreFull: Cure.FINAL,
    HubBusy: Cure.HERE,
    EndpointSilent: Cure.HERE,
    AlertNotSent: Cure.HERE,
    DatabaseLost: Cure.HERE,
    Preempted: Cure.HERE,
    EngineSilent: Cure.HERE,
    HostLost: Cure.HERE,
    DeviceOutOfMemory: Cure.HERE,
    DeviceLost: Cure.HERE,
    ModelError: Cure.ELSEWHERE,
    MissingExtra: Cure.ELSEWHERE,
}
for _kind, _cure in _CURES.items():
    _kind.cure = _cure
del _kind, _cure

# What was asked for, or what it was asked of, must change first; where a resume helps all the same, the hint says so.
UsageError.resumes = StoreChanged.resumes = TooManyErrors.resumes = False
# These are about the machines, the servers and the database, which the plan does not hold.
DatabaseError.resumes = MissingExtra.resumes = EngineRefused.resumes = EndpointRefused.resumes = True

_PASSING_ERRNOS = {
    getattr(errno, name)
    for name in (
        *("ESTALE", "EIO", "ETIMEDOUT", "EAGAIN", "EINTR", "EBUSY", "ENFILE", "EMFILE", "EREMOTEIO", "ENOTCONN"),
        *("ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH"),
    )
    if hasattr(errno, name)
}
_PASSING_ANSWERS = {408, 425, 429}


def is_passing(error: BaseException) -> bool:
    """Whether an error of the system or of a server passes by itself, by its errno or HTTP status or its causes'."""
    seen: BaseException | None = error
    while seen is not None:
        status: Any = getattr(getattr(seen, "response", None), "status_code", None)
        if isinstance(status, int) and (status in _PASSING_ANSWERS or status >= 500):
            return True
        if "Timeout" in type(seen).__name__ or (isinstance(seen, OSError) and seen.errno in _PASSING_ERRNOS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def free_frames(error: BaseException) -> None:
    """Free what the failed calls hold: their frames live as long as the error, or longer in cycles with it."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


def too_many_errors(errors: int, rows: int, allowed: str, last: str = "", run: str = "RUN") -> TooManyErrors:
    share = 100 * errors / max(1, rows)
    example = f"; the last: {last.rstrip('.')}" if last else ""
    see = shell_command("show", run, "--errors")
    hint = f"See `{see}`. Nothing is lost: with a higher --max-errors the same command goes on."
    if errors >= rows:
        hint = "Every row so far has failed. Mend the cause, then start over with --fresh."
    return TooManyErrors(
        f"{errors:,} of {rows:,} rows failed ({share:.1f}%), over --max-errors {allowed}{example}.", hint=hint
    )


def nearest(word: str, choices: list[str]) -> str:
    """A hint that lists the choices and suggests the nearest one."""
    import difflib

    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"Available: {', '.join(choices[:20])}{', …' if len(choices) > 20 else ''}.{guess}"


class Terminated(SystemExit):
    """A signal ends this process; code of users did not."""


@contextmanager
def no_exit() -> Iterator[None]:
    """Make an ordinary error of a sys.exit in code of users: a process that ends with status 0 seems to be done."""
    try:
        yield
    except Terminated:
        raise
    except SystemExit as error:
        said = "" if error.code is None else repr(error.code)
        raise RuntimeError(f"it ends the process: sys.exit({said})") from error
