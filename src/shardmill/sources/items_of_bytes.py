"""Items that are bytes: of a column that has them, as bytes, as base64, or as the path of a file below a folder.

The text of such an item is the digest of its bytes. So what is proved of a text, and how a changed one is found, holds
for bytes, too.

Design: docs/design/pictures.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from shardmill.core.arrowtypes import arrow_type
from shardmill.core.errors import SourceError
from shardmill.core.template import kind_of
from shardmill.sources.base import Fields, ItemBatch, Shard, Source, SourceStat
from shardmill.sources.batches import BATCH_BYTES
from shardmill.sources.below_root import BadPath, Root
from shardmill.sources.origin import HASH
from shardmill.sources.parsing import over_limit

# The fields of a value as `datasets` writes it, of which either may be null.
_BYTES, _PATH = "bytes", "path"
_DATA, _BASE64 = "data:", ";base64"
# What a path below a folder is not.
_ADDRESSES = ("http://", "https://", "s3://", "gs://", "az://", "file://")


class BadItem(Exception):
    """An item without bytes; the message is the reason."""


@dataclass(frozen=True, slots=True)
class ItemBytes:
    """The bytes of an item and the path that it names, or why it has none."""

    content: bytes | None = None
    address: str = ""
    bad: str = ""


class BytesSource(Source):
    """The items of a source with their bytes, in batches that hold few of them."""

    def __init__(self, whole: Source, fields: Fields, max_item_bytes: int) -> None:
        self._whole, self._column, self._max_item_bytes = whole, fields.picture, max_item_bytes
        self._root = Root(fields.root) if fields.root else None

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        return self._whole.notes

    def shards(self, target_bytes: int) -> list[Shard]:
        return self._whole.shards(target_bytes)

    def read(self, shard: Shard) -> Iterator[ItemBatch]:
        for batch in self._whole.read(shard):
            yield from self._fill(batch)

    def _fill(self, batch: ItemBatch) -> Iterator[ItemBatch]:
        column = batch.kept.column(self._column)
        start = size = 0
        found: list[ItemBytes] = []
        for row in range(len(batch)):
            given = row not in batch.bad and (batch.taken is None or batch.taken[row])
            found.append(self._find(column[row].as_py()) if given else ItemBytes())
            size += len(found[-1].content or b"")
            if size >= BATCH_BYTES:
                yield _with_contents(batch.part(start, row + 1), found)
                start, size, found = row + 1, 0, []
        if start < len(batch) or not len(batch):
            yield _with_contents(batch.part(start, len(batch)), found)

    def _find(self, value: Any) -> ItemBytes:
        """The bytes that a value has, or those of the file that it names."""
        path = value.get(_PATH) if isinstance(value, dict) else None
        value = value.get(_BYTES) if isinstance(value, dict) else value
        is_named = isinstance(value, str) and self._root is not None and not value.startswith(_DATA)
        address = value if is_named else path if isinstance(path, str) else ""
        try:
            return ItemBytes(self._read(value, address, is_named), address)
        except BadItem as why:
            return ItemBytes(None, address, f"{self._column!r}: {why}")

    def _read(self, value: Any, path: str, is_named: bool) -> bytes:
        if isinstance(value, bytes):
            content = value
        elif isinstance(value, str) and not is_named:
            content = self._decode(value)
        elif path:
            content = self._read_file(path)
        else:
            raise BadItem(f"it is {kind_of(value)}, not bytes")
        if not content:
            raise BadItem("it has no bytes")
        if len(content) > self._max_item_bytes:
            raise BadItem(over_limit("it", len(content), self._max_item_bytes))
        return content

    def _decode(self, text: str) -> bytes:
        head, _, rest = text.partition(",") if text.startswith(_DATA) else ("", "", text)
        if head and not head.endswith(_BASE64):
            raise BadItem(f"{head[:40]!r} is a data URL without base64")
        try:
            return base64.b64decode(rest, validate=True)
        except binascii.Error:
            hint = "" if head else "; --root FOLDER says that it is a path"
            raise BadItem(f"{text[:40]!r} is not base64{hint}") from None

    def _read_file(self, path: str) -> bytes:
        if path.startswith(_ADDRESSES):
            raise BadItem(f"{path[:80]!r} is an address, and no path below a folder")
        if self._root is None:
            raise BadItem(f"{path[:80]!r} is a path, and --root FOLDER is not given")
        try:
            return self._root.read(path, self._max_item_bytes)
        except BadPath as why:
            raise BadItem(f"{path[:80]!r} {why}") from None


def _with_contents(batch: ItemBatch, found: list[ItemBytes]) -> ItemBatch:
    contents = [each.content for each in found]
    digests = [None if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}" for content in contents]
    bad = {row: each.bad for row, each in enumerate(found) if each.bad}
    return replace(
        batch,
        texts=pa.array(digests, pa.string()),
        contents=pa.array(contents, pa.large_binary()),
        addresses=[each.address for each in found],
        bad=dict(sorted({**batch.bad, **bad}.items())),
    )


def check_column(stat: SourceStat, fields: Fields) -> None:
    """Refuse a column that cannot have bytes, and a folder that is not there."""
    if HASH in fields.id:
        raise SourceError(
            "--id hash: items that are bytes have no text to take it of.", hint="Name a field, or take --id auto."
        )
    name, kind = fields.picture, arrow_type(stat.columns[fields.picture])
    if pa.types.is_struct(kind):
        fits = not {kind.field(i).name for i in range(kind.num_fields)}.isdisjoint((_BYTES, _PATH))
    else:
        fits = any(
            is_kind(kind)
            for is_kind in (
                *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
                *(pa.types.is_binary_view, pa.types.is_string, pa.types.is_large_string),
            )
        )
    if not fits:
        raise SourceError(
            f"{name!r} has type {kind}: neither bytes, nor base64, nor paths.",
            hint="Name a column of bytes, of texts, or of records {bytes, path}.",
        )
    if fields.root:
        Root(fields.root)
