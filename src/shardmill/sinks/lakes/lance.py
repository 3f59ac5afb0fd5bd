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

from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package
from shardmill.sinks.base import Holding, Lot, Shipment, TurnStep, WatchedRows
from shardmill.sinks.lakes.base import LakeDelivery
from shardmill.sinks.predicates import any_of
from shardmill.sinks.remembered import (
    count_lots,
    holds,
    note,
    note_step,
    read_holdings,
    refuse_columns,
    refuse_others,
)
from shardmill.store import locate
from shardmill.store.clients import options_for_others

SCHEME = "lance:"
_READ_ROWS = 8192
_KEYS_AT_ONCE = 500


class LanceDelivery(LakeDelivery):
    """A dataset whose schema carries what is remembered: it is written by the same commit as the rows."""

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        try:
            import lance
        except ImportError as error:
            raise missing_package("pylance") from error
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
        return {"fragments": self._write(lot.read())}

    def _write(self, batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
        """New fragments with these rows, which nobody sees yet."""
        rows = WatchedRows(batches)
        reader = pa.RecordBatchReader.from_batches(self.shipment.schema, rows)
        try:
            made = self._lance.fragment.write_fragments(
                reader, self._place, self.shipment.schema, storage_options=self._options
            )
        except OSError as error:
            raise rows.error or self._lost(error) from error
        return [fragment.to_json() for fragment in made if fragment.physical_rows]

    def is_staged(self, staged: dict[str, Any]) -> bool:
        names = [file["path"] for fragment in staged["fragments"] for file in fragment["files"]]
        places = [locate(f"{self._place}/data/{name}") for name in names]
        return all(store.head(key) is not None for store, key in places)

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        there = self._open()
        kept = _kept(there)
        if count_lots(self.shipment, kept) != first:
            return False
        added = [each for lot in lots for each in lot.staged["fragments"]]
        fragments = [fragment.metadata for fragment in there.get_fragments()]
        return self._merge(there, fragments, added, {**kept, **note(self.shipment, first + len(lots))})

    def replace(self, lots: int, rows: pa.RecordBatch) -> bool:
        there = self._open()
        kept = _kept(there)
        if count_lots(self.shipment, kept) != lots:
            return False
        return self._exchange(there, self._keys_of(rows), rows, kept)

    def holdings(self) -> dict[str, tuple[str, Holding]]:
        found = self._find()
        return {} if found is None else read_holdings(_kept(found))

    def turn(self, step: TurnStep) -> bool:
        there, keys = self._open(), self._keys_of(step.keys)
        kept = _kept(there)
        if not holds(step, kept):
            return False
        names, where = self.shipment.schema.names, any_of(keys, mark="`") if keys.num_rows else ""
        made = step.decide(there.to_table(names, filter=where).to_batches() if where else [])
        noted = note_step(self.shipment, step, made)
        if not self._exchange(there, made.keys, made.rows, {**kept, **noted}):
            return False
        # Where whole fragments went, the notes did not go with them. The same step taken again changes no row.
        now = self._open()
        if noted.items() <= (kept := _kept(now)).items():
            return True
        fragments = [fragment.metadata for fragment in now.get_fragments()]
        return holds(step, kept) and self._merge(now, fragments, [], {**kept, **noted})

    def _exchange(self, there: Any, keys: pa.RecordBatch, rows: pa.RecordBatch, kept: dict[str, str]) -> bool:
        """Delete the rows with these keys, and add others."""
        added = self._write(iter([rows])) if rows.num_rows else []
        if not keys.num_rows:
            return self._merge(there, [fragment.metadata for fragment in there.get_fragments()], added, kept)
        where = any_of(keys, mark="`")
        try:
            left = {fragment.fragment_id: fragment.delete(where) for fragment in there.get_fragments()}
        except OSError as error:
            raise self._lost(error) from error
        if all(left.values()):
            return self._merge(there, [*left.values()], added, kept)
        # A merge keeps every fragment. An update that names all of them is refused, too, if another one was changed.
        return self._commit(
            there,
            self._lance.LanceOperation.Update(
                removed_fragment_ids=[number for number, fragment in left.items() if fragment is None],
                updated_fragments=[fragment for fragment in left.values() if fragment is not None],
                new_fragments=[self._lance.FragmentMetadata.from_json(json.dumps(each)) for each in added],
            ),
        )

    def _merge(self, there: Any, fragments: list[Any], added: list[dict[str, Any]], kept: dict[str, str]) -> bool:
        """Commit the fragments that are there, and new ones."""
        first = 1 + max((fragment.id for fragment in fragments), default=-1)
        more = [
            self._lance.FragmentMetadata.from_json(json.dumps({**each, "id": number}))
            for number, each in enumerate(added, first)
        ]
        schema = self._lance.schema.LanceSchema.from_pyarrow(there.schema.with_metadata(_encode(kept)))
        return self._commit(there, self._lance.LanceOperation.Merge([*fragments, *more], schema))

    def _commit(self, there: Any, operation: Any) -> bool:
        try:
            self._lance.LanceDataset.commit(
                self._place, operation, read_version=there.version, storage_options=self._options, max_retries=0
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


def _kept(dataset: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in (dataset.schema.metadata or {}).items()}


def _encode(kept: dict[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in kept.items()}
