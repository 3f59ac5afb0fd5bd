"""Finds the passages for questions: in the passages of a run, or in a PostgreSQL table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import DatabaseError, UsageError
from shardmill.core.fusion import Mode, count_candidates, fuse
from shardmill.models.retrieval.passages import Passage, PassageIndex, find_rules, read_record
from shardmill.postgres import reading
from shardmill.postgres.places import find_table, is_table
from shardmill.postgres.search import TableSearch, search
from shardmill.postgres.tables import registered
from shardmill.postgres.target import Target
from shardmill.store import open_store
from shardmill.verbs.answer.params import By

_MODES: dict[By, Mode] = {"both": "hybrid", "meaning": "vector", "words": "text"}


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage and its score: a cosine, a BM25 or text rank, the fusion of both, or a cross-encoder's."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Searched:
    """What is searched: the task and model of its vectors, and what a result depends on."""

    task: str
    params: dict[str, Any]
    model: dict[str, Any]
    identity: dict[str, str]


class Retriever(Protocol):
    def find(
        self, questions: Sequence[str], vectors: NDArray[np.float32] | None, k: int
    ) -> list[list[FoundPassage]]: ...


def look_up(place: str) -> Searched:
    """What is at `place`, from its record alone."""
    if not is_table(place):
        record = read_record(place)
        graph = "exact" if record.recall is None else f"graph, recall {record.recall}"
        words = find_rules(open_store(place), record).say()
        identity = {"over": record.digest, "search": graph, **({"words": words} if words else {})}
        return Searched(record.task, record.params, record.fingerprint, identity)
    found = find_table(place)
    with reading(found.url) as connection:
        known = registered(connection, found.schema, found.table)
    if known is None:
        raise DatabaseError(
            f"{found.url}: {found.table} was not loaded by shardmill.",
            hint="Load it: shardmill load SOURCE --text FIELD --to URL --table TABLE",
        )
    if not known.target.text:
        raise UsageError(
            f"{found.table} has no text column to read answers from.", hint="Load it again with its text: --keep FIELD"
        )
    name = f"{found.schema}.{found.table}"
    return Searched(known.task, known.params, known.fingerprint, {"over": name})


def open_retriever(place: str, by: By) -> Retriever:
    return TableRetriever(place, by) if is_table(place) else RunRetriever(place, by)


class RunRetriever:
    """The passages of a run, opened once and memory-mapped."""

    def __init__(self, place: str, by: By) -> None:
        self._index, self._by = PassageIndex(place), by

    def find(self, questions: Sequence[str], vectors: NDArray[np.float32] | None, k: int) -> list[list[FoundPassage]]:
        """The best k passages of each question, at most one per item; the questions share one matrix product."""
        depth = count_candidates(k)
        meant = self._index.by_meaning(vectors, depth) if vectors is not None and self._by != "words" else []
        worded = self._index.by_words(questions, depth) if self._by != "meaning" else []
        if meant and worded:
            ranked = [fuse([a[0].tolist(), b[0].tolist()], 2 * depth) for a, b in zip(meant, worded, strict=True)]
        else:
            ranked = [list(zip(rows.tolist(), scores.tolist(), strict=True)) for rows, scores in meant or worded]
        return [self._first_of_items(each, k) for each in ranked]

    def _first_of_items(self, ranked: Sequence[tuple[int, float]], k: int) -> list[FoundPassage]:
        found: dict[int, FoundPassage] = {}
        for number, score in ranked:
            if len(found) == k:
                break
            if (item := self._index.item(number)) not in found:
                found[item] = FoundPassage(self._index.passage(number), score)
        return [*found.values()]


class TableRetriever:
    """A table, searched by its own indexes, one statement per question."""

    def __init__(self, place: str, by: By) -> None:
        self._place, self._mode = find_table(place), _MODES[by]

    def find(self, questions: Sequence[str], vectors: NDArray[np.float32] | None, k: int) -> list[list[FoundPassage]]:
        found = []
        with reading(self._place.url) as connection:
            known = registered(connection, self._place.schema, self._place.table)
            assert known is not None, "look_up refuses such a table"
            for i, question in enumerate(questions):
                vector = vectors[i] if vectors is not None and self._mode != "text" else None
                # By default a full-text search wants every word, and no passage has all the words of a question.
                words = " or ".join(re.findall(r"\w+", question))
                hits = search(connection, known.target, TableSearch(self._mode, k, vector, words))
                found.append(
                    [FoundPassage(_passage(known.target, hit.values, n), hit.score) for n, hit in enumerate(hits)]
                )
        return found


def _passage(target: Target, values: dict[str, Any], number: int) -> Passage:
    texts = [values[name] for name in target.text]
    text = "\n".join(" ".join(map(str, t)) if isinstance(t, list) else "" if t is None else str(t) for t in texts)
    key = ",".join(str(values[name]) for name in target.key) if target.key else text[:80]
    return Passage(number, key, 0, text)
