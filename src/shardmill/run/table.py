"""A PostgreSQL table as a result: search it, verify it. It is to a load what `Run` is to a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from shardmill.core import permission
from shardmill.core.console import Bar
from shardmill.core.devices import Device
from shardmill.core.errors import DatabaseError, ShardmillError, UsageError
from shardmill.core.functions import changed_parts
from shardmill.models.golden import lowest_of_many
from shardmill.plan import NEW_NUMERICS, NUMERICS, new_numerics
from shardmill.postgres import checking, reading
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.places import find_table, is_table
from shardmill.postgres.search import Mode, TableHit, TableSearch, no_vectors, search, show
from shardmill.postgres.tables import Registered, registered
from shardmill.postgres.target import quoted
from shardmill.results.drawn import sample_size
from shardmill.results.report import Check, Expected, Report
from shardmill.results.search import refuse_empty
from shardmill.sinks.digests import digest_items, make_salt
from shardmill.tasks import open_here, open_task
from shardmill.tasks.base import Task

if TYPE_CHECKING:
    import psycopg

    from shardmill.run import Run

_UNIT_SLACK = 5e-3
_RECALL_SAMPLE = 100


def open_result(place: str, *, allow_code: bool = False) -> Run | Table:
    """Open the result at `place`: a table if it is a URL of one, else a run by its folder."""
    from shardmill.run import Run

    kind = Table if is_table(place) else Run
    return kind(place, allow_code=allow_code)


def choose_mode(hybrid: bool, words: bool) -> Mode:
    if hybrid and words:
        raise UsageError("--hybrid already includes --words.", hint="Leave out one of them.")
    return "hybrid" if hybrid else "text" if words else "vector"


def check_options(place: str, mode: Mode, where: str, sql: bool) -> None:
    """Refuse options for a run that only a database supports."""
    if not is_table(place) and (mode != "vector" or where or sql):
        raise UsageError(
            "--hybrid, --words, --where and --sql need a table.",
            hint="Give the URL of a table: postgresql://HOST/DATABASE/TABLE",
        )


class Table:
    """A table that shardmill created or loaded into."""

    def __init__(self, place: str, *, allow_code: bool = False) -> None:
        self.place = find_table(place)
        with self._open() as connection:
            found = registered(connection, self.place.schema, self.place.table)
        if found is None:
            raise DatabaseError(
                f"{self} was not loaded by shardmill.",
                hint="Check database, schema and table; `SELECT * FROM shardmill.tables` lists loaded tables.",
            )
        self.registered: Registered = found
        self.target = found.target
        if allow_code:
            permission.allow(permission.code_among(found.task, (), found.fingerprint))

    def __str__(self) -> str:
        return f"{self.place.url}: {quoted(self.place.schema)}.{quoted(self.place.table)}"

    def _open(self) -> Any:
        return reading(self.place.url)

    def search_many(
        self, texts: Sequence[str], k: int = 5, *, mode: Mode = "vector", where: str = ""
    ) -> list[list[TableHit]]:
        """Run several searches, loading the model once."""
        searches = list(self._searches(texts, k, mode, where))
        with self._open() as connection:
            return [search(connection, self.target, wanted) for wanted in searches]

    def show_sql(self, texts: Sequence[str], k: int = 5, *, mode: Mode = "vector", where: str = "") -> list[str]:
        """The statements of these searches, for psql."""
        searches = list(self._searches(texts, k, mode, where))
        with self._open() as connection:
            return [show(connection, self.target, wanted) for wanted in searches]

    def _searches(self, texts: Sequence[str], k: int, mode: Mode, where: str) -> Iterator[TableSearch]:
        refuse_empty(texts)
        if mode != "text" and not self.target.vector:
            raise no_vectors(self.target)
        if mode == "text":
            yield from (TableSearch(mode, k, None, text, where) for text in texts)
            return
        task, _ = self._open_task(precise=False)
        embed_query = task.embed_query
        if embed_query is None:
            raise UsageError(f"The result of the task {self.registered.task!r} cannot be searched.")
        yield from (TableSearch(mode, k, embed_query(text), text, where) for text in texts)

    @property
    def _task(self) -> tuple[str, dict[str, Any]]:
        return self.registered.task, self.registered.params

    def _open_task(self, *, precise: bool) -> tuple[Task, Device]:
        """Open the model that made the vectors. A different one is refused: its vectors are not comparable."""
        task = open_task(*self._task)
        seen = task.fingerprint()
        if (changed := _differing(seen, self.registered.fingerprint)) != NUMERICS and changed:
            raise UsageError(
                f"{self} was made by {self.registered.model}; the model of that name here is different ({changed}).",
                hint="Use the machine or the model version that loaded it, or load again.",
            )
        return task, open_here(task, precise=precise)

    def verify(
        self, *, sample: int | str = 64, rows: int | None = None, dims: int | None = None, quiet: bool = True
    ) -> Report:
        """Check what the table holds; `sample` rows are computed again in float32: a number, a share such as "1%"."""
        began = time.monotonic()
        sample_size(sample, 0)
        permission.check(permission.code_among(self.registered.task, (), self.registered.fingerprint))
        expected = Expected(rows, dims)
        with self._open() as connection, Bar("verifying", quiet=quiet) as bar:
            bar.at(0.0, "columns")
            checks = [Check("table", *checking.fits(connection, self.target))]
            checks += self._check_numerics()
            count = 0
            if checks[0].ok:
                bar.at(0.1, "rows")
                seen = checking.look(connection, self.target)
                count = seen.rows
                checks += self._check_rows(seen)
                checks += expected.check(count, {self.target.dims} if self.target.vector else ())
                checks.append(Check("ledger", *checking.loaded(connection, self.target, count)))
                checks += self._check_recall(connection, bar)
                if asked := sample_size(sample, count):
                    bar.at(0.7, f"computing {asked:,} rows again")
                    checks.append(self._check_sample(connection, asked))
            bar.at(1.0)
        return Report(
            run=str(self),
            plan="",
            verified=all(check.ok for check in checks),
            rows=count,
            errors=0,
            checks=tuple(checks),
            seconds=round(time.monotonic() - began, 2),
        )

    def _check_numerics(self) -> Iterator[Check]:
        with suppress(ShardmillError, OSError):
            if new_numerics(self.registered.fingerprint, open_task(*self._task).fingerprint()):
                yield Check(NUMERICS, False, f"{NEW_NUMERICS}: load it again into another table")

    def _check_rows(self, seen: checking.Seen) -> Iterator[Check]:
        task = open_task(*self._task)
        what = "vector" if self.target.vector else "result"
        without = f"{seen.rows - seen.results:,} without a {what}, {seen.rows - seen.digests:,} without a digest"
        whole = seen.digests == seen.rows and (seen.results == seen.rows or task.null_rows_are_answers)
        yield Check("rows", whole, f"{seen.rows:,} rows, {without}")
        if not self.target.vector:
            return
        yield Check("finite", not seen.not_finite, f"{seen.not_finite:,} vectors with NaN or infinity")
        if seen.results:
            held = 1 - _UNIT_SLACK <= seen.least_norm <= seen.most_norm <= 1 + _UNIT_SLACK
            ok = held if task.unit_norm else seen.least_norm > 0
            yield Check("norms", ok, f"{seen.least_norm:.4f} to {seen.most_norm:.4f}")

    def _check_recall(self, connection: psycopg.Connection[Any], bar: Bar) -> Iterator[Check]:
        if self.target.vector:
            bar.at(0.4, "searching with and without the index")
            found = checking.recall(connection, self.target, _RECALL_SAMPLE)
            yield Check("recall", *(found or (True, "no index on the vectors: every search is exact")))

    def _check_sample(self, connection: psycopg.Connection[Any], sample: int) -> Check:
        """Make again the rows whose text columns match the digest; what others were made from is not stored."""
        target = self.target
        if not target.text:
            return Check("sample", True, "none: the table has no text")
        results = [f"{quoted(target.vector)}::text"] if target.vector else [quoted(name) for name in target.made]
        columns = [quoted(DIGEST), *map(quoted, target.text), *results]
        rows = checking.sample_rows(connection, target, columns, sample)
        salt = b"" if target.vector else make_salt(*self._task, self.registered.fingerprint)
        stop = 1 + len(target.text)
        known = [(row[stop:], text) for row in rows if (text := _text_of(row[1:stop], row[0], salt)) is not None]
        if not known:
            return Check("sample", True, f"none: {len(rows)} rows were made from another text than their text columns")
        others = f"; {len(rows) - len(known)} were made from another text" if len(known) < len(rows) else ""
        try:
            compare = self._compare_vectors if target.vector else self._compare_values
            ok, seen = compare(known)
        except ShardmillError as error:
            return Check("sample", False, error.message)
        return Check("sample", ok, seen + others)

    def _compare_vectors(self, known: Sequence[tuple[Sequence[Any], str]]) -> tuple[bool, str]:
        worst = 1.0
        task, device = self._open_task(precise=True)
        for (stored,), text in known:
            made = task.run(task.prepare([text]).inputs).rows.column(0)[0].as_py()
            worst = min(worst, _cosine(np.fromstring(stored.strip("[]"), sep=","), np.asarray(made, np.float64)))
        seen = f"{len(known)} rows computed again in float32 on {device.name}, worst cosine {worst:.6f}"
        return worst >= lowest_of_many(""), seen

    def _compare_values(self, known: Sequence[tuple[Sequence[Any], str]]) -> tuple[bool, str]:
        """A table does not say in which precision its rows were made; the task says whether some may differ."""
        if (agreement := open_task(*self._task).agreement("")) == "none":
            return True, "none: the task's rows differ each time they are made"
        task, device = self._open_task(precise=True)
        differ = 0
        for stored, text in known:
            made = task.run(task.prepare([text]).inputs).rows
            differ += not all(map(_agree, stored, (made.column(name)[0].as_py() for name in self.target.made)))
        seen = f"{len(known) - differ} rows computed again in float32 on {device.name} are equal, {differ} differ"
        return not differ or (agreement == "mostly" and 2 * differ <= len(known)), seen


def _text_of(values: Sequence[Any], digest: bytes | None, salt: bytes) -> str | None:
    """The text that `--text a,b` makes from these columns, if the row was made from it alone."""
    words = [" ".join(map(str, v)) if isinstance(v, list) else "" if v is None else str(v) for v in values]
    texts = ["\n".join(words), *words]
    made = digest_items(texts, None, salt).to_pylist()
    return next((text for text, each in zip(texts, made, strict=True) if each == digest), None)


def _agree(stored: Any, made: Any) -> bool:
    if isinstance(stored, float) and isinstance(made, float):
        return math.isclose(stored, made, rel_tol=1e-5)
    return bool(stored == made)


def _cosine(a: Any, b: Any) -> float:
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / scale if scale else 0.0


def _differing(here: dict[str, Any], there: dict[str, Any]) -> str:
    return ", ".join(changed_parts(there, here))
