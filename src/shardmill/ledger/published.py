"""Files that a run makes beside its rows, such as a trained model: a folder that others load as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardmill.core.records import read_object
from shardmill.ledger.folder import Folder
from shardmill.ledger.record import encode
from shardmill.store import replacing
from shardmill.store.digests import DigestFile

MODEL = "model"
_COPIED_BYTES = 4 << 20


class PublishedFiles:
    """The folder `model` of a run. Until the item that made it is committed, it may be that of a dead attempt."""

    def __init__(self, folder: Folder) -> None:
        self._folder, self._store = folder, folder.store

    def put(self, made: Path) -> None:
        """Copy a folder there, file by file, delete what an earlier attempt left, and record the digests."""
        digests: dict[str, str] = {}
        for path in sorted(made.rglob("*")):
            if not path.is_file():
                continue
            name = path.relative_to(made).as_posix()
            with open(path, "rb") as data, replacing(f"{MODEL}/{name}", self._store) as file:
                hashed = DigestFile(file)
                shutil.copyfileobj(data, hashed, _COPIED_BYTES)
            digests[name] = hashed.hexdigest()
        there = [entry.key for entry in self._store.list(f"{MODEL}/")]
        self._store.delete_all([key for key in there if key.removeprefix(f"{MODEL}/") not in digests])
        self._store.put(self._key(), encode({"files": digests}))

    def digests(self) -> dict[str, str]:
        """The digests of its files by their keys; none if this generation of the run has published nothing."""
        try:
            record = read_object(self._store.get(self._key()), self._key())
        except FileNotFoundError:
            return {}
        return {f"{MODEL}/{name}": str(digest) for name, digest in record["files"].items()}

    def _key(self) -> str:
        return f"{MODEL}.{self._folder.known_generation()}.json"
