"""Qdrant as a sink: `qdrant://HOST:PORT/COLLECTION`, or a folder of the client's local mode, `qdrant:PATH#COLLECTION`.

It keeps vectors at length 1. Its upserts have no order: repeatable, repaired by verify. (From 1.16 on a server takes a
condition with an upsert, by which late writes could be refused; it is not used.) Tried with the local mode only: there
is no server in the tests.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardmill.core.extras import missing_package
from shardmill.core.passwords import withheld
from shardmill.sinks.base import Lot, Shipment
from shardmill.sinks.points.base import Collection, Point, PointDelivery, unfit
from shardmill.sinks.points.patience import Trouble, judge_http
from shardmill.sinks.points.places import find_file, find_server

SCHEME = "qdrant:"
_PORT = 6333
_TIMEOUT_S = 60
_MADE_BY = "shardmill_made_by"
# The links of a point in the index that Qdrant builds unless told otherwise; with 0 it builds none.
_LINKS = 16


class QdrantDelivery(PointDelivery):
    store = "Qdrant"
    usage = "qdrant://HOST:6333/COLLECTION, or qdrant:FOLDER#COLLECTION"

    def __init__(self, address: str, shipment: Shipment) -> None:
        self._server = find_server(address, _PORT)
        self._folder = "" if self._server else find_file(address, SCHEME)[0]
        super().__init__(address, shipment)
        # One process at a time may have the folder open.
        self.stages = self._server is not None
        try:
            import qdrant_client
        except ImportError as error:
            raise missing_package("qdrant-client") from error
        self._library: Any = qdrant_client
        self._models: Any = qdrant_client.models

    def find_collection(self) -> str:
        return self._server.path if self._server else find_file(self.address, SCHEME)[1]

    def connect(self) -> Any:
        if self._server is None:
            # It advises a server for collections of 20,000 points and more.
            warnings.filterwarnings("ignore", message="Local mode is not recommended", category=UserWarning)
            return self._library.QdrantClient(path=self._folder)
        return self._library.QdrantClient(
            host=self._server.host,
            port=self._server.port,
            https=False,
            api_key=withheld(self.address).get("password"),
            timeout=_TIMEOUT_S,
            check_compatibility=False,
        )

    def judge(self, error: Exception) -> Trouble:
        if isinstance(error, RuntimeError) and "already accessed" in str(error):
            return Trouble.PASSING
        if "larger than allowed" in str(error):
            return Trouble.TOO_LARGE
        return judge_http(error)

    def describe(self) -> Collection | None:
        if not self.client.collection_exists(self.collection):
            return None
        config = self.client.get_collection(self.collection).config
        vectors = config.params.vectors
        if not isinstance(vectors, self._models.VectorParams):
            raise unfit(self.address, "its vectors have names")
        return Collection(
            vectors.size, vectors.distance.value.lower(), (getattr(config, "metadata", None) or {}).get(_MADE_BY, "")
        )

    def create(self) -> None:
        models = self._models
        try:
            self.client.create_collection(
                self.collection,
                vectors_config=models.VectorParams(size=self.dims, distance=models.Distance.COSINE),
                hnsw_config=models.HnswConfigDiff(m=0),
                metadata={_MADE_BY: self.shipment.made_by},
            )
        except Exception:
            if not self.client.collection_exists(self.collection):
                raise

    def upsert(self, points: Sequence[Point]) -> None:
        new = self._models.PointStruct
        self.client.upsert(
            self.collection, [new(id=p.id, vector=p.vector.tolist(), payload=p.payload) for p in points], wait=True
        )

    def find(self, ids: Sequence[str]) -> set[str]:
        return {p.id for p in self.client.retrieve(self.collection, ids, with_payload=False)}

    def fetch(self, ids: Sequence[str]) -> list[Point]:
        return [_point(record) for record in self.client.retrieve(self.collection, ids, with_vectors=True)]

    def remove(self, ids: Sequence[str]) -> None:
        self.client.delete(self.collection, self._models.PointIdsList(points=list(ids)), wait=True)

    def pages(self) -> Iterator[list[Point]]:
        offset = None
        while True:
            found, offset = self.ask(partial(self._page, offset), at_start=offset is None)
            yield [_point(record) for record in found]
            if offset is None:
                return

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        lines = super().finish(lots)
        hnsw = self.ask(lambda: self.client.get_collection(self.collection)).config.hnsw_config
        if hnsw.m == 0 and not hnsw.payload_m:
            links = self._models.HnswConfigDiff(m=_LINKS)
            self.ask(lambda: self.client.update_collection(self.collection, hnsw_config=links))
            lines.append("its index is being built")
        return lines

    def show_as(self, name: str) -> None:
        models = self._models
        known = {each.alias_name for each in self.ask(self.client.get_aliases).aliases}
        away = [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=name))] if name in known else []
        here = models.CreateAlias(collection_name=self.collection, alias_name=name)
        changes = [*away, models.CreateAliasOperation(create_alias=here)]
        self.ask(lambda: self.client.update_collection_aliases(change_aliases_operations=changes))

    def _page(self, offset: Any) -> Any:
        return self.client.scroll(
            self.collection, limit=self.page_rows, offset=offset, with_payload=True, with_vectors=True
        )


def _point(record: Any) -> Point:
    vector = record.vector if isinstance(record.vector, list) else []
    return Point(str(record.id), np.asarray(vector, np.float32), record.payload or {})
