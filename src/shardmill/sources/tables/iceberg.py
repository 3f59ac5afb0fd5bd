"""Which files of an Iceberg table belong to its current snapshot, and what its columns are, by the metadata in its
folder.

The catalogue of a table is not asked: its current metadata file is the one with the highest version.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from shardmill.core.errors import SourceError
from shardmill.plan import NumberedColumn
from shardmill.sources.tables import MALFORMED

FOLDER, METADATA, _HINT = "metadata", ".metadata.json", "version-hint.text"
_VERSION = re.compile(r"(?:v(\d+)|(\d+)-.+?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_LATEST_FORMAT = 3
_SUFFIXES = {"PARQUET": ".parquet", "AVRO": ".avro"}
_DELETED = 2
_DELETES, _VECTORS = {1: "position deletes", 2: "equality deletes"}, "deletion vectors"
_AT_ONCE = 16

Read = Callable[[str], bytes]


def live_files(
    place: str, keys: Collection[str], read: Read, version: str = ""
) -> dict[str, tuple[NumberedColumn, ...]]:
    """The paths of the current snapshot's files, relative to the table's folder, each with the table's columns."""
    from shardmill.sources.avro.blocks import BadBlocks

    try:
        known = _read_json(read(f"{FOLDER}/{version or _find_version(place, keys, read)}"))
        table = _Table(place, known, keys, read)
        return dict.fromkeys(table.find_files(), table.columns())
    except (*MALFORMED, BadBlocks) as error:
        raise SourceError(
            f"{place}: its {FOLDER}/ cannot be read ({type(error).__name__}: {error}).",
            hint=f"Repair the table, or name the files to read: '{place}/data/**/*.parquet'",
        ) from error


def _find_version(place: str, keys: Collection[str], read: Read) -> str:
    """The name of the current metadata file."""
    names = [key.removeprefix(f"{FOLDER}/") for key in keys if key.startswith(f"{FOLDER}/")]
    versions: dict[int, list[str]] = {}
    for name in sorted(names):
        if found := _VERSION.fullmatch(name):
            versions.setdefault(int(found[1] or found[2]), []).append(name)
    if _HINT in names:
        # It may lag behind: who wrote the next version may have died before it told so.
        hint = read(f"{FOLDER}/{_HINT}").decode().strip()
        if not hint.isdecimal():
            return hint if hint.endswith(METADATA) else f"{hint}{METADATA}"
        last = int(hint)
        while last + 1 in versions:
            last += 1
        versions = {last: versions[last]}
    if not versions:
        raise ValueError("no name of a metadata file tells its version")
    latest = versions[max(versions)]
    if len(latest) > 1:
        raise SourceError(
            f"{place}: this Iceberg table has {len(latest)} metadata files of its last version: {', '.join(latest)}.",
            hint=f"Name the one that its catalogue has: {place}/{FOLDER}/{latest[-1]}",
        )
    return latest[0]


