"""The vectors of a result as a FAISS index, with the other columns in a file beside it: `merge --out index.faiss`.

FAISS has no cosine. The index holds the vectors scaled to length 1 and compares by inner product, which then is the
cosine; a query must be scaled, too. The number that FAISS gives for a hit is that of its row in the file beside.

The index is built in memory, as FAISS does it; the vectors are read batch by batch. Its kind follows the guidelines of
FAISS: exact while that is fast, a graph (HNSW) where memory is no concern, and lists of vectors with a byte per number
(IVF, SQ8) where the graph does not fit. Its recall is measured, and a search parameter is stored with it: the smallest
of those tried that finds enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.batching.sizes import free_bytes
from shardmill.core.console import Bar, count, say
from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package
from shardmill.models.retrieval.vectors import Best, join_best, normalized
from shardmill.results.files.chosen import Chosen, Merged
from shardmill.results.files.npy import find_vector, replacing_pair
from shardmill.results.vectors import StoredVectors

# One core compares a query with this many vectors of 384 numbers in tens of milliseconds.
EXACT_ROWS = 100_000
# As for `shardmill index`: more than FAISS's own 40 and 16, for queries that are unlike what is stored.
_LINKS, _EXPANSION_ADD = 32, 128
# FAISS asks for 4 to 16 times the square root of the rows, and for at least 39 training vectors per list. The most
# lists bound the memory and the time of training.
_MOST_LISTS, _TRAINED_PER_LIST = 16_384, 40
# Of the free memory, what an index may take.
_SHARE = 0.8
_SEED = 0
_QUERIES, _NEAREST = 100, 10
# The exact nearest that are known of each query, to tell rows that are as near as the tenth.
_KNOWN, _AS_NEAR = 100, 1e-6
_ENOUGH = 0.95
_TRIED = {"": (0,), "efSearch": (128, 256, 512, 1024), "nprobe": (16, 32, 64, 128, 256, 512)}

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class IndexKind:
    """A kind of index: the memory that it takes, the parameter that trades time for recall, and the number of lists."""

    memory_bytes: int
    knob: str = ""
    lists: int = 0

    @property
    def name(self) -> str:
        """As FAISS's index_factory takes it."""
        if self.lists:
            return f"IVF{self.lists}_HNSW{_LINKS},SQ8"
        return f"HNSW{_LINKS}" if self.knob else "Flat"

    @property
    def sample(self) -> int:
        """The vectors that are drawn, to train on and to search for."""
        return max(_QUERIES, self.lists * _TRAINED_PER_LIST)

    def trained_on(self, vectors: int) -> IndexKind:
        """This kind, with fewer lists if few of the drawn rows have vectors; exact if hardly any has."""
        if not self.lists:
            return self
        lists = min(self.lists, vectors // _TRAINED_PER_LIST)
        return replace(self, lists=lists) if lists else IndexKind(self.memory_bytes)


def write_faiss(chosen: Chosen, out: str, *, quiet: bool = False) -> Merged:
    """Write the index, and the other columns as `.ids.parquet` beside it.

    Of the two files, the index is the last to take its name, as `.npy` is. Rows without a vector are in the file
    beside it alone.
    """
    faiss = _library()
    vector = find_vector(chosen, ".faiss")
    column = chosen.only([vector])
    stored = StoredVectors.find(column.schema, ())
    assert stored is not None
    rows = chosen.count()

    def read() -> Iterator[NDArray[Any]]:
        return (stored.read_floats(batch.column(0)) for batch in column.read("reading vectors", quiet=True))

    with replacing_pair(chosen, vector, out) as (file, beside):
        index, told = build_index(read, rows, stored.dims, quiet=quiet)
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
    return Merged.of((out, beside), rows, told)


def build_index(
    read: Callable[[], Iterator[NDArray[Any]]], rows: int, dims: int, *, quiet: bool
) -> tuple[Any, dict[str, Any]]:
    """An index of all vectors that `read` gives, which is called twice, and what is told of it.

    A row with a number that is not finite has no vector, and is left out.
    """
    faiss = _library()
    kind = choose_kind(rows, dims, free_bytes())
    if not quiet:
        say(f"The index ({kind.name}) takes about {_amount(kind.memory_bytes)} of memory while it is built.")
    sample = _draw(read(), rows, dims, kind.sample)
    kind = kind.trained_on(len(sample))
    plain = _open_index(faiss, kind, dims, rows, sample)
    index = plain if kind.lists else faiss.IndexIDMap2(plain)
    queries = np.random.default_rng(_SEED).permutation(sample)[:_QUERIES]
    del sample
    exact = _add_all(index, read(), rows, queries, quiet)
    told = {"kind": kind.name, "vectors": int(index.ntotal), "left_out": rows - int(index.ntotal)}
    told |= _set_recall(faiss, index, kind, queries, exact)
    if not quiet:
        say(_describe(told, kind))
    # Without gaps, the numbers are those that FAISS itself gives.
    return index if told["left_out"] else plain, told


def choose_kind(rows: int, dims: int, free: int) -> IndexKind:
    """The kind of index for a number of vectors and for the free memory; refused if none fits.

    >>> [choose_kind(rows, 384, 64 << 30).name for rows in (50_000, 5_000_000, 50_000_000)]
    ['Flat', 'HNSW32', 'IVF16384_HNSW32,SQ8']
    """
    # Beside each vector: its number, and a table to find it by its number.
    numbered = 4 * dims + 64
    if rows <= EXACT_ROWS:
        return IndexKind(rows * numbered)
    # Links and lists grow by doubling, and are copied when they do.
    graph = IndexKind(rows * (numbered + 3 * 8 * _LINKS), "efSearch")
    lists = max(1, min(_MOST_LISTS, int(4 * math.sqrt(rows)), rows // _TRAINED_PER_LIST))
    # While lists are trained, the drawn vectors are held twice.
    trained = lists * _TRAINED_PER_LIST * dims * 8
    small = IndexKind(max(trained, rows * (dims + 8) * 3 // 2), "nprobe", lists)
    for kind in (graph, small):
        if kind.memory_bytes <= _SHARE * free:
            return kind
    raise UsageError(
        f"A FAISS index of {rows:,} vectors of {dims} numbers takes {_amount(small.memory_bytes)} of memory; "
        f"{_amount(free)} are free.",
        hint="Write it on a machine with more memory, or write the vectors alone: --out vectors.npy",
    )


def _open_index(faiss: Any, kind: IndexKind, dims: int, rows: int, sample: Vectors) -> Any:
    """An empty index."""
    index = faiss.index_factory(dims, kind.name, faiss.METRIC_INNER_PRODUCT)
    if kind.lists:
        index.train(sample)
        return index
    if kind.knob:
        index.hnsw.efConstruction = _EXPANSION_ADD
    # Memory that grows by doubling is held twice while it is copied; a vector that shrinks keeps its memory.
    codes = faiss.downcast_index(index.storage if kind.knob else index).codes
    codes.resize(rows * dims * 4)
    codes.resize(0)
    return index


def _draw(read: Iterator[NDArray[Any]], rows: int, dims: int, size: int) -> Vectors:
    """The vectors of rows drawn from all, at length 1; of those that have none, nothing."""
    wanted = np.sort(np.random.default_rng(_SEED).choice(rows, min(size, rows), replace=False))
    drawn, first = [np.zeros((0, dims), np.float32)], 0
    for matrix in read:
        start, stop = np.searchsorted(wanted, [first, first + len(matrix)])
        drawn.append(_finite(matrix[wanted[start:stop] - first])[1])
        first += len(matrix)
    return np.concatenate(drawn)


def _add_all(index: Any, read: Iterator[NDArray[Any]], rows: int, queries: Vectors, quiet: bool) -> list[Best]:
    """Add all vectors by their numbers; the exact nearest of the queries are found in passing."""
    exact: list[Best] = [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries)
    done = 0
    with Bar("indexing", quiet=quiet) as bar:
        for matrix in read:
            there, units = _finite(matrix)
            if len(there):
                index.add_with_ids(units, there + done)
                scores = units @ queries.T
                exact = [join_best(found, (there + done, scores[:, i]), _KNOWN) for i, found in enumerate(exact)]
            done += len(matrix)
            bar.count(done, rows, "rows")
    return exact


def _finite(matrix: NDArray[Any]) -> tuple[NDArray[np.int64], Vectors]:
    """The rows that have a vector, and these vectors at length 1."""
    plain = np.asarray(matrix, np.float32)
    there = np.flatnonzero(np.isfinite(plain).all(axis=1))
    return there, normalized(plain[there])


def _set_recall(faiss: Any, index: Any, kind: IndexKind, queries: Vectors, exact: Sequence[Best]) -> dict[str, Any]:
    """Set the smallest search parameter that finds enough, and tell it with the recall; None if no query was drawn."""
    told: dict[str, Any] = {"recall_at_10": None}
    for value in _TRIED[kind.knob]:
        if value:
            faiss.ParameterSpace().set_index_parameter(index, kind.knob, value)
            told[kind.knob] = value
        if not len(queries):
            break
        told["recall_at_10"] = round(_recall(index, queries, exact), 4)
        if told["recall_at_10"] >= _ENOUGH:
            break
    return told


def _recall(index: Any, queries: Vectors, exact: Sequence[Best]) -> float:
    """The share of the ten exact nearest that the index finds. One of several rows as near as the tenth will do.

    A query with more such rows than are known does not count.
    """
    hits = wanted = 0
    for found, (rows, scores) in zip(index.search(queries, _NEAREST)[1], exact, strict=True):
        due = min(_NEAREST, len(rows))
        near = rows[scores >= scores[due - 1] - _AS_NEAR]
        if len(near) < _KNOWN:
            hits += min(due, len(np.intersect1d(near, found)))
            wanted += due
    return hits / wanted if wanted else 1.0


def _describe(told: dict[str, Any], kind: IndexKind) -> str:
    left_out = f", {count(told['left_out'], 'row')} without a vector left out" if told["left_out"] else ""
    made = f"{kind.name} of {count(told['vectors'], 'vector')}{left_out}"
    recall = told["recall_at_10"]
    if recall is None:
        return f"{made}, recall not measured: none of the drawn rows has a vector."
    stored = f" at {kind.knob} {told[kind.knob]}" if kind.knob else ""
    more = f" Search with a higher {kind.knob} to find more." if kind.knob and recall < _ENOUGH else ""
    return f"{made}, recall@10 {recall:.3f}{stored}.{more}"


def _amount(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e9 else f"{math.ceil(size_bytes / 1e6):,} MB"


def _library() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise missing_package("faiss-cpu") from error
    return faiss
