"""Files that a run makes beside its rows, such as a trained model: a folder that others load as it is."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardmill.ledger.folder import Folder
from shardmill.store import replacing

MODEL = "model"
_COPIED_BYTES = 4 << 20


class PublishedFiles:
    """The folder `model` of a run. Until the item that made it is committed, it may be that of a dead attempt."""

    def __init__(self, folder: Folder) -> None:
        self._store = folder.store

    def put(self, made: Path) -> None:
        """Copy a folder there, file by file, and delete what an earlier attempt left."""
        names = [path.relative_to(made).as_posix() for path in sorted(made.rglob("*")) if path.is_file()]
        for name in names:
            with open(made / name, "rb") as data, replacing(f"{MODEL}/{name}", self._store) as file:
                shutil.copyfileobj(data, file, _COPIED_BYTES)
        there = [entry.key for entry in self._store.list(f"{MODEL}/")]
        self._store.delete_all([key for key in there if key.removeprefix(f"{MODEL}/") not in names])