def _read_json(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return found


class _File(NamedTuple):
    """A file of a snapshot; its content is 0 if it has rows."""

    path: str
    format: str
    content: int
    encrypted: bool


class _Table:
    def __init__(self, place: str, known: dict[str, Any], keys: Collection[str], read: Read) -> None:
        self._place, self._known, self._keys, self._read = place, known, keys, read
        self._location = _plain(known["location"]).rstrip("/") + "/"
        if known["format-version"] > _LATEST_FORMAT:
            raise self._refuse(f"format {known['format-version']}")

    def _refuse(self, what: str, hint: str = "") -> SourceError:
        return SourceError(
            f"{self._place} is an Iceberg table with {what}, which is not read.",
            hint=hint or "Write it as Parquet with a tool that reads it, or give its rows from Python.",
        )

    def find_files(self) -> list[str]:
        """The paths of the files with the rows of the current snapshot."""
        current = self._known.get("current-snapshot-id")
        if current in (None, -1):
            raise SourceError(f"{self._place}: this Iceberg table has no snapshot, and so no rows.", hint="Write some.")
        snapshot = {each["snapshot-id"]: each for each in self._known["snapshots"]}[current]
        if "manifest-list" in snapshot:
            manifests = [each["manifest_path"] for each in self._records(snapshot["manifest-list"])]
        else:
            manifests = snapshot["manifests"]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = [file for files in pool.map(self._files_of, manifests) for file in files]
        self._check(found)
        return [self._inside(file.path) for file in found]

    def _files_of(self, manifest: str) -> list[_File]:
        entries = [each["data_file"] for each in self._records(manifest) if each["status"] != _DELETED]
        return [
            _File(
                each["file_path"], each["file_format"].upper(), each.get("content") or 0, bool(each.get("key_metadata"))
            )
            for each in entries
        ]

    def _check(self, found: list[_File]) -> None:
        """Refuse what would make rows of these files wrong."""
        if deletes := Counter(_VECTORS if f.format == "PUFFIN" else _DELETES[f.content] for f in found if f.content):
            told = ", ".join(f"{count:,} files of {what}" for what, count in sorted(deletes.items()))
            raise self._refuse(told, "Write its data files anew: CALL system.rewrite_data_files(…)")
        if any(file.encrypted for file in found):
            raise self._refuse("encrypted files")
        formats = sorted({file.format for file in found})
        if len(formats) > 1 or not {*formats} <= {*_SUFFIXES}:
            raise self._refuse(f"data files in {' and '.join(formats)}")
        if other := next((f for f in found if not f.path.lower().endswith(_SUFFIXES[f.format])), None):
            raise self._refuse(f"a file in {other.format} that is not named {_SUFFIXES[other.format]}: {other.path}")

    def _records(self, path: str) -> Iterator[dict[str, Any]]:
        from shardmill.sources.avro.blocks import AvroBlocks, library
        from shardmill.sources.avro.types import Columns

        library("iceberg")
        key = self._inside(path)
        if key not in self._keys:
            raise SourceError(f"{self._place} has no {key}, which its metadata names.", hint="Copy the table whole.")
        data = self._read(key)
        blocks = AvroBlocks(lambda start, stop: data[start:stop], len(data))
        schema = Columns(blocks.header.schema).schema
        for block in blocks.walk(blocks.header.size, len(data)):
            yield from (record for record, _ in blocks.records(block, schema))

    def _inside(self, address: str) -> str:
        """The path in the table's folder of a file that the metadata names by its address when it was written."""
        path = _plain(address)
        if not path.startswith(self._location):
            raise SourceError(
                f"{self._place}: this Iceberg table has files elsewhere: {address}.",
                hint=f"Only files below its location, {self._known['location']}, are read.",
            )
        return path.removeprefix(self._location)

    def columns(self) -> tuple[NumberedColumn, ...]:
        """The columns of the current schema that have a type in Arrow."""
        known = self._known
        current = known.get("current-schema-id")
        schema = next((each for each in known.get("schemas", ()) if each.get("schema-id") == current), None)
        schema = known["schema"] if schema is None else schema
        names = _name_mapping(known.get("properties") or {})
        specs = known.get("partition-specs") or [{"fields": known.get("partition-spec", ())}]
        cut = {field["source-id"] for spec in specs for field in spec["fields"] if field["transform"] == "identity"}
        return tuple(
            column
            for field in schema["fields"]
            for column in _column(
                field,
                names.get(field["id"], ()),
                constant=field["id"] in cut or field.get("initial-default") is not None,
            )
        )


def _plain(address: str) -> str:
    """An address in the one way of several to write it.

    >>> _plain("s3a://bucket/table/data/a.parquet"), _plain("file:/tables/a.parquet")
    ('s3://bucket/table/data/a.parquet', '/tables/a.parquet')
    """
    return re.sub("^file:/*", "/", re.sub("^s3[an]://", "s3://", address))


def _name_mapping(properties: Mapping[str, str]) -> dict[int, tuple[str, ...]]:
    """What columns are called in files that have no ids."""
    told = json.loads(properties.get("schema.name-mapping.default") or "[]")
    return {each["field-id"]: tuple(each["names"]) for each in told if "field-id" in each}


class _NoType(Exception):
    """Arrow has no such type."""


def _column(field: Any, names: tuple[str, ...], constant: bool) -> Iterator[NumberedColumn]:
    """The column; none if its type is not one of Arrow's, as a variant's."""
    from shardmill.core.arrowtypes import type_text

    if not isinstance(field["name"], str) or not isinstance(field["id"], int):
        raise ValueError(f"{field['name']!r} is no column")
    with contextlib.suppress(_NoType):
        yield NumberedColumn(field["name"], field["id"], type_text(_arrow_type(field["type"])), names, constant)


def _arrow_type(kind: Any) -> Any:
    """The Arrow type of a type; its fields have their ids."""
    import pyarrow as pa

    def field(name: str, id: int, kind: Any) -> pa.Field:
        return pa.field(name, _arrow_type(kind), metadata={"PARQUET:field_id": str(id)})

    if isinstance(kind, str):
        return _plain_type(kind)
    if "fields" in kind:
        return pa.struct([field(each["name"], each["id"], each["type"]) for each in kind["fields"]])
    if "element" in kind:
        return pa.list_(field("element", kind["element-id"], kind["element"]))
    key, value = field("key", kind["key-id"], kind["key"]), field("value", kind["value-id"], kind["value"])
    return pa.map_(key.with_nullable(False), value)


def _plain_type(kind: str) -> Any:
    import pyarrow as pa

    if found := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
        return pa.decimal128(int(found[1]), int(found[2]))
    if found := re.fullmatch(r"fixed\[(\d+)\]", kind):
        return pa.binary(int(found[1]))
    plain = {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "time": pa.time64("us"),
        "timestamp": pa.timestamp("us"),
        "timestamptz": pa.timestamp("us", "UTC"),
        "timestamp_ns": pa.timestamp("ns"),
        "timestamptz_ns": pa.timestamp("ns", "UTC"),
        "string": pa.string(),
        "uuid": pa.binary(16),
        "binary": pa.binary(),
    }
    if kind not in plain:
        raise _NoType(kind)
    return plain[kind]
