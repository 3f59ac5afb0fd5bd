"""The passages of a run on disk, in groups: texts, vectors, words and, for large runs, graphs; all memory-mapped.

RUN/final/passages.json             what there is, written last
RUN/final/passages-DIGEST/000000.arrow   row, id, start and text of each passage, of documents also file and page
                          000000.npy     its vector
                          000000.words/  BM25, and its words in order; of another language 000000.de-stems.words/
                          words.json     the language of the words, if it is not English
                          000000.graph   HNSW, if it was asked for or the run is large
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.cache import cache_folder
from shardmill.core.dialect import shell_command
from shardmill.core.errors import CorruptState, UsageError
from shardmill.models.retrieval.graph import VectorGraph
from shardmill.models.retrieval.vectors import Best, join_best, nearest
from shardmill.models.retrieval.wording import FILE, WordRules
from shardmill.models.retrieval.words import GroupedWords
from shardmill.store import LocalStore, Store, open_store

RECORD = "final/passages.json"
WORDS = ".words"
FORMAT = 1
SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("start", pa.int64()),
        pa.field("text", pa.large_string()),
        pa.field("file", pa.string()),
        pa.field("page", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage: its item's row and id, its text, and where in the item's text it starts.

    Of a document, `file` is its path. Of a window of a document of pages, `page` is the page that its middle is on.
    """

    row: int
    id: str
    start: int
    text: str
    file: str | None = None
    page: int | None = None

    def cite(self, page: int | None = None) -> str:
        """Its id and, of a document, the file and the page, or another page of it. Nothing is said twice."""
        names = [self.id]
        if self.file is not None and self.file not in (self.id, *self.id.split(",")):
            names = [self.file] if self.id == str(self.row) else [self.id, self.file]
        page = page or self.page
        return " ".join([*names, f"page {page}"] if page else names)


@dataclass(frozen=True, slots=True)
class PassageRecord:
    """What `passages.json` says: the run's content by digest, the model of its vectors, the rows of each group.

    `recall` is that of the graphs, measured against exact search; None if there are no graphs.
    """

    digest: str
    task: str
    params: dict[str, Any]
    fingerprint: dict[str, str]
    dims: int
    groups: tuple[int, ...]
    recall: float | None = None
    format: int = field(default=FORMAT)

    @property
    def rows(self) -> int:
        return sum(self.groups)

    @property
    def folder(self) -> str:
        """The folder of its files, below the run's `final`."""
        return folder_name(self.digest)

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()


def find_record(store: Store) -> PassageRecord | None:
    """The record of a run's passages, if they were written."""
    if store.head(RECORD) is None:
        return None
    try:
        values = json.loads(store.get(RECORD))
        if values["format"] != FORMAT:
            return None
        return PassageRecord(**{**values, "groups": tuple(map(int, values["groups"]))})
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptState(
            f"{store.url}/{RECORD} is damaged.", hint=f"Delete it and run: {shell_command('index', store.url)}"
        ) from error


def read_record(place: str) -> PassageRecord:
    """The record of the passages of the run at `place`; an error says how to write them."""
    store = open_store(place)
    found = find_record(store)
    if found is None:
        raise UsageError(f"{place} has no passages to search.", hint=f"Write them: {shell_command('index', place)}")
    return found


def local_folder(store: Store, digest: str) -> Path:
    """Where this machine has the files: in the run folder, or in the cache for a run in an object store."""
    home = store.root / "final" if isinstance(store, LocalStore) else cache_folder()
    return home / folder_name(digest)


def send_files(store: Store, record: PassageRecord) -> None:
    """Put the files of a run in an object store beside it, for workers on other machines."""
    if isinstance(store, LocalStore):
        return
    folder = local_folder(store, record.digest)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        key = f"final/{record.folder}/{path.relative_to(folder).as_posix()}"
        there = store.head(key)
        if there is not None and there.size == path.stat().st_size and path.name != FILE:
            continue
        with path.open("rb") as file, store.writer(key) as out:
            shutil.copyfileobj(file, out)


