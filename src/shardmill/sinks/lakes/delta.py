"""Delta Lake as a sink: workers write data files, and a commit adds many of them under the number of lots.

The number is the version of the run's transaction in the log. The library's own retries are off: a commit that finds
another before it is refused, and looks at the number again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from shardmill.core.extras import missing_package
from shardmill.sinks.base import Holding, Lot, Shipment, TurnStep
from shardmill.sinks.lakes.base import LakeDelivery
from shardmill.sinks.lakes.files import delete_strays, has_data_file, write_data_file
from shardmill.sinks.lakes.types import as_delivered, stored_schema
from shardmill.sinks.predicates import any_of, quoted
from shardmill.sinks.remembered import (
    generation_of,
    lots_of,
    note,
    read_holdings,
    refuse_columns,
    refuse_others,
)
from shardmill.store.clients import options_for_others

SCHEME = "delta:"
_READ_ROWS = 8192
_KEYS_AT_ONCE = 500


class DeltaDelivery(LakeDelivery):
    """A table whose properties say who made its rows, and which run's are there."""

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        try:
            import deltalake
        except ImportError as error:
            raise missing_package("deltalake") from error
        self._delta: Any = deltalake
        self._place = address.removeprefix(SCHEME).rstrip("/")
        self._options = options_for_others(self._place) or None
        self._schema = stored_schema(address, shipment.schema)

    def prepare(self) -> None:
        found = self._find()
        if found is None:
            schema = self._delta.Schema.from_arrow(self._schema)
            try:
                self._delta.DeltaTable.create(self._place, schema, mode="error", storage_options=self._options)
            except (OSError, self._delta.exceptions.DeltaError) as error:
                # Another process may have created it.
                if self._find() is None:
                    raise self._lost(error) from error
            found = self._open()
        refuse_columns(self.address, self.shipment, pa.schema(found.schema().to_arrow()), self._schema)
        while not self._note_run(found):
            found = self._open()

    def _note_run(self, table: Any) -> bool:
        """Have the table's properties say which run's rows it gets; False if they were changed since it was opened."""
        kept = table.metadata().configuration
        held = self._holding(table, self.shipment.plan, generation_of(self.shipment, kept))
        refuse_others(self.address, self.shipment, kept, held.lots)
        # The log counts the lots; the properties say of which generation they are.
        wanted = note(self.shipment, 0)
        if wanted.items() <= kept.items():
            return True
        try:
            table.alter.set_table_properties(wanted, raise_if_not_exists=False)
        except (OSError, self._delta.exceptions.DeltaError) as error:
            if self._open().version() == table.version():
                raise self._lost(error) from error
            return False
        return True

    def count(self) -> int:
        found = self._find()
        return 0 if found is None else self._count(found, self.shipment.generation)

    def _count(self, table: Any, generation: str) -> int:
        return lots_of(self._holding(table, self.shipment.plan, generation))

    def _holding(self, table: Any, plan: str, generation: str) -> Holding:
        """How much it has of a plan, by the log. Which plans there are, the properties say."""
        app = _app(plan, generation)
        lots = int(table.transaction_version(app) or 0)
        for other in read_holdings(table.metadata().configuration) if lots > 0 else ():
            if done := int(table.transaction_version(f"{app}.{other}") or 0):
                return Holding(lots, other, done, int(table.transaction_version(f"{app}.{other}.alone") or 0))
        return Holding(lots)

    def holdings(self) -> dict[str, tuple[str, Holding]]:
        with self._told():
            if (table := self._find()) is None:
                return {}
            noted = read_holdings(table.metadata().configuration)
            return {plan: (made, self._holding(table, plan, made)) for plan, (made, _) in noted.items()}

    def stage(self, lot: Lot) -> dict[str, Any]:
        return write_data_file(self._place, self.shipment, self._schema, lot)

    def is_staged(self, staged: dict[str, Any]) -> bool:
        return has_data_file(self._place, staged)

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        table = self._open()
        if self._count(table, self.shipment.generation) != first:
            return False
        now = int(1000 * time.time())
        files = [lot.staged for lot in lots if lot.staged["rows"]]
        added = [
            self._delta.transaction.AddAction(file["path"], file["size"], {}, now, True, file["stats"])
            for file in files
        ]
        properties = self._noting({_app(self.shipment.plan, self.shipment.generation): first + len(lots)})
        return self._commit(
            lambda: table.create_write_transaction(added, "append", table.schema(), [], commit_properties=properties)
        )

    def _noting(self, versions: dict[str, int]) -> Any:
        """Numbers that are written into the log with a commit, which is refused after any other."""
        noted = [self._delta.Transaction(name, version) for name, version in versions.items()]
        return self._delta.CommitProperties(max_commit_retries=0, app_transactions=noted)

    def _commit(self, change: Callable[[], object]) -> bool:
        try:
            change()
        except self._delta.exceptions.CommitFailedError:
            return False
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise self._lost(error) from error
        return True

    def scan(self) -> Iterator[pa.RecordBatch]:
        with self._told():
            dataset = self._open().to_pyarrow_dataset()
            for batch in dataset.to_batches(columns=self.shipment.schema.names, batch_size=_READ_ROWS):
                yield from as_delivered(pa.Table.from_batches([batch]), self.shipment.schema)

    def delete(self, keys: pa.RecordBatch) -> None:
        for at in range(0, keys.num_rows, _KEYS_AT_ONCE):
            with self._told():
                self._open().delete(any_of(keys.slice(at, _KEYS_AT_ONCE)))

    def replace(self, lots: int, rows: pa.RecordBatch) -> bool:
        table = self._open()
        if self._count(table, self.shipment.generation) != lots:
            return False
        return self._commit(lambda: self._overwrite(table, self._keys_of(rows), rows, self._noting({})))

    def _overwrite(self, table: Any, keys: pa.RecordBatch, rows: pa.RecordBatch, properties: Any) -> None:
        """Replace the rows with these keys by others."""
        if rows.num_rows:
            table_rows, where = pa.Table.from_batches([rows]).cast(self._schema), any_of(keys)
            self._delta.write_deltalake(
                table, table_rows, mode="overwrite", predicate=where, commit_properties=properties
            )
        elif keys.num_rows:
            table.delete(any_of(keys), commit_properties=properties)
        else:
            table.create_write_transaction([], "append", table.schema(), [], commit_properties=properties)

    def turn(self, step: TurnStep) -> bool:
        table, earlier = self._open(), step.earlier
        if self._holding(table, earlier.plan, earlier.generation) != step.holds:
            return False
        with self._told():
            made = step.decide(self._with_keys(table, self._keys_of(step.keys)))
        after, app = step.after(made.alone), _app(earlier.plan, earlier.generation)
        turning = f"{app}.{step.turns_to}"
        noted = {app: after.lots, turning: after.done, f"{turning}.alone": after.alone}
        if step.lots is not None:
            noted[_app(self.shipment.plan, self.shipment.generation)] = step.lots
        return self._commit(lambda: self._overwrite(table, made.keys, made.rows, self._noting(noted)))

    def _with_keys(self, table: Any, keys: pa.RecordBatch) -> list[pa.RecordBatch]:
        """All rows with these keys. Arrow finds no texts in a file whose bounds are of another kind of text."""
        if not keys.num_rows:
            return []
        columns = ", ".join(map(quoted, self.shipment.schema.names))
        found = self._delta.QueryBuilder().register("rows", table)
        read = found.execute(f"SELECT {columns} FROM rows WHERE {any_of(keys)}").read_all()
        return [*as_delivered(pa.table(read), self.shipment.schema)]

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        with self._told():
            live = self._open().file_uris()
        deleted = delete_strays(self._place, self.shipment, lots, live)
        return [f"{deleted} data files of attempts that died were deleted"] if deleted else []

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise self._lost(error) from error

    def _find(self) -> Any:
        try:
            return self._delta.DeltaTable(self._place, storage_options=self._options)
        except self._delta.exceptions.TableNotFoundError:
            return None
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise self._lost(error) from error


def _app(plan: str, generation: str) -> str:
    """The name in the log under which the lots of a run are counted."""
    return f"shardmill.{plan}.{generation}"
