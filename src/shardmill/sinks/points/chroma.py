"""Chroma as a sink: `chroma://HOST:PORT/COLLECTION`, a collection of a server.

Its upserts have no order: repeatable, repaired by verify. It has no switch for indexing after the load. An upsert
keeps the fields of a row that it does not name, so each names all columns, and a null deletes what was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package
from shardmill.core.passwords import withheld
from shardmill.sinks.base import Shipment
from shardmill.sinks.points.base import METRIC, Collection, Point, PointDelivery
from shardmill.sinks.points.patience import Trouble, judge_http
from shardmill.sinks.points.payload import DIGEST
from shardmill.sinks.points.places import find_server

_PORT = 8000
_TIMEOUT_S = 60
_MADE_BY, _DIMS = "shardmill_made_by", "shardmill_dims"


class ChromaDelivery(PointDelivery):
    store = "Chroma"
    usage = "chroma://HOST:8000/COLLECTION"

    def __init__(self, address: str, shipment: Shipment) -> None:
        server = find_server(address, _PORT)
        if server is None:
            raise UsageError(f"{address} names no server.", hint=f"Write: {self.usage}")
        self._server = server
        super().__init__(address, shipment)
        try:
            import chromadb
        except ImportError as error:
            raise missing_package("chromadb") from error
        self._library: Any = chromadb
        self._rows: Any = None

    def find_collection(self) -> str:
        return self._server.path

    def takes_name(self, name: str) -> bool:
        return super().takes_name(name) and name != "" and not name.startswith(("#", "$", "chroma:"))

    def connect(self) -> Any:
        password = withheld(self.address).get("password")
        client: Any = self._library.HttpClient(
            host=self._server.host,
            port=self._server.port,
            headers={"x-chroma-token": password} if password else None,
            settings=self._library.Settings(anonymized_telemetry=False),
        )
        # It would wait for ever for a server that is stuck, and takes no setting for that.
        client._server._session.timeout = _TIMEOUT_S
        return client

    def close(self) -> None:
        super().close()
        self._rows = None

    def judge(self, error: Exception) -> Trouble:
        code = error.code() if isinstance(error, self._library.errors.ChromaError) else None
        if code == 413:
            return Trouble.TOO_LARGE
        return Trouble.PASSING if code in (429, 503) else judge_http(error)

    @property
    def rows(self) -> Any:
        """The collection as the client has it: it knows it by an id, which is another after it was created again."""
        if self._rows is None:
            self._rows = self.client.get_collection(self.collection, embedding_function=None)
        return self._rows

    def describe(self) -> Collection | None:
        self._rows = None
        try:
            model = self.rows._model
        except self._library.errors.NotFoundError:
            return None
        kept = model.metadata or {}
        index = (model.configuration_json or {}).get("hnsw") or (model.configuration_json or {}).get("spann") or {}
        return Collection(
            model.dimension or int(kept.get(_DIMS, 0)), str(index.get("space", "")), str(kept.get(_MADE_BY, ""))
        )

    def create(self) -> None:
        self.client.create_collection(
            self.collection,
            configuration={"hnsw": {"space": METRIC}},
            metadata={_MADE_BY: self.shipment.made_by, _DIMS: self.dims},
            embedding_function=None,
            get_or_create=True,
        )

    def upsert(self, points: Sequence[Point]) -> None:
        most = self.client.get_max_batch_size()
        names = [*self.columns, DIGEST]
        for at in range(0, len(points), most):
            some = points[at : at + most]
            self.rows.upsert(
                ids=[p.id for p in some],
                embeddings=[p.vector for p in some],
                metadatas=[{name: p.payload.get(name) for name in names} for p in some],
            )

    def find(self, ids: Sequence[str]) -> set[str]:
        return set(self.rows.get(ids=list(ids), include=[])["ids"])

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        return self._get(ids=list(ids))

    def remove(self, ids: Sequence[str]) -> None:
        self.rows.delete(ids=list(ids))

    def pages(self) -> Iterator[list[Point]]:
        at = 0
        while page := self.ask(partial(self._page, at), at_start=not at):
            yield page
            at += len(page)

    def _page(self, at: int) -> list[Point]:
        return self._get(limit=self.page_rows, offset=at)

    def _get(self, **which: Any) -> list[Point]:
        found = self.rows.get(**which, include=["embeddings", "metadatas"])
        payloads = [{k: v for k, v in (each or {}).items() if v is not None} for each in found["metadatas"]]
        return [
            Point(id, np.asarray(vector, np.float32), payload)
            for id, vector, payload in zip(found["ids"], found["embeddings"], payloads, strict=True)
        ]
