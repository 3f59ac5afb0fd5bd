"""Iceberg as a sink: workers write data files, and a commit adds many of them and the number of lots at once.

The number is a property of the table: snapshots expire. A commit is refused if the table has another snapshot than the
one that it was made for, and the library's own retries are off: they would add the same rows to the new one.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from shardmill.core.errors import ShardmillError, StoreError, UsageError
from shardmill.core.extras import missing_package
from shardmill.sinks.base import Holding, Lot, Shipment, TurnStep
from shardmill.sinks.lakes.base import LakeDelivery
from shardmill.sinks.lakes.files import delete_strays, has_data_file, write_data_file
from shardmill.sinks.lakes.types import as_delivered, stored_schema
from shardmill.sinks.remembered import (
    count_lots,
    holds,
    note,
    note_step,
    read_holdings,
    refuse_columns,
    refuse_others,
)
from shardmill.store.clients import find_endpoint

SCHEME = "iceberg:"
_ADDRESS = re.compile(r"(?P<catalogue>[^/.\s]+)/(?P<names>[^/.]+(?:\.[^/.]+)+)")
_RETRIES = "commit.retry.num-retries"
_NOTHING_DELETED = "Delete operation did not match any records"
_KEYS_AT_ONCE = 500


class IcebergDelivery(LakeDelivery):
    """A table whose properties say who made its rows, and how many lots of which run it has."""

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        try:
            from pyiceberg import exceptions
        except ImportError as error:
            raise missing_package("pyiceberg") from error
        found = _ADDRESS.fullmatch(address.removeprefix(SCHEME))
        if found is None:
            raise UsageError(
                f"{address} names no Iceberg table.", hint=f"Write it as {SCHEME}CATALOGUE/NAMESPACE.TABLE"
            )
        self._errors: Any = exceptions
        self._catalogue_name = found["catalogue"]
        self._name = tuple(found["names"].split("."))
        self._schema = _simple(stored_schema(address, shipment.schema))

    @functools.cached_property
    def _catalogue(self) -> Any:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config

        name = self._catalogue_name
        variable = f"PYICEBERG_CATALOG__{name.upper().replace('-', '_')}__"
        hint = f"Describe it in ~/.pyiceberg.yaml, or set {variable}URI and {variable}WAREHOUSE."
        try:
            known: Any = Config().get_catalog_config(name)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"pyiceberg cannot read its configuration: {reason}.", hint=hint) from error
        if known is None:
            raise UsageError(f"{self.address}: pyiceberg knows no catalogue {name}.", hint=hint)
        with self._told():
            try:
                return load_catalog(name, **{**_storage(), **known})
            except ValueError as error:
                raise UsageError(f"{self.address}: {_reason(error)}.", hint=hint) from error

    def prepare(self) -> None:
        table = self._find() or self._create()
        self._refuse_unfit(table)
        refuse_others(self.address, self.shipment, table.properties)

    def count(self) -> int:
        found = self._find()
        return 0 if found is None else count_lots(self.shipment, found.properties)

    def stage(self, lot: Lot) -> dict[str, Any]:
        table = self._open()
        self._refuse_unfit(table)
        # With the ids of its fields, a file is read right after a column was renamed.
        fields = table.schema().as_arrow()
        schema = pa.schema([fields.field(name) for name in self.shipment.schema.names])
        return write_data_file(_as_place(_data_folder(table)), self.shipment, schema, lot)

    def is_staged(self, staged: dict[str, Any]) -> bool:
        return has_data_file(_as_place(_data_folder(self._open())), staged)

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        table = self._open()
        if count_lots(self.shipment, table.properties) != first:
            return False
        refuse_others(self.address, self.shipment, table.properties)
        files = [f"{_data_folder(table)}/{lot.staged['path']}" for lot in lots if lot.staged["rows"]]
        _forbid_retries(table)
        with self._told():
            try:
                with table.transaction() as change:
                    change.set_properties(note(self.shipment, first + len(lots)))
                    # No files make a snapshot, too: without one nothing would be compared.
                    change.add_files(files, check_duplicate_files=False)
            except self._errors.CommitFailedException:
                return False
        return True

    def scan(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan

        table = self._open()
        with self._told():
            rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
            # The library reads all files that it is given at once.
            for file in table.scan().plan_files():
                for batch in rows.to_record_batches([file]):
                    yield from as_delivered(pa.Table.from_batches([batch]), self.shipment.schema)

    def delete(self, keys: pa.RecordBatch) -> None:
        self._refuse_dots(keys)
        for at in range(0, keys.num_rows, _KEYS_AT_ONCE):
            with self._told(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", _NOTHING_DELETED)
                self._open().delete(_any_of(keys.slice(at, _KEYS_AT_ONCE)))

    def replace(self, lots: int, rows: pa.RecordBatch) -> bool:
        table, keys = self._open(), self._keys_of(rows)
        self._refuse_dots(keys)
        if count_lots(self.shipment, table.properties) != lots:
            return False
        _forbid_retries(table)
        with self._told():
            try:
                with table.transaction() as change:
                    self._exchange(table, change, keys, rows)
            except self._errors.CommitFailedException:
                return False
        return True

    def holdings(self) -> dict[str, tuple[str, Holding]]:
        found = self._find()
        return {} if found is None else read_holdings(found.properties)

    def turn(self, step: TurnStep) -> bool:
        table = self._open()
        self._refuse_dots(self._keys_of(step.keys))
        if not holds(step, table.properties):
            return False
        with self._told():
            found = table.scan(row_filter=_any_of(step.keys)).to_arrow() if step.keys.num_rows else None
        made = step.decide([] if found is None else [*as_delivered(found, self.shipment.schema)])
        _forbid_retries(table)
        with self._told():
            try:
                with table.transaction() as change:
                    change.set_properties(note_step(self.shipment, step, made))
                    if made.keys.num_rows:
                        self._exchange(table, change, made.keys, made.rows)
                    else:
                        change.add_files([], check_duplicate_files=False)
            except self._errors.CommitFailedException:
                return False
        return True

    def _exchange(self, table: Any, change: Any, keys: pa.RecordBatch, rows: pa.RecordBatch) -> None:
        """Delete the rows with these keys, and add others."""
        fields = table.schema().as_arrow()
        schema = pa.schema([fields.field(name) for name in self.shipment.schema.names])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _NOTHING_DELETED)
            change.delete(_any_of(keys))
        if rows.num_rows:
            change.append(pa.Table.from_batches([rows]).cast(schema))

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        table = self._open()
        with self._told():
            live = [file.file.file_path for file in table.scan().plan_files()]
        deleted = delete_strays(_as_place(_data_folder(table)), self.shipment, lots, live)
        return [f"{deleted} data files of attempts that died were deleted"] if deleted else []

    def _refuse_dots(self, keys: pa.RecordBatch) -> None:
        if odd := [name for name in keys.schema.names if "." in name]:
            raise UsageError(
                f"{self.address}: pyiceberg finds no rows by the column {odd[0]}, whose name has a dot.",
                hint="Delete them with another tool, or deliver the run to a new table.",
            )

    def close(self) -> None:
        if catalogue := self.__dict__.pop("_catalogue", None):
            catalogue.close()

    def _create(self) -> Any:
        from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

        def create() -> Any:
            return self._catalogue.create_table(self._name, self._schema, properties=note(self.shipment, 0))

        with self._told():
            try:
                try:
                    return create()
                except self._errors.NoSuchNamespaceError:
                    for depth in range(1, len(self._name)):
                        self._catalogue.create_namespace_if_not_exists(self._name[:depth])
                    return create()
            except self._errors.TableAlreadyExistsError:
                # Another process has created it.
                return self._open()
            except UnsupportedPyArrowTypeException as error:
                raise UsageError(
                    f"{self.address}: the column {error.field.name} is {error.field.type}, which Iceberg cannot hold.",
                    hint="Keep it as another type: --keep NAME:string",
                ) from error
            except ValueError as error:
                raise UsageError(
                    f"{self.address} cannot be created: {_reason(error)}.",
                    hint="Look at the catalogue's configuration: its warehouse says where tables are stored.",
                ) from error

    def _refuse_unfit(self, table: Any) -> None:
        """Refuse a table with other columns, or one that says where rows go or which values they must have."""
        cut = ", ".join(field.name for field in table.spec().fields)
        filled = ", ".join(f.name for f in table.schema().fields if f.required and f.name not in self.shipment.key)
        if cut or filled:
            raise UsageError(
                f"{self.address} " + (f"is partitioned by {cut}." if cut else f"takes no rows without {filled}."),
                hint="Choose another name: it is created.",
            )
        refuse_columns(self.address, self.shipment, _simple(table.schema().as_arrow()), self._schema)

    def _find(self) -> Any:
        """The table as it is now; None if there is none."""
        with self._told():
            try:
                return self._catalogue.load_table(self._name)
            except (self._errors.NoSuchTableError, self._errors.NoSuchNamespaceError):
                return None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say what happened as one of our errors: every kind of catalogue and store has its own."""
        try:
            yield
        except ShardmillError:
            raise
        except self._errors.NotInstalledError as error:
            raise UsageError(f"{self.address}: {_reason(error)}.", hint="Then run the same command again.") from error
        except (PermissionError, self._errors.ForbiddenError, self._errors.UnauthorizedError) as error:
            raise UsageError(
                f"{self.address}: {_reason(error)}.",
                hint="Rows need the right to write to the table, and to its files.",
            ) from error
        except Exception as error:
            raise StoreError(
                f"{self.address}: {_reason(error)}.",
                hint="If the catalogue and its storage can be reached and written, run the same command again.",
            ) from error


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0].rstrip(". ")


