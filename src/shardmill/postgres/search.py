"""Search a table: by meaning, by words, or by both. Each search is one statement, which `--sql` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import UsageError
from shardmill.core.fusion import RRF, Mode, count_candidates
from shardmill.postgres.connect import explained, limit
from shardmill.postgres.definition import SEARCH, literal
from shardmill.postgres.indexes import existing_indexes
from shardmill.postgres.tables import one, vector_schema, vector_version
from shardmill.postgres.target import Target, quoted

if TYPE_CHECKING:
    import psycopg

# The number of candidates that HNSW examines; measured in docs/postgres.md.
EF_SEARCH, _MOST_EF_SEARCH = 100, 1_000
# IVFFlat probes as many lists as pgvector recommends, the square root of their number, but at least this many.
_LEAST_PROBES = 10
_TIMEOUT = "1min"
_SEARCH = quoted(SEARCH)
# Placeholders for the values: nothing else in SQL contains a NUL.
_VECTOR, _WORDS = "\0vector\0", "\0words\0"


@dataclass(frozen=True, slots=True)
class TableHit:
    """One answer: its columns and its score, which is a cosine, a text rank, or the fusion of both ranks."""

    span: ClassVar[str] = ""
    score: float
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class TableSearch:
    """A query; a search by words needs no `vector`, a search by meaning no `words`."""

    mode: Mode
    k: int
    vector: NDArray[np.float32] | None = None
    words: str = ""
    where: str = ""


def search(connection: psycopg.Connection[Any], target: Target, wanted: TableSearch) -> list[TableHit]:
    """The best `k` rows. Expects a read-only connection, so that `where` cannot write."""
    _check(target, wanted)
    # With bound values the server accepts a single statement: a semicolon in `where` cannot add a second.
    sql = _statement(target, wanted, _dialect(connection)).replace("%", "%%")
    sql = sql.replace(_VECTOR, "%(vector)s").replace(_WORDS, "%(words)s")
    values = {"words": wanted.words, "vector": _vector_text(wanted.vector)}
    with explained(connection, "Try it in psql: --sql prints the statement."):
        limit(connection, statement_timeout=_TIMEOUT, **settings(connection, target, wanted.k))
        rows = connection.execute(sql, values).fetchall()
        if wanted.where and wanted.mode != "text" and len(rows) < wanted.k:
            # An index scan can give up before it finds rare rows.
            limit(connection, statement_timeout=_TIMEOUT, enable_indexscan="off")
            rows = connection.execute(sql, values).fetchall()
    names = [c.name for c in target.columns]
    return [TableHit(float(row[-1]), dict(zip(names, row[:-1], strict=True))) for row in rows]


def show(connection: psycopg.Connection[Any], target: Target, wanted: TableSearch) -> str:
    """The same search as SQL that can be read and passed to psql."""
    _check(target, wanted)
    with explained(connection):
        local = settings(connection, target, wanted.k) if wanted.mode != "text" else {}
    body = _statement(target, wanted, _dialect(connection))
    body = body.replace(_VECTOR, literal(_vector_text(wanted.vector))).replace(_WORDS, literal(wanted.words))
    lines = ["BEGIN READ ONLY;", *(f"SET LOCAL {name} = {value};" for name, value in local.items()), f"{body};"]
    return "\n".join([*lines, "COMMIT;"])


def settings(connection: psycopg.Connection[Any], target: Target, k: int) -> dict[str, str]:
    """How thoroughly the vector index is searched; iterative scans continue if a filter leaves too few rows."""
    index = next((i for i in existing_indexes(connection, target) if i.column == target.vector), None)
    if index is None:
        return {}
    found = {"hnsw.ef_search": str(min(max(EF_SEARCH, 2 * k), _MOST_EF_SEARCH))}
    if index.method == "ivfflat":
        lists = one(
            connection,
            "SELECT option_value::int FROM pg_class c, pg_options_to_table(c.reloptions)"
            " WHERE c.oid = to_regclass(%s) AND option_name = 'lists'",
            [f"{quoted(target.schema)}.{quoted(index.name)}"],
        )
        lists = int(lists or 100)
        found = {"ivfflat.probes": str(min(lists, max(_LEAST_PROBES, round(lists**0.5))))}
    if vector_version(connection) >= (0, 8):
        found[f"{index.method}.iterative_scan"] = "relaxed_order"
    return found


def distances(connection: psycopg.Connection[Any], target: Target, vector: str, k: int) -> list[float]:
    """Distances of the `k` nearest rows, found as the planner settings of this transaction allow."""
    dialect = _dialect(connection)
    near = f"{quoted(target.vector)} {dialect.distance} {_VECTOR}::{dialect.types}{target.vector_type}({target.dims})"
    sql = f"SELECT {near} FROM {target.name} ORDER BY {near} LIMIT {k}".replace("%", "%%").replace(
        _VECTOR, "%(vector)s"
    )
    rows = connection.execute(sql, {"vector": vector}).fetchall()
    return sorted(row[0] for row in rows if row[0] is not None)


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How pgvector's operator and types are written: its schema may not be on the search path."""

    distance: str
    types: str


