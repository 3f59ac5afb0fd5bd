"""Short transactions that are retried, on a new connection if the old one is lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from shardmill.core.errors import DatabaseError, DatabaseLost, ShardmillError
from shardmill.postgres.connect import connect, explain, limit, load

if TYPE_CHECKING:
    import psycopg

_T = TypeVar("_T")

# A batch takes milliseconds: a longer wait for a lock is a wait for something other than a batch.
_LIMITS = {"statement_timeout": "10min", "lock_timeout": "30s"}
PATIENCE_S = 120.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_KEPT = "Loaded rows are kept: once the cause is mended, the same command resumes."


class Session:
    """One connection, opened when needed and reopened when lost. Used by one thread.

    Work must be safe to run twice: after a lost connection it is unknown whether the transaction was committed.
    """

    def __init__(
        self, url: str, *, patience_s: float = PATIENCE_S, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.url = url
        self.patience_s = patience_s
        self.retries = 0
        self._stopped = stopped
        self._connection: psycopg.Connection[Any] | None = None

    def transact(self, work: Callable[[psycopg.Connection[Any]], _T], *, keep: bool = True) -> _T:
        """Do the work in one transaction, which is rolled back at the end unless `keep`.

        Errors caused by values are raised as the driver's (see `about_rows`), others as ours.
        """
        deadline, pause_s = time.monotonic() + self.patience_s, _FIRST_PAUSE_S
        while True:
            try:
                return self._try(work, keep)
            except DatabaseLost:
                if self._stopped() or time.monotonic() + pause_s > deadline:
                    raise
            self.retries += 1
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, work: Callable[[psycopg.Connection[Any]], _T], keep: bool) -> _T:
        driver = load()
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.url, patience_s=0.1)
        connection = self._connection
        try:
            with connection.transaction() as transaction:
                limit(connection, **_LIMITS)
                done = work(connection)
                if not keep:
                    raise driver.Rollback(transaction)
            return done
        except driver.Error as error:
            if about_rows(error):
                raise
            explained = self._explain(error)
            # After a deadlock the connection is still good; after other errors that is unknown.
            if not (error.sqlstate or "").startswith("40"):
                self.close()
            raise explained from error

    def _explain(self, error: Any) -> ShardmillError:
        if error.sqlstate == "53100":
            return DatabaseError(f"{self.url}: the server's disk is full.", hint=f"Free some space there. {_KEPT}")
        return explain(error, self.url, hint=_KEPT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def about_rows(error: Exception) -> bool:
    """Whether a value caused an error of the server: too long, out of range, null, or against a constraint."""
    return (getattr(error, "sqlstate", None) or "").startswith(("22", "23"))
