"""Milvus as a sink: `milvus://HOST:PORT/COLLECTION`, or a file of milvus-lite, `milvus:FILE.db#COLLECTION`.

It keeps vectors as they are. Its upserts have no order: repeatable, repaired by verify. A server builds the index of a
segment when that is full, whatever the order of commands, so the index is declared at the start. The columns of a row
are dynamic fields, of which a row may have 65,536 bytes; an upsert names all of them, for milvus-lite keeps those that
it does not name. Tried with milvus-lite, in a file and as a server.
"""

from __future__ import annotations

import fcntl
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package
from shardmill.core.passwords import withheld
from shardmill.sinks.base import Shipment
from shardmill.sinks.points.base import POINT, Collection, Point, PointDelivery, unfit
from shardmill.sinks.points.patience import Trouble
from shardmill.sinks.points.payload import DIGEST
from shardmill.sinks.points.places import find_file, find_server

SCHEME = "milvus:"
_PORT = 19530
_TIMEOUT_S = 30.0
_ID_BYTES = 36
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MADE_BY = "shardmill.made_by"
_AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "Fail connecting", "Retry timeout", "Retry run out", "rate limit")
_TOO_LARGE = ("larger than max", "exceeds maximum", "too large")


class MilvusDelivery(PointDelivery):
    store = "Milvus"
    usage = "milvus://HOST:19530/COLLECTION, or milvus:FILE.db#COLLECTION"
    payload_bytes = 65_536
    exact = True

    def __init__(self, address: str, shipment: Shipment) -> None:
        self._server = find_server(address, _PORT)
        self._file = "" if self._server else find_file(address, SCHEME)[0]
        self._vector = shipment.vector if _NAME.fullmatch(shipment.vector) else "vector"
        super().__init__(address, shipment)
        if not _NAME.fullmatch(self.collection):
            raise UsageError(
                f"{address}: the name of a collection has letters, digits and underscores.",
                hint=f"Choose another name: {self.usage}",
            )
        # One process at a time may have the file open.
        self.stages = self._server is not None
        if self._server is None and not self._file.endswith(".db"):
            raise UsageError(f"{address}: the name of the file must end with .db.", hint=f"Write: {self.usage}")
        try:
            import pymilvus

            if self._server is None:
                import milvus_lite  # noqa: F401
        except ImportError as error:
            missing = "pymilvus" if self._server else "milvus-lite"
            raise missing_package(missing) from error
        self._library: Any = pymilvus
        for chatty in ("pymilvus", "milvus_lite"):
            logging.getLogger(chatty).setLevel(logging.CRITICAL)

    def find_collection(self) -> str:
        return self._server.path if self._server else find_file(self.address, SCHEME)[1]

    def takes_name(self, name: str) -> bool:
        """It reserves names that begin with $; the others are those of fields."""
        return super().takes_name(name) and not name.startswith("$") and name not in (POINT, self._vector, "")

    def connect(self) -> Any:
        if self._server is None:
            return self._open_file()
        password = withheld(self.address).get("password", "")
        return self._library.MilvusClient(
            uri=f"http://{self._server.host}:{self._server.port}",
            token=f"{self._server.user}:{password}" if self._server.user else password,
            timeout=_TIMEOUT_S,
            dedicated=True,
        )

    def close(self) -> None:
        is_open = self._client is not None
        super().close()
        if is_open and self._server is None:
            from milvus_lite.server_manager import server_manager_instance

            server_manager_instance.release_server(self._file)

    def judge(self, error: Exception) -> Trouble:
        said = f"{getattr(error, 'code', '')} {error}"
        if any(words in said for words in _TOO_LARGE):
            return Trouble.TOO_LARGE
        is_away = isinstance(error, BlockingIOError) or getattr(error, "retriable", False)
        return Trouble.PASSING if is_away or any(words in said for words in _AWAY) else Trouble.FINAL

    def reason(self, error: Exception) -> str:
        return str(getattr(error, "message", "")) or super().reason(error)

    def describe(self) -> Collection | None:
        if not self.client.has_collection(self.collection, timeout=_TIMEOUT_S):
            return None
        found = self.client.describe_collection(self.collection, timeout=_TIMEOUT_S)
        fields = {field["name"]: field for field in found["fields"]}
        if missing := [name for name in (POINT, self._vector) if name not in fields]:
            raise unfit(self.address, f"it has no field {', '.join(missing)}")
        indexes = self.client.list_indexes(self.collection, field_name=self._vector)
        metric = self.client.describe_index(self.collection, indexes[0])["metric_type"] if indexes else ""
        if metric:
            self.client.load_collection(self.collection, timeout=_TIMEOUT_S)
        made_by = (found.get("properties") or {}).get(_MADE_BY, "")
        return Collection(int(fields[self._vector]["params"]["dim"]), metric.lower(), made_by)

    def create(self) -> None:
        kinds = self._library.DataType
        schema = self._library.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field(POINT, kinds.VARCHAR, is_primary=True, max_length=_ID_BYTES)
        schema.add_field(self._vector, kinds.FLOAT_VECTOR, dim=self.dims)
        index = self._library.MilvusClient.prepare_index_params()
        index.add_index(self._vector, index_type="AUTOINDEX", metric_type="COSINE")
        try:
            self.client.create_collection(
                self.collection,
                schema=schema,
                index_params=index,
                properties={_MADE_BY: self.shipment.made_by},
                timeout=_TIMEOUT_S,
            )
        except self._library.MilvusException:
            if not self.client.has_collection(self.collection, timeout=_TIMEOUT_S):
                raise

    def show_as(self, name: str) -> None:
        def change() -> None:
            known = self.client.list_aliases(timeout=_TIMEOUT_S)["aliases"]
            give = self.client.alter_alias if name in known else self.client.create_alias
            give(self.collection, name, timeout=_TIMEOUT_S)

        self.ask(change)

    def upsert(self, points: Sequence[Point]) -> None:
        names = [*self.columns, DIGEST]
        rows = [{name: p.payload.get(name) for name in names} | {POINT: p.id, self._vector: p.vector} for p in points]
        self.client.upsert(self.collection, rows, timeout=_TIMEOUT_S)

    def find(self, ids: Sequence[str]) -> set[str]:
        self.client.load_collection(self.collection, timeout=_TIMEOUT_S)
        found = self.client.get(
            self.collection, list(ids), output_fields=[POINT], timeout=_TIMEOUT_S, consistency_level="Strong"
        )
        return {row[POINT] for row in found}

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        self.client.load_collection(self.collection, timeout=_TIMEOUT_S)
        found = self.client.get(
            self.collection, list(ids), output_fields=["*"], timeout=_TIMEOUT_S, consistency_level="Strong"
        )
        return [self._point(dict(row)) for row in found]

    def remove(self, ids: Sequence[str]) -> None:
        self.client.delete(self.collection, ids=list(ids), timeout=_TIMEOUT_S)

    def pages(self) -> Iterator[list[Point]]:
        found = self.ask(self._read, at_start=True)
        try:
            while page := self.ask(found.next):
                yield [self._point(dict(row)) for row in page]
        finally:
            with suppress(self._library.MilvusException):
                found.close()

    def _read(self) -> Any:
        self.client.load_collection(self.collection, timeout=_TIMEOUT_S)
        return self.client.query_iterator(
            self.collection,
            batch_size=self.page_rows,
            output_fields=["*"],
            timeout=_TIMEOUT_S,
            consistency_level="Strong",
        )

    def _point(self, row: dict[str, Any]) -> Point:
        id, vector = str(row.pop(POINT)), np.asarray(row.pop(self._vector, []), np.float32)
        return Point(id, vector, {name: value for name, value in row.items() if value is not None})

    def _open_file(self) -> Any:
        """Open the file, unless another process has it open: the library would only write that into its log."""
        Path(self._file).parent.mkdir(parents=True, exist_ok=True)
        lock = Path(self._file) / "LOCK"
        if lock.exists():
            with open(lock, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._library.MilvusClient(uri=self._file, dedicated=True)
