"""Writes the passages of an embed run: by groups of shards, so that a kill costs one group."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core import permission
from shardmill.core.console import Bar
from shardmill.core.errors import CorruptState, UsageError
from shardmill.ledger import Commit, Ledger
from shardmill.models.retrieval.graph import VectorGraph, measure_recall, write_graph
from shardmill.models.retrieval.passages import (
    RECORD,
    SCHEMA,
    PassageGroup,
    PassageRecord,
    find_record,
    group_name,
    local_folder,
    send_files,
)
from shardmill.models.retrieval.words import write_words
from shardmill.plan import ITEM, START, STOP, WINDOW, Plan, Shard
from shardmill.plugins import find_verb
from shardmill.results.documents import FILE, is_of_documents, list_files
from shardmill.results.merge import part_schema, vector_field
from shardmill.results.windows import count_items, has_windows
from shardmill.sinks.parquet import read_part, vectors
from shardmill.sources import Fields, Source, open_source
from shardmill.sources.documents.document import find_pages, has_pages

# Search is exact up to this many rows; beyond, graphs are built without being asked for.
EXACT_ROWS = 1_000_000
# A group has the shards that follow one another up to this many rows, or one larger shard.
GROUP_ROWS = 100_000


def write_passages(ledger: Ledger, plan: Plan, *, graph: bool = False, quiet: bool = False) -> PassageRecord:
    """Write what is missing of a run's passages; `graph` builds graphs whatever the number of rows."""
    _check_kind(ledger, plan)
    commits = ledger.commits.read_complete(plan)
    digest = hashlib.sha256("".join(c.digest for c in commits).encode()).hexdigest()[:16]
    groups = list(_groups(plan, commits))
    sizes = tuple(sum(c.rows_in_part for _, c in group) for group in groups)
    graph = graph or sum(sizes) > EXACT_ROWS
    found = find_record(ledger.store)
    if found is not None and found.digest == digest and (found.recall is not None or not graph):
        return found
    dims = vector_field(ledger, plan).type.list_size
    record = PassageRecord(digest, plan.work.task, plan.work.params, plan.fingerprint, dims, sizes)
    folder = local_folder(ledger.store, record)
    folder.mkdir(parents=True, exist_ok=True)
    with Bar("indexing", quiet=quiet) as bar:
        recalls = []
        for i, (group, rows) in enumerate(zip(groups, sizes, strict=True)):
            bar.at(i / len(groups), f"group {i + 1} of {len(groups)}, {rows:,} passages")
            _write_group(ledger, plan, group, folder, group_name(i))
            if graph:
                recalls.append(_write_graph(folder, group_name(i)))
        bar.at(1.0)
    if graph:
        record = replace(record, recall=round(float(np.average(recalls, weights=sizes)), 4))
    send_files(ledger.store, record)
    ledger.store.put(RECORD, record.encode())
    return record


def _check_kind(ledger: Ledger, plan: Plan) -> None:
    if not find_verb(plan.work.task).makes_vectors:
        raise UsageError(
            f"{ledger.url} is a run of the task {plan.work.task!r}, not of embed: it has no vectors to search.",
            hint="Embed the passages first: shardmill embed SOURCE --text FIELD --out RUN",
        )
    if plan.work.query and not _keeps_text(plan):
        raise UsageError(
            f"{ledger.url} did not keep the text of its passages, and the rows of its query may have changed.",
            hint=f"Embed again with --keep {plan.work.text}, or load a table and answer over that.",
        )
    if not _keeps_text(plan):
        permission.check(plan.code)


def _keeps_text(plan: Plan) -> bool:
    return plan.stat.columns.get(plan.work.text) in ("string", "large_string")


def _groups(plan: Plan, commits: Sequence[Commit]) -> Iterator[list[tuple[Shard, Commit]]]:
    group: list[tuple[Shard, Commit]] = []
    rows = 0
    for pair in zip(plan.shards, commits, strict=True):
        if group and rows + pair[1].rows_in_part > GROUP_ROWS:
            yield group
            group, rows = [], 0
        group.append(pair)
        rows += pair[1].rows_in_part
    yield group


def _write_group(ledger: Ledger, plan: Plan, group: list[tuple[Shard, Commit]], folder: Path, name: str) -> None:
    """Write the vectors, the words and then the texts of a group; texts that are there say that the group is done."""
    done = folder / f"{name}.arrow"
    if done.exists():
        return
    table, matrix = _read_group(ledger, plan, group)
    with _renamed(folder / f"{name}.npy") as path, path.open("wb") as file:
        np.save(file, matrix)
    with _renamed(folder / f"{name}.words") as path:
        write_words(table.column("text").to_pylist(), path)
    with _renamed(done) as path, pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_table(table)


