"""A PostgreSQL table as a result: search it, verify it. It is to a load what `Run` is to a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from shardmill.core import permission
from shardmill.core.console import Bar
from shardmill.core.devices import Device
from shardmill.core.errors import DatabaseError, ShardmillError, UsageError
from shardmill.core.functions import changed_parts
from shardmill.core.fusion import Mode
from shardmill.models.golden import lowest_of_many, lowest_rounded
from shardmill.plan import NEW_NUMERICS, NUMERICS, new_numerics
from shardmill.plan.salt import make_salt
from shardmill.postgres import checking, reading
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.places import find_table, is_table
from shardmill.postgres.search import TableHit, TableSearch, no_vectors, search, show
from shardmill.postgres.tables import Registered, registered
from shardmill.postgres.target import quoted
from shardmill.results.drawn import power, sample_size
from shardmill.results.reference import name_reference
from shardmill.results.report import Check, Expected, Report
from shardmill.results.search import check_searchable, embed_queries, refuse_empty
from shardmill.sinks.digests import digest_items
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


def refuse_sql(place: str) -> None:
    """Refuse to show the SQL of a search that is not made by SQL."""
    if not is_table(place):
        raise UsageError(
            "--sql needs a table: a run is searched without SQL.",
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
        check_searchable(*self._task)
        self._check_model(open_task(*self._task))
        for text, vector in zip(texts, embed_queries(*self._task, texts, precise=False), strict=True):
            yield TableSearch(mode, k, vector, text, where)

    @property
    def _task(self) -> tuple[str, dict[str, Any]]:
        return self.registered.task, self.registered.params

    def _open_reference(self) -> tuple[Task, Device]:
        """Open the model that made the vectors, to compare it with them."""
        task = open_task(*self._task)
        self._check_model(task)
        return task, open_here(task, precise=True, reference=True)

    def _check_model(self, task: Task) -> None:
        """Refuse another model than the one that made the vectors: its own are not comparable."""
        seen = task.fingerprint()
        if (changed := _differing(seen, self.registered.fingerprint)) != NUMERICS and changed:
            raise UsageError(
                f"{self} was made by {self.registered.model}; the model of that name here is different ({changed}).",
                hint="Use the machine or the model version that loaded it, or load again.",
            )

    def verify(
        self, *, sample: int | str = 64, rows: int | None = None, dims: int | None = None, quiet: bool = True
    ) -> Report:
        """Check what the table holds; `sample` rows are computed again in float32: a number, "1%" or "all"."""
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
                if asked := sample_size(sample, seen.results):
                    bar.at(0.7, f"computing {asked:,} rows again")
                    checks.append(self._check_sample(connection, asked, seen.results))
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

    def _check_sample(self, connection: psycopg.Connection[Any], sample: int, total: int) -> Check:
        """Make again the rows whose text columns match the digest; what others were made from is not stored."""
        target = self.target
        if not target.text:
            return Check("sample", True, "none: the table has no text")
        if not target.vector and open_task(*self._task).agreement("") == "none":
            return Check("sample", True, "none: the task's rows differ each time they are made")
        try:
            task, device = self._open_reference()
            compared = self._compare(checking.sample_rows(connection, target, self._sampled, sample), task)
        except ShardmillError as error:
            return Check("sample", False, error.message)
        if not compared.rows:
            made = f"none: {compared.others:,} rows were made from another text than their text columns"
            return Check("sample", True, made)
        return compared.judge(task, total, name_reference(task, device), vectors=bool(target.vector))

    @property
    def _sampled(self) -> list[str]:
        """The columns of a sample in SQL: the digest, the text, and the result."""
        target = self.target
        results = [f"{quoted(target.vector)}::text"] if target.vector else [quoted(name) for name in target.made]
        return [quoted(DIGEST), *map(quoted, target.text), *results]

    def _compare(self, rows: Iterable[Sequence[Any]], task: Task) -> _Compared:
        target, compared = self.target, _Compared()
        salt = b"" if target.vector else make_salt(*self._task, self.registered.fingerprint)
        stop = 1 + len(target.text)
        for row in rows:
            text = _text_of(row[1:stop], row[0], salt)
            if text is None:
                compared.others += 1
                continue
            compared.rows += 1
            made = task.run(task.prepare([text]).inputs).rows
            if target.vector:
                stored, again = np.fromstring(row[stop].strip("[]"), sep=","), made.column(0)[0].as_py()
                compared.worst = min(compared.worst, _cosine(stored, np.asarray(again, np.float64)))
            else:
                again = (made.column(name)[0].as_py() for name in target.made)
                compared.differ += not all(map(_agree, row[stop:], again))
        return compared


@dataclass(slots=True)
class _Compared:
    """What a sample showed; `others` are rows that cannot be made again."""

    rows: int = 0
    others: int = 0
    differ: int = 0
    worst: float = 1.0

    def judge(self, task: Task, total: int, reference: str, *, vectors: bool) -> Check:
        """A table does not say in which precision its rows were made; the task says whether some may differ."""
        seen = f"{self.rows - self.differ:,} of {total:,} rows computed again {reference}"
        if vectors:
            # A model of eight bits is as far from itself as it is.
            least = min(lowest_of_many(""), lowest_of_many(task.numerics.get("precision", "")))
            ok = self.worst >= (lowest_rounded(task.rounded) if task.rounded else least)
            seen += f", worst cosine {self.worst:.6f}"
        else:
            ok = not self.differ or (task.agreement("") == "mostly" and 2 * self.differ <= self.rows)
            seen += " are equal" + (f", {self.differ:,} differ" if self.differ else "")
        if self.others:
            seen += f"; {self.others:,} were made from another text"
        return Check("sample", ok, f"{seen}; {power(self.rows - self.differ, total)}" if ok else seen)


def _text_of(values: Sequence[Any], digest: bytes | None, salt: bytes) -> str | None:
    """The text that `--text a,b` makes from these columns, if the row was made from it alone."""
    words = [" ".join(map(str, v)) if isinstance(v, list) else "" if v is None else str(v) for v in values]
    texts = ["\n".join(words), *words]
    made = digest_items(pa.array(texts), None, salt).to_pylist()
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
