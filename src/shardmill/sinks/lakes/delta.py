"""Delta Lake as a sink: workers write data files, and a commit adds many of them under the number of lots.

The number is the version of the run's transaction in the log. The library's own retries are off: a commit that finds
another before it is refused, and looks at the number again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from shardmill.core.errors import StoreError, missing_extra
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.lakes.files import delete_strays, has_data_file, write_data_file
from shardmill.sinks.lakes.types import as_delivered, stored_schema
from shardmill.sinks.predicates import any_of
from shardmill.sinks.remembered import generation_of, note, refuse_columns, refuse_others
from shardmill.store.clients import options_for_others

SCHEME = "delta:"
_READ_ROWS = 8192
_KEYS_AT_ONCE = 500


class DeltaDelivery(Delivery):
    """A table whose properties say who made its rows, and which run's are there."""

    stages = True

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        try:
            import deltalake
        except ImportError as error:
            raise missing_extra("deltalake", "delta") from error
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
        kept = found.metadata().configuration
        lots = self._count(found, generation_of(self.shipment, kept))
        refuse_others(self.address, self.shipment, kept, lots)
        # The log counts the lots; the properties say of which generation they are.
        wanted = note(self.shipment, 0)
        if not wanted.items() <= kept.items():
            found.alter.set_table_properties(wanted, raise_if_not_exists=False)

    def count(self) -> int:
        found = self._find()
        return 0 if found is None else self._count(found, self.shipment.generation)

    def _count(self, table: Any, generation: str) -> int:
        return int(table.transaction_version(self._app(generation)) or 0)

    def _app(self, generation: str) -> str:
        return f"shardmill.{self.shipment.plan}.{generation}"

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
        properties = self._delta.CommitProperties(
            max_commit_retries=0,
            app_transactions=[self._delta.Transaction(self._app(self.shipment.generation), first + len(lots))],
        )
        try:
            table.create_write_transaction(added, "append", table.schema(), [], commit_properties=properties)
        except self._delta.exceptions.CommitFailedError:
            return False
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise self._lost(error) from error
        return True

    def scan(self) -> Iterator[pa.RecordBatch]:
        dataset = self._open().to_pyarrow_dataset()
        for batch in dataset.to_batches(columns=self.shipment.schema.names, batch_size=_READ_ROWS):
            yield from as_delivered(pa.Table.from_batches([batch]), self.shipment.schema)

    def delete(self, keys: pa.RecordBatch) -> None:
        for at in range(0, keys.num_rows, _KEYS_AT_ONCE):
            self._open().delete(any_of(keys.slice(at, _KEYS_AT_ONCE)))

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        deleted = delete_strays(self._place, self.shipment, lots, self._open().file_uris())
        return [f"{deleted} data files of attempts that died were deleted"] if deleted else []

    def _find(self) -> Any:
        try:
            return self._delta.DeltaTable(self._place, storage_options=self._options)
        except self._delta.exceptions.TableNotFoundError:
            return None
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise self._lost(error) from error

    def _open(self) -> Any:
        if (found := self._find()) is None:
            raise StoreError(f"{self.address} is gone.", hint="Deliver the run again: shardmill load --from RUN")
        return found

    def _lost(self, error: Exception) -> StoreError:
        reason = str(error).partition("\n")[0].rstrip(".")
        return StoreError(f"{self.address}: {reason}.", hint="Run the same command again: it resumes.")
