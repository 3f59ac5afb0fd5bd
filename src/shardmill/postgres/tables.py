"""Tables for what tasks make: created from a `Target` or compared with it, and registered in `shardmill.tables`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import DatabaseError, SpecError, StaleResume
from shardmill.core.functions import changed_parts
from shardmill.postgres.connect import address, explained, limit, load
from shardmill.postgres.definition import DIGEST, SEARCH, definition, own_columns, validate
from shardmill.postgres.target import Target, quoted

if TYPE_CHECKING:
    import psycopg

# Any number that nobody else uses for a lock.
_LOCK = 0x5348_4152_444D_494C
MAY_CREATE = "Ask the owner of the database for CREATE on it and on the schema."


@dataclass(frozen=True, slots=True)
class Registered:
    """The entry of a table in `shardmill.tables`: enough to embed a query as its rows were embedded."""

    target: Target
    task: str
    model: str
    fingerprint: dict[str, Any]
    params: dict[str, Any]


def create(connection: psycopg.Connection[Any], target: Target) -> bool:
    """Create the table and return True, or False if one that fits exists. One that does not fit is an error."""
    validate(target)
    with explained(connection, MAY_CREATE), connection.transaction():
        limit(connection)
        lock(connection)
        vector_schema = ensure_vector(connection) if target.vector else ""
        _check_language(connection, target.language)
        there = one(connection, "SELECT to_regclass(%s)::oid", [target.name])
        if there is None:
            create_schema(connection, target.schema)
            connection.execute(definition(target, vector_schema))
            return True
        check(connection, target)
        return False


def check(connection: psycopg.Connection[Any], target: Target) -> None:
    """Compare an existing table with a target; one error lists all differences and the SQL that would fix them."""
    with explained(connection):
        found = list(_differences(connection, target))
    if found:
        said = "; ".join(said for said, _ in found)
        mends = [mend for _, mend in found if mend]
        hint = "Load into another table, or change this one."
        if mends:
            hint = "Load into another table, or run: " + " ".join(f"{mend};" for mend in mends)
        raise DatabaseError(f"{address(connection)}: {target.name} does not fit: {said}.", hint=hint)


_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, a.atttypmod, a.attgenerated::text,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
_UNIQUE_KEYS = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[:i.indnkeyatts - 1])
WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""


def _differences(connection: psycopg.Connection[Any], target: Target) -> Iterator[tuple[str, str]]:
    """Each difference, and the statement that would fix it, or "" if none would."""
    kind = one(connection, "SELECT relkind::text FROM pg_class WHERE oid = to_regclass(%s)", [target.name])
    if kind not in ("r", "p"):
        yield ("there is no such table" if kind is None else "it is not a table"), ""
        return
    there = {row[0]: row[1:] for row in connection.execute(_COLUMNS, [target.name])}
    alter = f"ALTER TABLE {target.name}"
    for column in target.columns:
        if column.name not in there:
            yield (
                f"it has no column {column.name!r}",
                f"{alter} ADD COLUMN {quoted(column.name)} {column.type}",
            )
        elif (seen := there[column.name][0]) != column.type:
            yield f"{column.name!r} is {seen}, not {column.type}", ""
    for name, sql in own_columns(target, vector_schema(connection) or "public"):
        if name not in there:
            yield f"it has no column {name!r}", f"{alter} ADD COLUMN {quoted(name)} {sql}"
        elif wrong := _wrong_own_column(target, name, there[name]):
            yield wrong, ""
    known = {c.name for c in target.columns} | {target.vector, DIGEST, SEARCH}
    for name in there.keys() - known:
        if there[name][4]:
            yield f"{name!r} is NOT NULL, but nothing is loaded into it", ""
    keys = [set(row[0]) for row in connection.execute(_UNIQUE_KEYS, [target.name])]
    if target.key and set(target.key) not in keys:
        names = ", ".join(map(quoted, target.key))
        yield f"it has no unique index on ({', '.join(target.key)})", f"{alter} ADD PRIMARY KEY ({names})"


def _wrong_own_column(target: Target, name: str, seen: tuple[Any, ...]) -> str:
    shown, kind, modifier, generated, _ = seen
    if name == target.vector:
        if kind != target.vector_type or modifier not in (target.dims, -1):
            return f"{name!r} is {shown}, not {target.vector_type}({target.dims})"
        return "" if modifier == target.dims else f"{name!r} has no dimension, which an index needs"
    if name == DIGEST:
        return "" if kind == "bytea" else f"{name!r} is {shown}, not bytea"
    if kind != "tsvector" or generated != "s":
        return f"{name!r} is {shown}{' that nothing fills' * (kind == 'tsvector')}, not a generated tsvector"
    return ""


def ensure_vector(connection: psycopg.Connection[Any]) -> str:
    """The schema of pgvector; the extension is created if the server has it and the user may."""
    if (schema := vector_schema(connection)) is not None:
        return schema
    if not one(connection, "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'"):
        raise DatabaseError(
            f"{address(connection)}: the server has no pgvector.",
            hint="Install it there (Debian: apt install postgresql-NN-pgvector; macOS: brew install pgvector; "
            "hosted: enable the extension `vector`), or use a local server with --to embedded:PATH.",
        )
    driver = load()
    try:
        with connection.transaction():
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except driver.errors.InsufficientPrivilege as error:
        raise DatabaseError(
            f"{address(connection)}: pgvector is not enabled in this database, and this user may not enable it.",
            hint="Ask its owner to run: CREATE EXTENSION vector;",
        ) from error
    return vector_schema(connection) or "public"


def vector_schema(connection: psycopg.Connection[Any]) -> str | None:
    """The schema of pgvector; None if the database does not have it."""
    found = one(connection, "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'vector'")
    return None if found is None else _unquoted(found)


def vector_version(connection: psycopg.Connection[Any]) -> tuple[int, ...]:
    found = one(connection, "SELECT extversion FROM pg_extension WHERE extname = 'vector'") or "0"
    return tuple(int(piece) for piece in found.split(".") if piece.isdigit())


_REGISTRY = """
CREATE TABLE IF NOT EXISTS shardmill.tables (
  table_schema text,
  table_name text,
  target jsonb NOT NULL,
  task text NOT NULL,
  model text NOT NULL,
  fingerprint jsonb NOT NULL,
  task_params jsonb NOT NULL,
  created timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (table_schema, table_name)
)
"""


def register(
    connection: psycopg.Connection[Any],
    target: Target,
    model: str,
    fingerprint: dict[str, Any],
    params: dict[str, Any],
    task: str = "embed",
) -> None:
    """Register how the rows of a table are made.

    An existing entry must be the same if they are vectors, which are compared with one another. Other rows may be made
    anew in another way, by the same task: each row's digest tells how it was made.
    """
    jsonb = load().types.json.Jsonb
    new = Registered(target, task, model, fingerprint, params)
    with explained(connection, MAY_CREATE), connection.transaction():
        limit(connection)
        lock(connection)
        if one(connection, "SELECT to_regclass('shardmill.tables')") is None:
            create_schema(connection, "shardmill")
            connection.execute(_REGISTRY)
        old = registered(connection, target.schema, target.table)
        if old is None:
            connection.execute(
                "INSERT INTO shardmill.tables (table_schema, table_name, target, task, model, fingerprint, task_params)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s)",
                [target.schema, target.table, jsonb(target.to_json()), task, model, jsonb(fingerprint), jsonb(params)],
            )
        elif not target.vector and not old.target.vector and old.task == task:
            connection.execute(
                "UPDATE shardmill.tables SET target = %s, model = %s, fingerprint = %s, task_params = %s"
                " WHERE table_schema = %s AND table_name = %s",
                [jsonb(target.to_json()), model, jsonb(fingerprint), jsonb(params), target.schema, target.table],
            )
        elif changes := _changes(old, new):
            what, why = "rows", "Load into another table."
            if old.target.vector and target.vector:
                what, why = "vectors", "Vectors of two models cannot be compared: load into another table."
            raise StaleResume(f"{target.name} holds {what} that were made differently: {'; '.join(changes)}.", hint=why)


def registered(connection: psycopg.Connection[Any], schema: str, table: str) -> Registered | None:
    """How the rows of a table are made; None if shardmill did not load it."""
    with explained(connection):
        if one(connection, "SELECT to_regclass('shardmill.tables')") is None:
            return None
        row = connection.execute(
            "SELECT target, task, model, fingerprint, task_params FROM shardmill.tables"
            " WHERE table_schema = %s AND table_name = %s",
            [schema, table],
        ).fetchone()
    return None if row is None else Registered(Target.from_json(row[0]), *row[1:])


def _changes(old: Registered, new: Registered) -> list[str]:
    """What would make new rows differ from the old. The model's location and the dtype would not."""
    found = []
    if old.task != new.task:
        found.append(f"the task was {old.task}, now {new.task}")
    if changed_parts(old.fingerprint, new.fingerprint):
        found.append(f"the model was {old.model}, now {new.model}")
        if old.model == new.model:
            found[-1] = f"the files of {old.model} have changed"
        if {**old.fingerprint, "numerics": ""} == {**new.fingerprint, "numerics": ""}:
            found[-1] = f"this version of shardmill corrects the vectors of {old.model}"
    where = {"model", "dtype"}
    for name in sorted((old.params.keys() | new.params.keys()) - where):
        if old.params.get(name) != new.params.get(name):
            found.append(f"{name} was {old.params.get(name)}, now {new.params.get(name)}")
    if (old.target.text, old.target.language) != (new.target.text, new.target.language):
        found.append(f"full text was {', '.join(old.target.text) or 'nothing'} in {old.target.language}")
    return found


