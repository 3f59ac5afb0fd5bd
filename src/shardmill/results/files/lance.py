"""A Lance dataset: a folder, written by its own library. Extra: `lance`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from shardmill.core.errors import StoreError, UsageError
from shardmill.results.files.chosen import Chosen, Merged
from shardmill.sources.lance import import_lance
from shardmill.store import is_url, open_store
from shardmill.store.clients import options_for_others
from shardmill.store.folders import filling


def write_lance(chosen: Chosen, out: str, *, quiet: bool) -> Merged:
    """Write a new dataset; one that exists is refused. A missing vector is null.

    In S3 a dataset exists once the library commits its version, after all of its files.
    """
    lance = import_lance()
    if not is_url(out) or out.startswith("file://"):
        with filling(out) as folder:
            rows = _write(lance, chosen, folder.url, quiet)
    elif out.startswith("s3://"):
        if next(iter(open_store(out).list()), None) is not None:
            raise UsageError(f"{out} has files.", hint="Choose another place with --out, or delete it.")
        rows = _write(lance, chosen, out, quiet)
    else:
        raise UsageError(
            f"{out}: Lance datasets are written to a disk or s3://.", hint="Choose another place with --out."
        )
    return Merged((out,), rows, sum(entry.size for entry in open_store(out).list()))


def _write(lance: Any, chosen: Chosen, place: str, quiet: bool) -> int:
    rows = 0
    failed: BaseException | None = None

    def read() -> Iterator[pa.RecordBatch]:
        nonlocal rows, failed
        try:
            for batch in chosen.read("merging", quiet=quiet):
                rows += batch.num_rows
                yield batch
        except BaseException as error:
            failed = error
            raise

    reader = pa.RecordBatchReader.from_batches(chosen.schema, read())
    try:
        lance.write_dataset(reader, place, mode="create", storage_options=options_for_others(place) or None)
    except (OSError, ValueError, RuntimeError) as error:
        # The library wraps what happened while it read the rows.
        if failed is not None:
            raise failed from None
        reason = str(error).partition("\n")[0].partition(", /")[0].rstrip(".")
        raise StoreError(f"{place} cannot be written: {reason}.") from error
    return rows
