"""A folder that `shardmill split` wrote: only the chunks listed in its metadata belong to it."""

from __future__ import annotations

import json
import re
from typing import Any

from shardmill.core.errors import SourceError
from shardmill.store import Entry, Store

METADATA = "chunk-metadata.json"
PROGRESS = "chunk-progress.json"
FORMAT = 1

# A chunk that is one JSON document: its items are in an array, one per line. No line of a JSONL file begins like this.
HEAD = re.compile(rb'\{"chunk_id": "[^"]*", "start_index": \d+, "items": \[\n')
TAIL = re.compile(rb'\s*, "end_index": -?\d+, "item_count": (\d+)\}\s*')


def listed_chunks(store: Store, place: str) -> list[Entry] | None:
    """The chunks of the dataset in this folder, None if it has no dataset; refuses an incomplete one."""
    try:
        metadata = json.loads(store.get(METADATA))
    except FileNotFoundError:
        if store.head(PROGRESS) is not None:
            raise SourceError(
                f"{place} is an incomplete dataset.", hint="Run the same `shardmill split` again: it resumes."
            ) from None
        return None
    except ValueError as error:
        raise SourceError(f"{place}/{METADATA}: {error}.", hint="Split the dataset again.") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise SourceError(
            f"{place}/{METADATA} was written by another version of shardmill.", hint="Split the dataset again."
        )
    there = {entry.key: entry for entry in store.list()}
    return [_entry(there.get(chunk["path"]), place, chunk) for chunk in metadata["chunks"]]


def _entry(found: Entry | None, place: str, chunk: dict[str, Any]) -> Entry:
    if found is None or found.size != chunk["size_bytes"]:
        seen = f"has {found.size:,} bytes, not {chunk['size_bytes']:,}" if found else "is missing"
        raise SourceError(f"{place}: {chunk['path']} {seen}.", hint="Split the dataset again with --fresh.")
    return found
