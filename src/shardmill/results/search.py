"""Exact cosine search over a run: memory-mapped, block by block. Fine up to about ten million rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.cache import cache_folder
from shardmill.core.console import say
from shardmill.core.errors import UsageError
from shardmill.ledger import Commit, Ledger
from shardmill.models.retrieval.vectors import nearest
from shardmill.plan import ROW, Plan
from shardmill.results.documents import FILE, list_files, take_page
from shardmill.results.merge import part_schema, read_rows, vector_field, write_vectors
from shardmill.results.windows import has_windows
from shardmill.sinks.parquet import read_part
from shardmill.sources.documents.document import PAGE
from shardmill.store import LocalStore
from shardmill.tasks import open_task
from shardmill.tasks.base import START, STOP, WINDOW
from shardmill.tasks.kept import KEPT


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer: its row in the source, its cosine, and its id and kept columns; of a document, always its file.

    If items have windows, it is the nearest window: its number, and the characters of the item's text that it covers.
    If `page` or `pages` was kept of a document, it has the page that the middle of the window is on.
    """

    row: int
    score: float
    values: dict[str, Any]
    window: int | None = None
    start: int | None = None
    stop: int | None = None
    page: int | None = None

    @property
    def span(self) -> str:
        """The page, and the characters of a window."""
        page = "" if self.page is None else f"page {self.page}"
        return page if self.start is None else f"{page} [{self.start}:{self.stop}]".lstrip()

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def check_searchable(name: str, params: dict[str, Any]) -> None:
    """Refuse the result of a task that embeds no queries."""
    if open_task(name, params).embed_query is None:
        raise UsageError(f"The result of the task {name!r} cannot be searched.")


def embed_queries(
    name: str, params: dict[str, Any], texts: Sequence[str], *, precise: bool, quiet: bool = True
) -> NDArray[np.float32]:
    """One vector per text to search for, by the task of a result, which this process keeps open."""
    with KEPT.use(name, params, precise=precise) as (task, device):
        if not quiet:
            say(f"Searching with the model on {device.name}.")
        assert task.embed_query is not None, "check_searchable refuses such a task"
        return np.stack([task.embed_query(text) for text in texts])


def check_request(ledger: Ledger, plan: Plan, texts: Sequence[str], k: int) -> None:
    """Refuse what cannot be answered, before a model is loaded for it."""
    refuse_empty(texts)
    if k < 1:
        raise UsageError(f"-k {k}: must be at least 1.")
    vector_field(ledger, plan)


def search(
    ledger: Ledger,
    plan: Plan,
    queries: NDArray[np.float32],
    k: int = 5,
    *,
    quiet: bool = False,
    scratch: Path | None = None,
) -> list[list[Hit]]:
    """The `k` items nearest to each query vector, nearest first. With `scratch`, the run folder is not written."""
    return [[*found.values()] for found in search_rows(ledger, plan, queries, k, quiet=quiet, scratch=scratch)]


def search_rows(
    ledger: Ledger,
    plan: Plan,
    queries: NDArray[np.float32],
    k: int,
    *,
    quiet: bool = False,
    scratch: Path | None = None,
) -> list[dict[int, Hit]]:
    """The same, each by its row of the result: an item with windows has several."""
    matrix = open_matrix(ledger, plan, quiet=quiet, scratch=scratch)
    if queries.shape[1] != matrix.shape[1]:
        raise UsageError(f"The query has {queries.shape[1]} dimensions, the run has {matrix.shape[1]}.")
    schema = part_schema(ledger, plan)
    names = [f.name for f in schema if f.name in plan.kept]
    commits = ledger.commits.read_complete(plan)
    windows = has_windows(plan, schema)
    items = read_items(ledger, plan) if windows or plan.work.takes_part else np.arange(len(matrix))
    spans = [name for name in (WINDOW, START, STOP) if windows and name in schema.names]
    paged = [PAGE] if PAGE in schema.names and PAGE not in names else []
    files = () if FILE in names else list_files(plan)
    found = []
    for rows, scores in nearest(matrix, queries, k, items if windows else None):
        hits = {}
        for row, score in zip(rows, scores, strict=True):
            item, values = int(items[row]), _values(ledger, commits, [*names, *spans, *paged], int(row))
            span = {name: values.pop(name) for name in spans}
            page = take_page(plan, values, span.get(START), span.get(STOP))
            values = {FILE: files[item], **values} if item < len(files) else values
            hits[int(row)] = Hit(item, float(score), values, **span, page=page)
        found.append(hits)
    return found


def refuse_empty(texts: Sequence[str]) -> None:
    """Refuse a search for nothing, before a model is loaded."""
    if not all(text.strip() for text in texts):
        raise UsageError("The text to search for is empty.", hint="Describe what you look for in a few words.")


def open_matrix(ledger: Ledger, plan: Plan, *, quiet: bool = False, scratch: Path | None = None) -> NDArray[Any]:
    """All vectors of the run, memory-mapped; written once into the run folder, or into the cache for a remote run.

    If `scratch` is given, vectors that are not there yet are written into that folder.
    """
    vector_field(ledger, plan)
    commits = ledger.commits.read_complete(plan)
    digest = hashlib.sha256("".join(c.digest for c in commits).encode()).hexdigest()[:16]
    path = _matrix_folder(ledger) / f"vectors-{digest}.npy"
    if not path.exists() and scratch is not None:
        path = scratch / path.name
    if not path.exists():
        write_vectors(ledger, plan, str(path), quiet=quiet)
    matrix: NDArray[Any] = np.load(path, mmap_mode="r")
    return matrix


def read_items(ledger: Ledger, plan: Plan) -> NDArray[np.int64]:
    """The item of each row of the result."""
    return np.concatenate([batch.column(ROW).to_numpy() for batch in read_rows(ledger, plan, [])])


def _matrix_folder(ledger: Ledger) -> Path:
    if isinstance(ledger.store, LocalStore):
        return ledger.store.root / "final"
    return cache_folder()


def _values(ledger: Ledger, commits: list[Commit], names: list[str], row: int) -> dict[str, Any]:
    """Columns of one row, by its number in the result."""
    for commit in commits:
        if row >= commit.rows_in_part:
            row -= commit.rows_in_part
            continue
        for batch in read_part(ledger.store, commit, names):
            if row < batch.num_rows:
                return {n: batch.column(n)[row].as_py() for n in names}
            row -= batch.num_rows
    return {}
