"""The layout of a dataset of chunks, and the object whose existence marks it as complete."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from shardmill.core.errors import RunExists, StaleResume
from shardmill.sources.chunks import FORMAT, METADATA, PROGRESS
from shardmill.store import LocalStore, Store
from shardmill.verbs.split.spec import SplitSpec


@dataclass(frozen=True, slots=True)
class Chunk:
    """One written chunk, with the index of its first and last item in its part."""

    chunk_id: str
    path: str
    split: str
    item_count: int
    start_index: int
    end_index: int
    size_bytes: int
    sha256: str


class Dataset:
    """A folder `datasets/NAME` in a store."""

    def __init__(self, store: Store, spec: SplitSpec, identity: list[list[object]] | None) -> None:
        self.store, self.spec = store, spec
        self.folder = f"datasets/{spec.name}/"
        self.asked: dict[str, Any] = {**spec.to_json(), "source": identity}

    @property
    def place(self) -> str:
        return f"{self.store.url}/{self.folder}".rstrip("/")

    def metadata(self) -> dict[str, Any] | None:
        """The metadata of the dataset; None while it is incomplete."""
        return self._read(METADATA)

    def begun(self) -> list[Chunk]:
        """The chunks of an earlier attempt that still exist; refuses an attempt with other settings."""
        found = self._read(PROGRESS)
        if found is None or self.asked["source"] is None:
            return []
        self.check_same(found["asked"])
        chunks = [Chunk(**raw) for raw in found["chunks"]]
        return [c for c in chunks if self._size(c.path) == c.size_bytes]

    def remove_partials(self) -> None:
        """Remove the halves of chunks that a killed split left on a disk."""
        if isinstance(self.store, LocalStore):
            self.store.remove_partials(self.folder)

    def check_same(self, asked: dict[str, Any]) -> None:
        """Refuse to resume or reuse a dataset with other settings."""
        now = json.loads(json.dumps(self.asked))
        if now["source"] is None and asked == now:
            raise RunExists(
                f"{self.place} already exists, and it is unknown whether its items are the same.",
                hint="Choose another name, or replace it with --fresh.",
            )
        for name in now:
            if asked.get(name) != now[name]:
                what = "the source changed" if name == "source" else f"{name} was {asked.get(name)!r}, is {now[name]!r}"
                raise StaleResume(
                    f"{self.place} was started with other settings: {what}.",
                    hint="Choose another --name, or replace it with --fresh.",
                )

    def record(self, chunks: list[Chunk]) -> None:
        """Record the written chunks, only for a later attempt to resume."""
        note = {"format": FORMAT, "asked": self.asked, "chunks": [asdict(c) for c in chunks]}
        self.store.put(self.folder + PROGRESS, json.dumps(note).encode())

    def clear(self) -> None:
        """Delete the dataset, beginning with the object that marks it as complete."""
        self.store.delete(self.folder + METADATA)
        for entry in list(self.store.list(self.folder)):
            self.store.delete(entry.key)

    def publish(self, chunks: list[Chunk]) -> dict[str, Any]:
        """Make the dataset visible: the parts first, the whole last."""
        self._check_written(chunks)
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        if self.spec.splits:
            for part in self.spec.parts:
                inside = self._describe([c for c in chunks if c.split == part], created_at, f"{part}/")
                self.store.put(f"{self.folder}{part}/{METADATA}", _encode(inside))
        whole = self._describe(chunks, created_at)
        if not self.store.put_if_absent(self.folder + METADATA, _encode(whole)):
            raise RunExists(
                f"Another process wrote {self.place} in the meantime.",
                hint="Run the same command again: it checks whether the dataset is the same.",
            )
        self.store.delete(self.folder + PROGRESS)
        return whole

    def _check_written(self, chunks: list[Chunk]) -> None:
        """Check that every chunk is as this process wrote it, and delete chunks of an earlier dataset."""
        note = self._read(PROGRESS)
        if note is not None and note["asked"] != json.loads(json.dumps(self.asked)):
            raise RunExists(
                f"Another process is writing {self.place} with other settings.", hint="Choose another --name."
            )
        there = {entry.key: entry.size for entry in self.store.list(self.folder) if "/chunks/" in entry.key}
        for chunk in chunks:
            if there.pop(self.folder + chunk.path, None) != chunk.size_bytes:
                raise RunExists(
                    f"{self.place}: {chunk.path} changed after it was written.",
                    hint="Run one command at a time for this dataset.",
                )
        for stale in there:
            self.store.delete(stale)

    def _describe(self, chunks: list[Chunk], created_at: str, inside: str = "") -> dict[str, Any]:
        bucket_folder = self.store.url.partition("://")[2].partition("/")[2] if "://" in self.store.url else ""
        prefix = f"{bucket_folder}/{self.folder}" if bucket_folder else self.folder
        listed = [
            {**asdict(c), "path": c.path.removeprefix(inside), "s3_key": prefix + c.path, "compressed": self._packed}
            for c in chunks
        ]
        return {
            "format": FORMAT,
            "dataset_name": self.spec.name,
            "created_at": created_at,
            "item_format": self.spec.format,
            "chunk_size": self.spec.cut.items or max((c.item_count for c in chunks), default=0),
            "total_chunks": len(chunks),
            "actual_chunks": len(chunks),
            "total_items": sum(c.item_count for c in chunks),
            "total_bytes": sum(c.size_bytes for c in chunks),
            "asked": self.asked,
            "chunks": listed,
        }

    @property
    def _packed(self) -> bool:
        return self.spec.format != "parquet" and self.spec.compress != "none"

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.store.get(self.folder + name))
        except FileNotFoundError:
            return None
        return found

    def _size(self, path: str) -> int | None:
        found = self.store.head(self.folder + path)
        return found.size if found else None


def _encode(metadata: dict[str, Any]) -> bytes:
    return json.dumps(metadata, indent=1, ensure_ascii=False).encode()