def _write_graph(folder: Path, name: str) -> float:
    """Write the graph of a group, if it is not there, and return its recall."""
    path = folder / f"{name}.graph"
    matrix = PassageGroup(folder, name).matrix
    if not path.exists():
        with _renamed(path) as partial:
            write_graph(matrix, partial)
    return measure_recall(matrix, VectorGraph(path, matrix))


class _renamed:  # noqa: N801
    """A path to write to, which takes its name once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f"{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Path:
        if self._partial.is_dir():
            shutil.rmtree(self._partial)
        return self._partial

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            if self._path.is_dir():
                shutil.rmtree(self._path)
            os.replace(self._partial, self._path)
        elif self._partial.is_dir():
            shutil.rmtree(self._partial)
        else:
            self._partial.unlink(missing_ok=True)


def _read_group(ledger: Ledger, plan: Plan, group: list[tuple[Shard, Commit]]) -> tuple[pa.Table, Any]:
    """The passages of a group and their vectors, in source order."""
    work = plan.work
    source = None if _keeps_text(plan) else open_source(plan.stat, Fields.of(work), work.max_item_bytes)
    first = sum(c.rows for c in ledger.commits.read_complete(plan)[: group[0][0].index])
    known = {} if FILE in plan.kept else dict(enumerate(list_files(plan)))
    tables, matrices = [], []
    for shard, commit in group:
        table, matrix = _read_shard(ledger, plan, shard, commit, first, source, known)
        tables.append(table)
        matrices.append(matrix)
        first += commit.rows
    return pa.concat_tables(tables), np.concatenate(matrices)


def _read_shard(
    ledger: Ledger,
    plan: Plan,
    shard: Shard,
    commit: Commit,
    first: int,
    source: Source | None,
    known: Mapping[int, str],
) -> tuple[pa.Table, Any]:
    schema = part_schema(ledger, plan)
    spans = [name for name in (WINDOW, START, STOP) if has_windows(plan, schema) and name in schema.names]
    numbered = [ITEM] if plan.work.takes_part else []
    kept = [FILE] if FILE in plan.kept else []
    names = list(dict.fromkeys([*plan.work.id, *([] if source else [plan.work.text]), *spans, *numbered, *kept]))
    vector = vector_field(ledger, plan).name
    part = pa.Table.from_batches(read_part(ledger.store, commit, [*names, vector]))
    if numbered:
        items = part.column(ITEM).to_numpy()
    else:
        items = count_items(part.column(WINDOW).combine_chunks(), 0) if spans else np.arange(part.num_rows)
    texts = _source_texts(source, shard, commit) if source else part.column(plan.work.text).to_pylist()
    whole = [texts[i] or "" for i in items] if source else [text or "" for text in texts]
    starts = [n or 0 for n in part.column(START).to_pylist()] if START in spans else [0] * len(items)
    files: Sequence[str | None] = [None] * len(items)
    pages: Sequence[int | None] = [None] * len(items)
    if is_of_documents(plan):
        files = part.column(FILE).to_pylist() if kept else [known.get(row) for row in (first + items).tolist()]
    if STOP in spans:
        stops = [n or 0 for n in part.column(STOP).to_pylist()]
        if is_of_documents(plan):
            pages = _find_pages(items, files, whole, [(a + b) // 2 for a, b in zip(starts, stops, strict=True)])
        whole = [text[a:b] for text, a, b in zip(whole, starts, stops, strict=True)]
    columns = [first + items, _ids(part, plan.work.id, first + items), starts, whole, files, pages]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    return table, vectors(part.column(vector).combine_chunks())


def _find_pages(
    items: NDArray[np.int64], files: Sequence[str | None], texts: Sequence[str], middles: Sequence[int]
) -> list[int | None]:
    """The page that the middle of each window is on; None for documents without pages."""
    pages: list[int | None] = []
    for _, group in itertools.groupby(range(len(items)), key=items.__getitem__):
        rows = [*group]
        text = texts[rows[0]]
        paged = has_pages(files[rows[0]] or "", text)
        pages += find_pages(text, [middles[row] for row in rows]) if paged else [None] * len(rows)
    return pages


def _source_texts(source: Source, shard: Shard, commit: Commit) -> list[str | None]:
    texts = [text for batch in source.read(shard) for text in batch.texts.to_pylist()]
    if len(texts) != commit.rows:
        raise CorruptState(
            f"Shard {shard.index} has {len(texts):,} items in the source, and {commit.rows:,} in the run.",
            hint="The source has changed: embed it again, with --keep and its text column.",
        )
    return texts


def _ids(part: pa.Table, names: Sequence[str], rows: Any) -> list[str]:
    """The id of each passage as text: the values of its id columns, or the row of its item."""
    if not names:
        return [str(row) for row in rows]
    values = zip(*(part.column(name).to_pylist() for name in names), strict=True)
    return [",".join(map(str, each)) for each in values]