def _dialect(connection: psycopg.Connection[Any]) -> _Dialect:
    with explained(connection):
        schema = vector_schema(connection) or "public"
        seen = one(connection, "SELECT %s = ANY (current_schemas(true))", [schema])
    return _Dialect("<=>", "") if seen else _Dialect(f"OPERATOR({quoted(schema)}.<=>)", f"{quoted(schema)}.")


def _check(target: Target, wanted: TableSearch) -> None:
    if wanted.k < 1:
        raise UsageError(f"-k {wanted.k}: must be at least 1.")
    if wanted.mode != "text" and not target.vector:
        raise no_vectors(target)
    if wanted.mode != "vector" and not target.text:
        raise UsageError(f"{target.table} has no full-text search: no text column was loaded.")
    if wanted.mode == "hybrid" and not target.key:
        raise UsageError(f"{target.table} has no key, which hybrid search needs: search by meaning or by words.")
    if "\0" in wanted.where + wanted.words:
        raise UsageError("A query cannot contain a NUL character.")
    if wanted.vector is not None and len(wanted.vector) != target.dims:
        raise UsageError(f"The query has {len(wanted.vector)} dimensions, the table has {target.dims}.")


def no_vectors(target: Target) -> UsageError:
    hint = "Search its texts by their words: --words" if target.text else "Query it with SQL."
    return UsageError(f"{target.table} has no vectors to search by meaning.", hint=hint)


def _statement(target: Target, wanted: TableSearch, dialect: _Dialect) -> str:
    """The statement, with placeholders for its values."""
    kind = f"{dialect.types}{target.vector_type}({target.dims})"
    parts = _Parts(
        columns=", ".join(quoted(c.name) for c in target.columns),
        table=target.name,
        key=", ".join(map(quoted, target.key)),
        vector=quoted(target.vector),
        distance=f"{quoted(target.vector)} {dialect.distance} {_VECTOR}::{kind}",
        query=f"websearch_to_tsquery({literal(target.language)}::regconfig, {_WORDS})",
        # On separate lines, so that a comment in it cannot hide what follows.
        where=f" AND (\n{wanted.where}\n)" if wanted.where else "",
        k=wanted.k,
    )
    return {"vector": _by_vector, "text": _by_text, "hybrid": _by_both}[wanted.mode](parts)


@dataclass(frozen=True, slots=True)
class _Parts:
    columns: str
    table: str
    key: str
    vector: str
    distance: str
    query: str
    where: str
    k: int

    @property
    def then_key(self) -> str:
        return f", {self.key}" if self.key else ""


def _by_vector(p: _Parts) -> str:
    return f"""\
WITH nearest AS MATERIALIZED (
  SELECT {p.columns}, {p.distance} AS _distance
  FROM {p.table}
  WHERE {p.vector} IS NOT NULL{p.where}
  ORDER BY {p.distance}
  LIMIT {p.k}
)
SELECT {p.columns}, 1 - _distance AS _score
FROM nearest
ORDER BY _distance{p.then_key}"""


def _by_text(p: _Parts) -> str:
    return f"""\
SELECT {p.columns}, ts_rank_cd({_SEARCH}, {p.query}) AS _score
FROM {p.table}
WHERE {_SEARCH} @@ {p.query}{p.where}
ORDER BY _score DESC{p.then_key}
LIMIT {p.k}"""


def _by_both(p: _Parts) -> str:
    candidates = count_candidates(p.k)
    return f"""\
WITH nearest AS MATERIALIZED (
  SELECT {p.key}, {p.distance} AS _distance
  FROM {p.table}
  WHERE {p.vector} IS NOT NULL{p.where}
  ORDER BY {p.distance}
  LIMIT {candidates}
), by_meaning AS (
  SELECT {p.key}, row_number() OVER (ORDER BY _distance, {p.key}) AS _meaning
  FROM nearest
), matching AS (
  SELECT {p.key}, ts_rank_cd({_SEARCH}, {p.query}) AS _rank
  FROM {p.table}
  WHERE {_SEARCH} @@ {p.query}{p.where}
  ORDER BY _rank DESC, {p.key}
  LIMIT {candidates}
), by_words AS (
  SELECT {p.key}, row_number() OVER (ORDER BY _rank DESC, {p.key}) AS _words
  FROM matching
), fused AS (
  SELECT {p.key}, coalesce(1.0 / ({RRF} + _meaning), 0) + coalesce(1.0 / ({RRF} + _words), 0) AS _score
  FROM by_meaning FULL JOIN by_words USING ({p.key})
  ORDER BY _score DESC, {p.key}
  LIMIT {p.k}
)
SELECT {p.columns}, _score
FROM fused JOIN {p.table} USING ({p.key})
ORDER BY _score DESC, {p.key}"""


def _vector_text(vector: NDArray[np.float32] | None) -> str:
    """The vector in pgvector's text format; the numbers survive the round trip as float32."""
    return "[" + ",".join(map(str, np.asarray(vector, np.float32))) + "]" if vector is not None else ""