def _forbid_retries(table: Any) -> None:
    """Of this object alone: other writers of the table may retry."""
    table.metadata = table.metadata.model_copy(update={"properties": {**table.properties, _RETRIES: "0"}})


def _storage() -> dict[str, str]:
    """Where S3 is by the environment; the library looks at its own configuration alone."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")
    told = {"s3.endpoint": find_endpoint("s3://"), "client.region": region}
    return {name: value for name, value in told.items() if value}


def _data_folder(table: Any) -> str:
    return str(table.location_provider().data_path)


def _as_place(address: str) -> str:
    """An address as our stores have it.

    >>> _as_place("file:/tables/a"), _as_place("file:///tables/a"), _as_place("s3://bucket/a")
    ('/tables/a', '/tables/a', 's3://bucket/a')
    """
    return re.sub("^file:/+", "/", address)


_SIMPLE = {
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.date64(): pa.date32(),
}


def _simple(schema: pa.Schema) -> pa.Schema:
    """The columns with types that Iceberg has, each in the one way of several to write it."""
    return pa.schema([pa.field(field.name, _simple_type(field.type)) for field in schema])


def _simple_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", _simple_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _simple_type(field.type)) for field in kind])
    return _SIMPLE.get(kind, kind)


def _any_of(keys: pa.RecordBatch) -> Any:
    """A condition that holds for the rows with these values of the key columns."""
    from pyiceberg import expressions

    make: Any = expressions
    first, *rest = keys.schema.names
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in keys.to_pylist():
        groups.setdefault(tuple(row[name] for name in rest), []).append(row[first])
    each = []
    for others, values in groups.items():
        firsts = [make.In(first, known)] if (known := [value for value in values if value is not None]) else []
        firsts += [make.IsNull(first)] if None in values else []
        same = [
            make.IsNull(name) if value is None else make.EqualTo(name, value)
            for name, value in zip(rest, others, strict=True)
        ]
        each.append(_joined(make.And, [*same, _joined(make.Or, firsts)]))
    return _joined(make.Or, each)


def _joined(how: Any, conditions: Sequence[Any]) -> Any:
    return how(*conditions) if len(conditions) > 1 else conditions[0]
