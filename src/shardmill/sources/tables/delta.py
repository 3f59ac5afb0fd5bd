"""Which files of a Delta Lake table belong to its latest version, by the log in its folder."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import unquote

from shardmill.core.errors import SourceError
from shardmill.sources.tables import MALFORMED

LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
# What a reader must know, of which nothing changes which files are read or what is in them.
_HARMLESS = {"deletionVectors", "columnMapping", "timestampNtz", "vacuumProtocolCheck", "v2Checkpoint"}
_ACTIONS = ("add.path", "add.deletionVector", "protocol", "metaData.configuration")


def live_files(place: str, keys: Collection[str], read: Callable[[str], bytes]) -> set[str]:
    """The paths of a table's files, relative to its folder; `keys` are those of all files there, which `read` reads."""
    names = [key.removeprefix(f"{LOG}/") for key in keys if key.startswith(f"{LOG}/")]
    try:
        files = _replay(place, *_find_versions(place, names), lambda name: read(f"{LOG}/{name}"))
    except MALFORMED as error:
        raise SourceError(
            f"{place}: its {LOG} cannot be read ({type(error).__name__}: {error}).",
            hint=f"Repair the table, or name the files to read: '{place}/*.parquet'",
        ) from error
    if marked := sum(bool(vector) for _, vector in files):
        raise SourceError(
            f"{place}: {marked:,} files of this Delta table have deletion vectors, which say what rows of them are "
            "deleted.",
            hint="They are not read. Write those files anew: REORG TABLE … APPLY (PURGE)",
        )
    if elsewhere := next((path for path, _ in files if "://" in path or path.startswith("/")), None):
        raise SourceError(f"{place}: this Delta table has files elsewhere: {elsewhere}.", hint="Copy it whole.")
    return {path for path, _ in files}


def _find_versions(place: str, names: Collection[str]) -> tuple[list[str], list[str]]:
    """The files of the last complete checkpoint, and the commits after it."""
    parts: dict[str, list[str]] = {}
    for name in sorted(names):
        if found := _CHECKPOINT.fullmatch(name):
            parts.setdefault(f"{found[1]} {found[3] or 1}", []).append(name)
    whole = [key for key, files in parts.items() if len(files) == int(key.split()[1])]
    checkpoint = max(whole, default="")
    first = int(checkpoint.split()[0]) + 1 if checkpoint else 0
    commits = sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)) and int(found[1]) >= first)
    if commits != list(range(first, first + len(commits))) or not (commits or checkpoint):
        raise SourceError(
            f"{place}: the {LOG} of this Delta table lacks versions from {first} on.",
            hint="Write a checkpoint with the tool that writes the table.",
        )
    return parts.get(checkpoint, []), [f"{version:020d}.json" for version in commits]


def _replay(
    place: str, checkpoint: list[str], commits: list[str], read: Callable[[str], bytes]
) -> set[tuple[str, str]]:
    """The files after the last commit, each with what names its deletion vector."""
    files: set[tuple[str, str]] = set()
    for name in (*checkpoint, *commits):
        actions = list(_actions(name, read(name)))
        # Those of one commit have no order, and a file that gets a deletion vector is removed and added in one.
        files -= {_name_file(action["remove"]) for action in actions if action.get("remove")}
        files |= {_name_file(action["add"]) for action in actions if action.get("add")}
        for action in actions:
            if protocol := action.get("protocol"):
                _refuse_features(place, {*(protocol.get("readerFeatures") or ())} - _HARMLESS)
            told = dict((action.get("metaData") or {}).get("configuration") or {})
            if told.get("delta.columnMapping.mode", "none") != "none":
                _refuse_features(place, {"columnMapping"})
    return files


def _name_file(action: dict[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector") or {}
    return unquote(action["path"]), f"{vector.get('pathOrInlineDv', '')}@{vector.get('offset')}" if vector else ""


def _actions(name: str, data: bytes) -> Iterator[dict[str, Any]]:
    if name.endswith(".json"):
        yield from (json.loads(line) for line in data.splitlines() if line.strip())
        return
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(io.BytesIO(data)).iter_batches(columns=list(_ACTIONS)):
        yield from batch.to_pylist()


def _refuse_features(place: str, features: Collection[str]) -> None:
    if features:
        raise SourceError(
            f"{place} is a Delta table with {', '.join(sorted(features))}, which is not read.",
            hint="Write it as Parquet with a tool that reads it, or give its rows from Python: shardmill.embed(frame).",
        )
