"""Which files of a folder are the shards of MDS datasets, by their index.json."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardmill.core.errors import SourceError
from shardmill.sources.files import read_object
from shardmill.sources.mds import MDS
from shardmill.sources.places import Found

INDEX = "index.json"
_READ = ("", "zstd", "gz", "bz2")


def choose_shards(place: str, found: Sequence[Found]) -> list[Found]:
    """The shards of all datasets in a folder, each in the order of its index; none if it has no shard.

    A dataset is a folder with an index, or several whose indexes were merged into one.
    """
    files = {f.entry.key: f for f in found if not f.named}
    if not any(f".{MDS}" in posixpath.basename(key) for key in files):
        return []
    indexes = [key for key in files if posixpath.basename(key) == INDEX]
    if not indexes:
        raise SourceError(
            f"{place} has no {INDEX}, so its shards may not be all, or not in order.",
            hint=f"Write the dataset to its end, or read its files as they are: '{place.rstrip('/')}/*.{MDS}'.",
        )
    indexes.sort(key=lambda key: (key.count("/"), key))
    named = [key for index in indexes for key in _shards_of(place, index, files)]
    return [files[key] for key in dict.fromkeys(named)]


def _shards_of(place: str, index: str, files: Mapping[str, Found]) -> Iterator[str]:
    where = f"{place.rstrip('/')}/{index}"
    try:
        for shard in json.loads(read_object(files[index].place))["shards"]:
            if (shard["format"], shard["version"]) != (MDS, 2):
                raise SourceError(
                    f"{where} names shards of {shard['format']}, version {shard['version']}, which are not read.",
                    hint=f"Write them as {MDS}, version 2.",
                )
            yield _file_of(where, posixpath.dirname(index), shard, files)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{where} is not an index of {MDS} shards ({type(error).__name__}: {error}).", hint="Write it again."
        ) from error


def _file_of(where: str, folder: str, shard: Mapping[str, Any], files: Mapping[str, Found]) -> str:
    """The file of a shard: as it is, or compressed."""
    for told in filter(None, (shard["raw_data"], shard["zip_data"])):
        key = posixpath.normpath(posixpath.join(folder, told["basename"]))
        if key not in files:
            continue
        packing = (shard["compression"] or "").partition(":")[0] if told is not shard["raw_data"] else ""
        if packing not in _READ:
            raise SourceError(
                f"{where}: {told['basename']} is compressed with {packing}, which is not read.",
                hint="Write it again with zstd, gz or bz2, or decompress its shards.",
            )
        if (size := files[key].entry.size) != told["bytes"]:
            raise SourceError(
                f"{where}: {told['basename']} has {size:,} bytes, not {told['bytes']:,}.",
                hint="Copy the folder again, with all its files.",
            )
        return key
    raise SourceError(
        f"{where} names {shard['raw_data']['basename']}, which is not there.",
        hint="Copy the folder again, with all its files.",
    )
