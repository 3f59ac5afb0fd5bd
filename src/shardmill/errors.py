"""One tree of errors. Each says what happened, where, the value seen, and the next thing to do.

ShardmillError
├── UsageError            the request cannot be carried out as it was made (exit status 2)
│   ├── SpecError         the spec is invalid
│   ├── SourceError       the source is missing, empty, unreadable or lacks a field
│   ├── DatabaseError     a database denies access or rejects the query
│   ├── ModelError        the model cannot be found, read or used
│   ├── MissingExtra      an optional library is not installed
│   ├── TaskError         a task broke its contract
│   ├── CorruptState      a saved state or parameter file is damaged, or belongs to something else
│   ├── EngineRefused     the cluster behind an engine rejects the workers as requested
│   ├── RunExists         the output folder holds something else
│   └── StaleResume       source, model or fields changed since the run began
├── StoreError            a request to a store failed; a retry often helps
│   ├── StoreChanged      an object has changed since it was first read
│   └── StoreFull         no space left
├── DatabaseLost          the connection to a database was lost; the shard is retried
├── TooManyErrors         more rows failed than the user allows
├── NotComplete           the run has shards that are not committed
│   └── Preempted         its workers were told to stop (exit status 75)
├── EngineSilent          the cluster behind an engine does not answer
├── WorkerFailed          workers died too often
├── HostError             a host cannot be used as it is
├── HostLost              a host does not answer; it is retried
├── DeviceOutOfMemory     a batch does not fit; the worker uses smaller ones
└── DeviceLost            the device is unusable in this process; the worker is restarted
"""

from __future__ import annotations

# The exit statuses of a worker, and the prefix of the line with its error.
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
        f"{errors:,} of {rows:,} rows failed ({share:.1f}%), over --max-errors {allowed}{example}.",
        hint="See `shardmill show RUN --errors`. Nothing is lost: with a higher --max-errors the run resumes.",
    )


def missing_extra(library: str, extra: str) -> MissingExtra:
    return MissingExtra(f"{library} is not installed.", hint=f"Install it with: pip install 'shardmill[{extra}]'")


def nearest(word: str, choices: list[str]) -> str:
    """A hint that lists the choices and suggests the nearest one."""
    import difflib

    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"Available: {', '.join(choices[:20])}{', …' if len(choices) > 20 else ''}.{guess}"
