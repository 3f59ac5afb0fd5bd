"""One tree of errors. Each says what happened, where, the value seen, and the next thing to do.

ShardmillError
├── UsageError            the request cannot be carried out as it was made (exit status 2)
│   ├── SpecError         a spec that does not hold together
│   ├── SourceError       the source is missing, empty, unreadable or lacks a field
│   ├── DatabaseError     a database does not let us in, or does not take the query
│   ├── ModelError        the model cannot be found, read or used
│   ├── MissingExtra      an optional library is not installed
│   ├── TaskError         a task broke its contract
│   ├── CorruptState      a saved state or parameter file is torn, or of something else
│   ├── EngineRefused     what an engine stands on does not take workers as they were asked for
│   ├── RunExists         the output folder holds something else
│   └── StaleResume       source, model or fields changed since the run began
├── StoreError            a store did not do what was asked; often worth another try
│   ├── StoreChanged      an object is no longer the one that was looked at
│   └── StoreFull         no room left
├── DatabaseLost          a database went away; the shard is read again
├── TooManyErrors         more rows failed than the user allows
├── NotComplete           the run has shards that are not committed
│   └── Preempted         because its workers were told to stop (exit status 75)
├── EngineSilent          what an engine stands on does not answer now
├── WorkerFailed          workers died more often than they are restarted
├── HostError             a host cannot be used as it is
├── HostLost              a host does not answer; it is asked again
├── DeviceOutOfMemory     a batch does not fit; the worker answers with a smaller one
└── DeviceLost            the device is unusable in this process; the worker is started anew
"""

from __future__ import annotations

# What a worker's exit status tells its engine, and the line on which it says why.
EXIT_DONE, EXIT_FAILED, EXIT_FINAL, EXIT_TRY_AGAIN = 0, 1, 2, 75
WORKER_FAILED = "shardmill.worker failed: "


class ShardmillError(Exception):
    """Anything shardmill raises on purpose; `hint` is the next thing to do."""

    exit_status = 1
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[ShardmillError], message: str, hint: str) -> ShardmillError:
    return kind(message, hint=hint)


class UsageError(ShardmillError):
    """The request cannot be carried out as it was made."""

    exit_status = 2


class SpecError(UsageError):
    pass


class SourceError(UsageError):
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


class RunExists(UsageError):
    pass


class StaleResume(UsageError):
    pass


class StoreError(ShardmillError):
    retryable = True


class StoreChanged(StoreError):
    retryable = False


class StoreFull(StoreError):
    retryable = False


class DatabaseLost(ShardmillError):
    retryable = True


class TooManyErrors(ShardmillError):
    pass


class NotComplete(ShardmillError):
    pass


class Preempted(NotComplete):
    exit_status = EXIT_TRY_AGAIN
    retryable = True


class EngineSilent(ShardmillError):
    retryable = True


class WorkerFailed(ShardmillError):
    pass


class HostError(ShardmillError):
    pass


class HostLost(ShardmillError):
    retryable = True


class DeviceOutOfMemory(ShardmillError):
    retryable = True


class DeviceLost(ShardmillError):
    retryable = True


def too_many_errors(errors: int, rows: int, allowed: str, last: str = "") -> TooManyErrors:
    share = 100 * errors / max(1, rows)
    example = f"; the last: {last}" if last else ""
    return TooManyErrors(
        f"{errors:,} of {rows:,} rows could not be done ({share:.1f}%), over --max-errors {allowed}{example}.",
        hint="See `shardmill show RUN --errors`; nothing is lost: a higher --max-errors goes on from here.",
    )


def missing_extra(library: str, extra: str) -> MissingExtra:
    return MissingExtra(f"{library} is not installed.", hint=f"Install it with: pip install 'shardmill[{extra}]'")


def nearest(word: str, choices: list[str]) -> str:
    """A sentence part that lists the choices and names the nearest one."""
    import difflib

    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is: {', '.join(choices[:20])}{', …' if len(choices) > 20 else ''}.{guess}"
