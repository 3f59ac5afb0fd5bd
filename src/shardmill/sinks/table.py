"""Before and after a load: create the table or compare it with the plan, read the records, build the indexes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardmill.core.console import Bar, say
from shardmill.core.errors import DatabaseError, SpecError
from shardmill.core.template import TextTemplate
from shardmill.ledger import Commit
from shardmill.plan import WINDOW, Plan
from shardmill.plan.spec import TableSpec, Work
from shardmill.postgres import connect, reading
from shardmill.postgres.batches import BatchLedger, ShardProgress, create_ledger
from shardmill.postgres.copy import add_digests
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.indexes import build, check_indexable, drop_indexes, existing_indexes, offer
from shardmill.postgres.tables import create, one, register, types_of
from shardmill.postgres.target import Target, all_null, quoted
from shardmill.postgres.upsert import Upsert
from shardmill.sinks.destination import preset_of, target_of

if TYPE_CHECKING:
    import psycopg

_READ_ROWS = 8192


def check_work(work: Work) -> TableSpec:
    """Refuse what cannot be loaded, before anything is read."""
    to = work.to
    assert to is not None
    if not work.id:
        raise SpecError("A table needs a key.", hint="Name the field or fields that identify a row: --id FIELD")
    if to.changed_only and to.mode != "update":
        raise SpecError(f"--changed-only updates rows, but --mode is {to.mode}.", hint="Leave out one of them.")
    if to.mode == "fail" and work.query:
        raise SpecError(
            "--mode fail does not work with a query: rows may change during the load and be loaded twice.",
            hint="Use --mode update or --mode skip.",
        )
    return to


def find_target(plan: Plan, schema: pa.Schema) -> Target:
    """The table for rows of this schema."""
    work = plan.work
    if (to := work.to) is not None and to.changed_only and WINDOW in schema.names:
        raise SpecError("--changed-only needs one row per item.", hint="Leave it out, or use --windows mean.")
    texts = [f.name for f in schema if f.name in TextTemplate.parse(work.text).names and pa.types.is_string(f.type)]
    return target_of(plan, schema, texts)


def prepare(plan: Plan, schema: pa.Schema, *, fresh: bool = False) -> Target:
    """Create the table and the ledger if they do not exist, and check that an existing table fits."""
    to = check_work(plan.work)
    target = find_target(plan, schema)
    with connect(to.url, autocommit=True) as connection:
        if preset_of(plan.work) is None:
            target = _adopt(connection, target)
        made = create(connection, target)
        create_ledger(connection)
        model = plan.fingerprint.get("model") or str(plan.work.params.get("model", plan.work.task))
        register(connection, target, model, plan.fingerprint, plan.work.params, plan.work.task)
        ledger = BatchLedger(plan.id, target)
        if fresh and (forgotten := ledger.forget(connection)):
            say(f"--fresh: the records of {forgotten:,} items were deleted; the rows in the table stay until replaced.")
        if not made:
            _refuse_emptied(connection, ledger, target)
    return target


def _adopt(connection: psycopg.Connection[Any], target: Target) -> Target:
    """An existing table keeps its types: loaded values are converted to them."""
    types = types_of(connection, target)
    return replace(target, columns=tuple(replace(c, type=types.get(c.name, c.type)) for c in target.columns))


def _refuse_emptied(connection: psycopg.Connection[Any], ledger: BatchLedger, target: Target) -> None:
    if one(connection, f"SELECT count(*) FROM (SELECT FROM {target.name} LIMIT 1) any_row"):
        return
    if any(batch.sent for shard in ledger.shards(connection).values() for batch in shard.batches):
        raise DatabaseError(
            f"{target.name} is empty, but shardmill.batches has records of rows that this plan loaded into it.",
            hint="The table was emptied after the load; --fresh loads the rows again.",
        )


def ask_about_indexes(plan: Plan, schema: pa.Schema, *, kind: str, rebuild: bool, quiet: bool = False) -> None:
    """Indexes slow down a load: offer to drop them; never drop them unasked."""
    target = find_target(plan, schema)
    check_indexable(target, kind)
    assert plan.work.to is not None
    with connect(plan.work.to.url, autocommit=True) as connection:
        if one(connection, "SELECT to_regclass(%s)", [target.name]) is None:
            return
        found = existing_indexes(connection, target)
        question = offer(found, one(connection, f"SELECT count(*) FROM {target.name}"))
        if not question:
            return
        if not rebuild and not quiet and sys.stdin.isatty() and sys.stderr.isatty():
            say(question)
            rebuild = input("Drop and rebuild? [y/N] ").strip().lower() in ("y", "yes")
        elif not rebuild:
            say(question.rpartition(". ")[0] + "; --rebuild-indexes drops and rebuilds them.")
        if rebuild:
            gone = drop_indexes(connection, target)
            say(f"Dropped, to be rebuilt after the load: {', '.join(i.name for i in gone)}.")


def check_table(plan: Plan, schema: pa.Schema, commits: dict[int, Commit]) -> Iterator[tuple[str, bool, str]]:
    """Compare commits, batches and rows; yields the name of each check, whether it passed, and what was seen."""
    assert plan.work.to is not None
    target = find_target(plan, schema)
    with_digest = schema.insert(len(plan.kept), pa.field(DIGEST, pa.binary()))
    fields = preset.fields if (preset := preset_of(plan.work)) is not None else ()
    with reading(plan.work.to.url) as connection:
        shards = BatchLedger(plan.id, target).shards(connection)
        upsert = Upsert(connection, target, with_digest, plan.work.to.mode, fields)
        differ = [i for i, c in commits.items() if i not in shards or not _agree(shards[i], c)]
        gaps = [i for i, p in shards.items() if not p.without_gap]
        count = sum(len(p.batches) for p in shards.values())
        seen = f"{count:,} batches of {len(shards):,} shards, {len(differ)} shards differ from their commits"
        yield "batches", not differ and not gaps, seen + (f", {len(gaps)} have gaps" if gaps else "")
        sent, inserted, updated = (sum(p.total(n) for p in shards.values()) for n in ("sent", "inserted", "updated"))
        rows, digest = upsert.digest_table(connection)
        yield (
            "rows",
            rows >= inserted,
            f"{rows:,} rows in the table; {inserted:,} inserted, {updated:,} updated",
        )
        if rows == inserted == sent:
            what = "vectors" if target.vector else "results"
            same = digest == add_digests([p.digest for p in shards.values()])
            yield (
                "digests",
                same,
                f"keys, texts and {what} of {rows:,} rows are {'' if same else 'not '}as they were sent",
            )
        else:
            yield "digests", True, "not compared: the table has rows of other loads, or some were replaced or skipped"


def count_without_result(plan: Plan, schema: pa.Schema) -> int:
    """The rows that were loaded without a result. Rows with an error are not loaded, so none is expected."""
    assert plan.work.to is not None
    target = find_target(plan, schema)
    empty = f"{quoted(DIGEST)} IS NOT NULL AND {all_null(target.results)}"
    with reading(plan.work.to.url) as connection:
        return int(one(connection, f"SELECT count(*) FROM {target.name} WHERE {empty}"))


def read_results(plan: Plan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns that the task made, of all rows of a table without vectors, in any order."""
    assert plan.work.to is not None
    target = find_target(plan, schema)
    kept = [schema.field(name) for name in schema.names if name not in plan.kept]
    columns = ", ".join(quoted(field.name) for field in kept)
    with reading(plan.work.to.url) as connection, connection.cursor(name="results") as cursor:
        cursor.itersize = _READ_ROWS
        cursor.execute(f"SELECT {columns} FROM {target.name}".encode())
        while rows := cursor.fetchmany(_READ_ROWS):
            try:
                arrays = [
                    pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), kept, strict=True)
                ]
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                reason = str(error).partition("\n")[0].rstrip(".")
                raise DatabaseError(f"{target.name} holds values that the task does not make: {reason}.") from error
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kept))


def _agree(progress: ShardProgress, commit: Commit) -> bool:
    """Whether the batches of a shard are those that its commit counted. Either may lack the digest of the items."""
    items = {progress.items_digest, commit.items_digest} - {""}
    sums = progress.rows, len(progress.errors), progress.total("dropped"), progress.digest.hex()
    return len(items) < 2 and sums == (commit.rows, commit.errors, commit.dropped, commit.digest)


def finish(plan: Plan, schema: pa.Schema, *, kind: str, quiet: bool = False) -> list[str]:
    """Build the missing indexes; returns one line per index built."""
    assert plan.work.to is not None
    with Bar("indexing", quiet=quiet) as bar:
        return build(plan.work.to.url, find_target(plan, schema), kind, bar.at)
