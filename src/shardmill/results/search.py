"""Search over a run: exact by cosine, memory-mapped, block by block; by words; by both. Fine up to ten million rows.

Sparse vectors are searched exactly, too, by their dot product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardmill.core.console import say
from shardmill.core.errors import UsageError
from shardmill.core.fusion import count_candidates, fuse
from shardmill.core.languages import read_language
from shardmill.ledger import Ledger
from shardmill.models.retrieval.codes import nearest_codes
from shardmill.models.retrieval.inverted import InvertedIndex, SparseQuery
from shardmill.models.retrieval.maxsim import best_by_tokens
from shardmill.models.retrieval.vectors import Best, nearest
from shardmill.models.retrieval.words import GroupedWords
from shardmill.plan import ROW, Plan
from shardmill.results.beside import place_beside
from shardmill.results.documents import FILE, list_files, take_page
from shardmill.results.filtering import Mask, check_where, find_rows
from shardmill.results.merge import digest_of, part_schema, read_rows, stored_vectors, write_vectors
from shardmill.results.passages import write_run_words
from shardmill.results.sparse import find_sparse, open_inverted
from shardmill.results.tokens import find_tokens, read_blocks
from shardmill.results.windows import has_windows
from shardmill.sinks.parquet import read_part_around
from shardmill.sources.documents.document import PAGE
from shardmill.tasks import open_task
from shardmill.tasks.base import START, STOP, WINDOW
from shardmill.tasks.by_adapter import ByAdapter
from shardmill.tasks.kept import KEPT

# What is searched for: one vector per text, or sparse ones, or the vectors of each text's tokens.
Queries = NDArray[np.float32] | Sequence[SparseQuery] | Sequence[NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer: its row in the source, its score, and its id and kept columns; of a document, always its file.

    The score is a cosine, the dot product of sparse vectors, or MaxSim of token vectors, a sum of cosines; by words it
    is BM25's, and of both the fusion of their ranks.

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
    task = open_task(name, params)
    if isinstance(task, ByAdapter):
        raise UsageError(
            "The run has vectors of several adapters, which cannot be compared with one question.",
            hint="Search with --words, or embed again with one --adapter.",
        )
    if task.embed_query is None and task.sparse_query is None:
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


def embed_pictures(
    name: str, params: dict[str, Any], pictures: Sequence[bytes], *, precise: bool
) -> NDArray[np.float32]:
    """One vector per picture to search for, likewise."""
    if open_task(name, params).embed_picture is None:
        raise UsageError("The items of this run are no pictures.", hint="Search it by words: shardmill search RUN TEXT")
    with KEPT.use(name, params, precise=precise) as (task, _):
        assert task.embed_picture is not None
        return np.stack([task.embed_picture(picture) for picture in pictures])


def _sparse_queries(
    name: str, params: dict[str, Any], texts: Sequence[str], *, precise: bool, quiet: bool
) -> list[SparseQuery]:
    """The same for a result of sparse vectors."""
    with KEPT.use(name, params, precise=precise) as (task, device):
        if not quiet:
            say(f"Searching with the model on {device.name}.")
        assert task.sparse_query is not None, "check_searchable refuses such a task"
        return [task.sparse_query(text) for text in texts]


def check_request(ledger: Ledger, plan: Plan, texts: Sequence[str], k: int, where: str = "") -> None:
    """Refuse what cannot be answered, before a model is loaded for it."""
    refuse_empty(texts)
    if k < 1:
        raise UsageError(f"-k {k}: must be at least 1.")
    schema = part_schema(ledger, plan)
    if find_sparse(schema, plan) is None and find_tokens(schema, plan) is None:
        stored_vectors(ledger, plan)
    if where:
        check_where(ledger, plan, where)


class SearchedRun:
    """A finished run that is searched. What one search has read is there for the next.

    `quiet` shows no bar. If `scratch` is given, vectors that are not there yet are written into that folder.
    """

    def __init__(self, ledger: Ledger, plan: Plan, *, quiet: bool = False, scratch: Path | None = None) -> None:
        self._ledger, self._plan, self._scratch, self.quiet = ledger, plan, scratch, quiet
        self._words: GroupedWords | None = None
        self._commits = ledger.commits.read_complete(plan)
        self._schema = part_schema(ledger, plan)
        self._has_windows = has_windows(plan, self._schema)
        self._is_sparse = find_sparse(self._schema, plan) is not None
        self._tokens = find_tokens(self._schema, plan)
        self._filter: tuple[str, Mask] | None = None

    def is_of(self, ledger: Ledger, plan: Plan) -> bool:
        """Whether the run has the content that was searched before."""
        return digest_of(self._commits) == digest_of(ledger.commits.read_complete(plan))

    def embed(self, texts: Sequence[str]) -> Queries:
        """What `find` takes as `queries`, by the run's own model."""
        work, precise = self._plan.work, self._ledger.execution().get("precision") == "float32"
        if self._is_sparse:
            return _sparse_queries(work.task, work.params, texts, precise=precise, quiet=self.quiet)
        if self._tokens is not None:
            return [embed_queries(work.task, work.params, [text], precise=precise)[0] for text in texts]
        return embed_queries(work.task, work.params, texts, precise=precise, quiet=self.quiet)

    def find(
        self,
        k: int,
        *,
        queries: Queries | None = None,
        texts: Sequence[str] = (),
        where: str = "",
    ) -> list[dict[int, Hit]]:
        """The `k` best items, best first, by their rows of the result: an item with windows has several.

        They are found by meaning if there are `queries`, by words if there are `texts`, and by both if there are both.
        """
        depth = count_candidates(k) if texts and queries is not None else k
        allowed = self.find_allowed(where) if where else None
        lists = self.rank(depth, queries=queries, texts=texts, allowed=allowed)
        if len(lists) == 1:
            return self.read_hits([zip(*best, strict=True) for best in lists[0]])
        return self.read_hits([self._fuse([best[0] for best in each], k) for each in zip(*lists, strict=True)])

    def rank(
        self, k: int, *, queries: Queries | None = None, texts: Sequence[str] = (), allowed: Mask | None = None
    ) -> list[list[Best]]:
        """The `k` best rows of each query by meaning, and those by words; of an item with windows, one row."""
        of_items = self._items if self._has_windows else None
        meant = [self._nearest(queries, k, of_items, allowed)] if queries is not None else []
        return [*meant, self.words().search(texts, k, of_items, allowed)] if texts else meant

    def _fuse(self, lists: Sequence[NDArray[np.int64]], k: int) -> Iterator[tuple[int, float]]:
        """The best rows of several lists, fused by their items; of an item with several windows, that of the first."""
        rows = {self.item(row): row for each in reversed(lists) for row in each}
        return ((rows[item], score) for item, score in fuse([[self.item(row) for row in each] for each in lists], k))

    def _nearest(
        self,
        queries: Queries,
        k: int,
        items: NDArray[np.int64] | None,
        allowed: Mask | None,
    ) -> list[Best]:
        if self._tokens is not None:
            blocks = read_blocks(self._ledger, self._plan, self._tokens, allowed)
            return best_by_tokens(blocks, cast(Sequence[NDArray[np.float32]], queries), k)
        if not isinstance(queries, np.ndarray):
            return self._inverted.search(cast(Sequence[SparseQuery], queries), k, items, allowed)
        stored = stored_vectors(self._ledger, self._plan)
        if queries.shape[1] != stored.dims:
            raise UsageError(f"The query has {queries.shape[1]} dimensions, the run has {stored.dims}.")
        if stored.quantiser is not None:
            return nearest_codes(self._matrix, stored.quantiser, queries, k, items, allowed)
        return nearest(self._matrix, queries, k, items, allowed)

    def find_allowed(self, where: str) -> Mask:
        """The rows of the result that a condition holds for."""
        if self._filter is None or self._filter[0] != where:
            self._filter = where, find_rows(self._ledger, self._plan, where, quiet=self.quiet)
        return self._filter[1]

    @cached_property
    def _matrix(self) -> NDArray[Any]:
        return open_matrix(self._ledger, self._plan, quiet=self.quiet, scratch=self._scratch)

    @cached_property
    def _inverted(self) -> InvertedIndex:
        return open_inverted(self._ledger, self._plan, quiet=self.quiet, scratch=self._scratch)

    def words(self, language: str = "") -> GroupedWords:
        """BM25 over its rows; the first search by words writes it, in the language that is asked for."""
        if self._words is None or (language and self._words.rules.language != read_language(language)):
            self._words = write_run_words(self._ledger, self._plan, language=language, quiet=self.quiet)
        return self._words

    @cached_property
    def _items(self) -> NDArray[np.int64]:
        return read_items(self._ledger, self._plan)

    @property
    def _numbers_items(self) -> bool:
        """Whether a row's number in the result is not that of its item."""
        return self._has_windows or self._plan.work.takes_part

    def item(self, row: int) -> int:
        """The item of a row of the result."""
        return int(self._items[row]) if self._numbers_items else int(row)

    def rows_of(self, items: Sequence[int]) -> Mask:
        """The rows of these items."""
        if self._numbers_items:
            return np.isin(self._items, items)
        mask = np.zeros(sum(commit.rows_in_part for commit in self._commits), bool)
        mask[items] = True
        return mask

    def read_hits(self, ranked: Sequence[Iterable[tuple[int, float]]]) -> list[dict[int, Hit]]:
        """The answers of each query, from their rows of the result and their scores."""
        plan, names = self._plan, [f.name for f in self._schema if f.name in self._plan.kept]
        spans = [name for name in (WINDOW, START, STOP) if self._has_windows and name in self._schema.names]
        paged = [PAGE] if PAGE in self._schema.names and PAGE not in names else []
        files = () if FILE in names else list_files(plan)
        rankings = [[(int(row), float(score)) for row, score in each] for each in ranked]
        read = self._read_values([*names, *spans, *paged], {row for each in rankings for row, _ in each})
        found = []
        for ranking in rankings:
            hits = {}
            for row, score in ranking:
                item, values = self.item(row), {**read[row]}
                span = {name: values.pop(name) for name in spans}
                page = take_page(plan, values, span.get(START), span.get(STOP))
                values = {FILE: files[item], **values} if item < len(files) else values
                hits[row] = Hit(item, score, values, **span, page=page)
            found.append(hits)
        return found

    def _read_values(self, names: list[str], rows: set[int]) -> dict[int, dict[str, Any]]:
        """Columns of some rows, by their numbers in the result; only the row groups that they are in are read."""
        found: dict[int, dict[str, Any]] = {row: {} for row in rows}
        stops = np.cumsum([commit.rows_in_part for commit in self._commits])
        wanted = sorted(rows) if names else []
        for part, here in itertools.groupby(wanted, lambda row: int(np.searchsorted(stops, row, side="right"))):
            commit = self._commits[part]
            before = int(stops[part]) - commit.rows_in_part
            inside = [row - before for row in here]
            for first, batch in read_part_around(self._ledger.store, commit, names, inside):
                for row in inside:
                    if first <= row < first + batch.num_rows:
                        found[before + row] = {name: batch.column(name)[row - first].as_py() for name in names}
        return found


def refuse_empty(texts: Sequence[str]) -> None:
    """Refuse a search for nothing, before a model is loaded."""
    if not all(text.strip() for text in texts):
        raise UsageError("The text to search for is empty.", hint="Describe what you look for in a few words.")


def open_matrix(ledger: Ledger, plan: Plan, *, quiet: bool = False, scratch: Path | None = None) -> NDArray[Any]:
    """All vectors of the run, memory-mapped; written once into the run folder, or into the cache for a remote run.

    If `scratch` is given, vectors that are not there yet are written into that folder.
    """
    stored_vectors(ledger, plan)
    digest = digest_of(ledger.commits.read_complete(plan))
    path = place_beside(ledger, f"vectors-{digest}.npy", scratch)
    if not path.exists():
        write_vectors(ledger, plan, str(path), quiet=quiet)
    matrix: NDArray[Any] = np.load(path, mmap_mode="r")
    return matrix


def read_items(ledger: Ledger, plan: Plan) -> NDArray[np.int64]:
    """The item of each row of the result."""
    return np.concatenate([batch.column(ROW).to_numpy() for batch in read_rows(ledger, plan, [])])