def types_of(connection: psycopg.Connection[Any], target: Target) -> dict[str, str]:
    """The columns of a table with their types as `format_type` writes them; empty if it does not exist."""
    with explained(connection):
        found = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [target.name],
        )
        return dict(found.fetchall())


def lock(connection: psycopg.Connection[Any]) -> None:
    """Let one process at a time create tables: with IF NOT EXISTS alone, two could both try."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def lock_table(connection: psycopg.Connection[Any], name: str) -> None:
    """Let one process at a time change a table as a whole; the lock is released with the transaction."""
    connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", [_LOCK >> 32, name])


def create_schema(connection: psycopg.Connection[Any], name: str) -> None:
    # IF NOT EXISTS needs the CREATE privilege even if the schema exists.
    if one(connection, "SELECT to_regnamespace(%s)", [quoted(name)]) is None:
        connection.execute(f"CREATE SCHEMA {quoted(name)}")


def _check_language(connection: psycopg.Connection[Any], language: str) -> None:
    known = [r[0] for r in connection.execute("SELECT cfgname FROM pg_ts_config ORDER BY 1")]
    if language not in known:
        raise SpecError(f"The server has no full-text search in {language!r}.", hint=f"Available: {', '.join(known)}.")


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def one(connection: psycopg.Connection[Any], sql: str, values: list[Any] | None = None) -> Any:
    """The first value of the first row."""
    row = connection.execute(sql, values).fetchone()
    return row[0] if row else None
