"""Lance as a sink: workers write fragments, and a commit adds many of them and the number of lots at once.

Two appends that know the same version are both committed, so rows are added by a `Merge` of all fragments, which is
refused if anything was committed since.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardmill.core.errors import StoreError, UsageError, missing_extra
from shardmill.sinks.base import Delivery, Lot, Shipment
from shardmill.sinks.predicates import any_of
from shardmill.sinks.remembered import count_lots, note, refuse_columns, refuse_others
from shardmill.store import locate
from shardmill.store.clients import options_for_others

SCHEME = "lance:"
_READ_ROWS = 8192
_KEYS_AT_ONCE = 500


class LanceDelivery(Delivery):
    """A dataset whose schema carries what is remembered: it is written by the same commit as the rows."""

    stages = True

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        try:
            import lance
        except ImportError as error:
            raise missing_extra("pylance", "lance") from error
        self._lance: Any = lance
        self._place = address.removeprefix(SCHEME).rstrip("/")
        self._options = options_for_others(self._place) or None

    def prepare(self) -> None:
        if Path(self._place).is_file():
            raise UsageError(f"{self._place} is a file, and a dataset of Lance a folder.", hint="Choose another name.")
        found = self._find()
        if found is None:
            schema = self.shipment.schema.with_metadata(_encode(note(self.shipment, 0)))
            try:
                self._lance.write_dataset(schema.empty_table(), self._place, storage_options=self._options)
            except (OSError, ValueError) as error:
                # Another process may have created it.
                if self._find() is None:
                    raise self._lost(error) from error
            found = self._open()
        refuse_columns(self.address, self.shipment, found.schema)
        refuse_others(self.address, self.shipment, _kept(found))

    def count(self) -> int:
        found = self._find()
        return 0 if found is None else count_lots(self.shipment, _kept(found))

    def stage(self, lot: Lot) -> dict[str, Any]:
        rows = WatchedRows(lot.read())
        reader = pa.RecordBatchReader.from_batches(self.shipment.schema, rows)
        try:
            made = self._lance.fragment.write_fragments(
                reader, self._place, self.shipment.schema, storage_options=self._options
            )
        except OSError as error:
            raise rows.error or self._lost(error) from error
        return {"fragments": [fragment.to_json() for fragment in made if fragment.physical_rows]}

    def is_staged(self, staged: dict[str, Any]) -> bool:
        names = [file["path"] for fragment in staged["fragments"] for file in fragment["files"]]
        places = [locate(f"{self._place}/data/{name}") for name in names]
        return all(store.head(key) is not None for store, key in places)

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        there = self._open()
        kept = _kept(there)
        if count_lots(self.shipment, kept) != first:
            return False
        fragments = [fragment.metadata for fragment in there.get_fragments()]
        number = 1 + max((fragment.id for fragment in fragments), default=-1)
        for staged in (each for lot in lots for each in lot.staged["fragments"]):
            fragments.append(self._lance.FragmentMetadata.from_json(json.dumps({**staged, "id": number})))
            number += 1
        kept = {**kept, **note(self.shipment, first + len(lots))}
        schema = self._lance.schema.LanceSchema.from_pyarrow(there.schema.with_metadata(_encode(kept)))
        merge = self._lance.LanceOperation.Merge(fragments, schema)
        try:
            self._lance.LanceDataset.commit(
                self._place, merge, read_version=there.version, storage_options=self._options, max_retries=0
            )
        except self._lance.commit.CommitConflictError:
            return False
        except OSError as error:
            raise self._lost(error) from error
        return True

    def scan(self) -> Iterator[pa.RecordBatch]:
        yield from self._open().to_batches(columns=self.shipment.schema.names, batch_size=_READ_ROWS)

    def delete(self, keys: pa.RecordBatch) -> None:
        for at in range(0, keys.num_rows, _KEYS_AT_ONCE):
            self._open().delete(any_of(keys.slice(at, _KEYS_AT_ONCE), mark="`"))

    def _find(self) -> Any:
        """The latest version; None if there is none."""
        try:
            return self._lance.dataset(self._place, storage_options=self._options)
        except ValueError as error:
            if "not found" in str(error):
                return None
            raise self._lost(error) from error
        except OSError as error:
            raise self._lost(error) from error

    def _open(self) -> Any:
        if (found := self._find()) is None:
            raise StoreError(f"{self.address} is gone.", hint="Deliver the run again: shardmill load --from RUN")
        return found

    def _lost(self, error: Exception) -> StoreError:
        reason = str(error).partition("\n")[0].partition(", /")[0].rstrip(".")
        return StoreError(f"{self.address}: {reason}.", hint="Run the same command again: it resumes.")


class WatchedRows:
    """Rows on their way through a library, which tells their own error as one of its own."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            self.error = error
            raise


def _kept(dataset: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in (dataset.schema.metadata or {}).items()}


def _encode(kept: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in kept.items()}