def fetch_files(store: Store, record: PassageRecord, *, only_words: bool = False) -> Path:
    """The folder of the files on this machine; those of a run in an object store are fetched once."""
    folder = local_folder(store, record.digest)
    if isinstance(store, LocalStore):
        return folder
    prefix = f"final/{record.folder}/"
    for entry in store.list(prefix):
        path = folder / entry.key.removeprefix(prefix)
        if only_words and path.parent.suffix != WORDS:
            continue
        if ".." in path.parts or (path.is_file() and path.stat().st_size == entry.size):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        with store.reader(entry.key) as file, partial.open("wb") as out:
            shutil.copyfileobj(file, out)
        partial.rename(path)
    for path in word_folders(folder, len(record.groups), find_rules(store, record)):
        # A group without a word has a folder without a file, which no store keeps.
        path.mkdir(parents=True, exist_ok=True)
    return folder


def find_rules(store: Store, record: PassageRecord) -> WordRules:
    """How the words of a run's passages are cut; English, if it is not recorded."""
    key = f"final/{record.folder}/{FILE}"
    return WordRules() if store.head(key) is None else WordRules.decode(store.get(key), f"{store.url}/{key}")


@dataclass
class PassageGroup:
    """The files of one group, opened when they are needed."""

    folder: Path
    name: str

    @cached_property
    def table(self) -> pa.Table:
        with pa.memory_map(str(self.folder / f"{self.name}.arrow")) as file:
            return pa.ipc.open_file(file).read_all()

    @cached_property
    def items(self) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = self.table.column("row").to_numpy()
        return rows

    @cached_property
    def matrix(self) -> NDArray[Any]:
        matrix: NDArray[Any] = np.load(self.folder / f"{self.name}.npy", mmap_mode="r")
        return matrix

    @cached_property
    def graph(self) -> VectorGraph | None:
        path = self.folder / f"{self.name}.graph"
        return VectorGraph(path, self.matrix) if path.exists() else None

    def nearest(self, queries: NDArray[np.float32], k: int) -> list[Best]:
        return nearest(self.matrix, queries, k) if self.graph is None else self.graph.search(queries, k)


class PassageIndex:
    """The passages of a run, to be searched by meaning and by words. A passage has a number, from 0."""

    def __init__(self, place: str, record: PassageRecord | None = None) -> None:
        store = open_store(place)
        self.record = record or read_record(place)
        folder = fetch_files(store, self.record)
        self.groups = [PassageGroup(folder, group_name(i)) for i in range(len(self.record.groups))]
        self._firsts = np.cumsum([0, *self.record.groups])
        self._words = open_words(folder, self.record.groups, find_rules(store, self.record))
        missing = [g for g in self.groups if not (folder / f"{g.name}.arrow").is_file()]
        if missing:
            raise CorruptState(
                f"{folder} lacks the group {missing[0].name}.", hint=f"Write it again: {shell_command('index', place)}"
            )

    def __len__(self) -> int:
        return self.record.rows

    def by_meaning(self, queries: NDArray[np.float32], k: int) -> list[Best]:
        """Numbers and cosines of the k passages nearest to each query vector."""
        return self._join([group.nearest(queries, k) for group in self.groups], len(queries), k)

    def by_words(self, texts: Sequence[str], k: int) -> list[Best]:
        """Numbers and BM25 scores of the k best passages for each text. Rare words are weighed per group."""
        return self._words.search(texts, k)

    def _join(self, found: Sequence[list[Best]], count: int, k: int) -> list[Best]:
        best: list[Best] = [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * count
        for first, group in zip(self._firsts, found, strict=False):
            best = [join_best(a, (rows + first, scores), k) for a, (rows, scores) in zip(best, group, strict=True)]
        return best

    def item(self, number: int) -> int:
        """The row in the source of a passage's item."""
        group, at = self._locate(number)
        return int(group.items[at])

    def passage(self, number: int) -> Passage:
        group, at = self._locate(number)
        values = group.table.slice(at, 1).to_pylist()[0]
        # Passages that an earlier version wrote have neither file nor page.
        return Passage(**values)

    def _locate(self, number: int) -> tuple[PassageGroup, int]:
        group = int(np.searchsorted(self._firsts, number, side="right")) - 1
        return self.groups[group], number - int(self._firsts[group])


def group_name(number: int) -> str:
    return f"{number:06d}"


def folder_name(digest: str) -> str:
    """The folder of the files of a run's content, below the run's `final`."""
    return f"passages-{digest}"


def word_folders(folder: Path, groups: int, rules: WordRules) -> list[Path]:
    """The folders with the words of each group, in one language."""
    return [folder / f"{group_name(i)}{rules.ending}{WORDS}" for i in range(groups)]


def open_words(folder: Path, groups: Sequence[int], rules: WordRules) -> GroupedWords:
    return GroupedWords(word_folders(folder, len(groups), rules), groups, rules)
