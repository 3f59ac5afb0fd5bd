"""NumPy: all vectors as one array, and the other columns in a Parquet file beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from shardmill.core.errors import ShardmillError, UsageError
from shardmill.results.files.chosen import Chosen, Merged
from shardmill.results.files.parquet import open_parquet
from shardmill.results.vectors import StoredVectors
from shardmill.store import locate, replacing


def write_npy(chosen: Chosen, out: str, *, quiet: bool) -> Merged:
    """Write `.npy`, and `.ids.parquet` beside it; a missing vector is NaN, or the lowest byte in all places."""
    vector = find_vector(chosen, ".npy")
    with replacing_pair(chosen, vector, out) as (file, beside):
        rows = write_matrix(chosen.only([vector]), file, quiet=quiet)
    return Merged.of((out, beside), rows)


@contextmanager
def replacing_pair(chosen: Chosen, vector: str, out: str) -> Iterator[tuple[IO[bytes], str]]:
    """A file for the vectors, which is written inside, and the place of the one beside it with the other columns.

    That of the vectors is the last to take its name: while it exists, the one beside it is of the same merge.
    """
    beside = out.rpartition(".")[0] + ".ids.parquet"
    others = chosen.only([name for name in chosen.columns if name != vector])
    with replacing(out) as file, replacing(beside) as ids:
        yield file, beside
        with open_parquet(ids, others.schema) as write:
            for batch in others.read("writing ids", quiet=True):
                write(batch)
        # Vectors of an earlier merge must not stand beside the new ids.
        store, key = locate(out)
        store.delete(key)


def write_matrix(vector: Chosen, file: IO[bytes], *, quiet: bool) -> int:
    """Write one column of vectors as an array. Its header, which comes first, has the number of rows."""
    stored = StoredVectors.find(vector.schema, ())
    assert stored is not None
    rows, done = vector.count(), 0
    descr = np.lib.format.dtype_to_descr(stored.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": (rows, stored.width)}
    np.lib.format.write_array_header_1_0(file, header)
    for batch in vector.read("writing vectors", quiet=quiet):
        file.write(stored.read(batch.column(0)).tobytes())
        done += batch.num_rows
    if done != rows:
        raise ShardmillError(
            f"{done:,} rows were read where {rows:,} were counted.", hint="Run the same command again."
        )
    return rows


def find_vector(chosen: Chosen, suffix: str) -> str:
    """The vectors that the task made; those that were kept from the source do not count."""
    made = StoredVectors.find(chosen.result.schema, chosen.result.kept)
    if made is None:
        raise UsageError("This run has no vector column.")
    if made.name not in chosen.columns:
        raise UsageError(f"A {suffix} file needs the vectors, {made.name!r}.", hint="Name them with --columns, too.")
    return made.name
