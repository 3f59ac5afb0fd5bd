"""Two results of the same items, by different models, compared on queries: which of them finds better, and how far they
differ.

With gold, MRR, recall and nDCG tell which is better. Without, the overlap of the nearest items and the correlation of
their ranks tell how much a search will change. Design: docs/design/editions.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import SpecError
from shardmill.core.evaluation.ranking import ndcg, overlap, rank_correlation, recall, reciprocal_rank
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import stored_vectors
from shardmill.results.queries import Query, name_item
from shardmill.results.search import Hit, SearchedRun, embed_queries

DEPTH = 10
_WORST, _LONGEST = 10, 300
_RANKED_BY = f"nDCG@{DEPTH}"


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two results: its model, the size of its vectors, and how well it finds what is right.

    Items that `failed` have no vector, so that no query finds them.
    """

    edition: int
    model: str
    items: int
    vectors: int
    dims: int
    dtype: str
    bytes: int
    failed: int = 0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundItem:
    """An item that was found: its name, its score, what the result shows of it, and whether it is a right one."""

    name: str
    score: float
    shown: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class QueryPair:
    """What both results found for a query, and how well; `right` is None if that is not known."""

    query: str
    right: tuple[str, ...] | None
    before: tuple[FoundItem, ...]
    after: tuple[FoundItem, ...]
    overlap: float
    correlation: float
    figures_before: dict[str, float] = field(default_factory=dict)
    figures_after: dict[str, float] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        """How much better the second is; 0 if that is not known."""
        return self.figures_after.get(_RANKED_BY, 0.0) - self.figures_before.get(_RANKED_BY, 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results on the same queries. `overlap` and `correlation` are means over all of them, the figures of both
    results over those whose right items are known: `better`, `worse` and `equal` count these. `failed_gold`
    counts right items that have a vector no more.
    """

    queries: int
    sampled: bool
    with_gold: int
    missing_gold: int
    before: ComparedSide
    after: ComparedSide
    overlap: float
    correlation: float
    better: int
    worse: int
    equal: int
    worst: tuple[QueryPair, ...]
    failed_gold: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Side:
    """A finished result that is compared."""

    edition: int
    ledger: Ledger
    plan: Plan


def compare(
    before: Side, after: Side, queries: Sequence[Query], *, missing_gold: int = 0, quiet: bool = True
) -> Comparison:
    """Search both for the same queries. Items of both are the same if their ids are, or their places without ids."""
    vectors = [_embed(side, queries) for side in (before, after)]
    both = [i for i in range(len(queries)) if all(own[i] is not None for own in vectors)]
    queries = [queries[i] for i in both]
    names, shown = (
        _search(side, after, queries, [own[i] for i in both], quiet=quiet)
        for side, own in zip((before, after), vectors, strict=True)
    )
    pairs = [_pair(query, *found) for query, *found in zip(queries, names, shown, strict=True)]
    judged = [pair for pair in pairs if pair.right]
    gains = [pair.gain for pair in judged]
    return Comparison(
        queries=len(pairs),
        sampled=any(query.shard >= 0 for query in queries),
        with_gold=len(judged),
        missing_gold=missing_gold,
        before=_describe(before, [pair.figures_before for pair in judged]),
        after=_describe(after, [pair.figures_after for pair in judged]),
        overlap=_mean([pair.overlap for pair in pairs]),
        correlation=_mean([pair.correlation for pair in pairs]),
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
        equal=sum(gain == 0 for gain in gains),
        worst=tuple(sorted(pairs, key=lambda pair: (pair.gain, pair.overlap, pair.correlation))[:_WORST]),
        failed_gold=_count_failed({name for pair in judged for name in pair.right or ()}, before, after),
    )


def _embed(side: Side, queries: Sequence[Query]) -> list[NDArray[np.float32] | None]:
    """The vector of each query; None for a text of the run that has no tokens, as a row of emoji may."""
    work, precise = side.plan.work, side.ledger.execution().get("precision") == "float32"
    found: list[NDArray[np.float32] | None] = []
    for query in queries:
        try:
            found.append(embed_queries(work.task, work.params, [query.text], precise=precise)[0])
        except SpecError:
            if query.shard < 0:
                raise
            found.append(None)
    return found


def _count_failed(right: set[str], before: Side, after: Side) -> int:
    """How many of these items had a vector and have none."""
    return len(right & (_failed_items(after) - _failed_items(before))) if right else 0


def _failed_items(side: Side) -> set[str]:
    commits = side.ledger.commits.read_complete(side.plan)
    records = (record for commit in commits for record in side.ledger.errors.read(commit))
    return {name_item([*record.get("id", {}).values()]) for record in records}


def _search(
    side: Side, after: Side, queries: Sequence[Query], vectors: Sequence[Any], *, quiet: bool
) -> list[list[FoundItem]]:
    """The nearest items of each query, without the item that is the query itself."""
    if not queries:
        return []
    ledger, plan = side.ledger, side.plan
    hits = SearchedRun(ledger, plan, quiet=quiet).find(DEPTH + 1, queries=np.stack(vectors))
    firsts = _first_items(after) if not plan.work.id else []
    found = []
    for query, own_hits in zip(queries, hits, strict=True):
        own = query.own or (str(firsts[query.shard] + query.item) if query.shard >= 0 and firsts else "")
        each = [_found(hit, plan, query) for hit in own_hits.values()]
        found.append([item for item in each if not own or item.name != own][:DEPTH])
    return found


def _first_items(side: Side) -> list[int]:
    """The number of the first item of each shard."""
    counts = [commit.rows for commit in side.ledger.commits.read_complete(side.plan)]
    return [0, *np.cumsum(counts).tolist()]


def _found(hit: Hit, plan: Plan, query: Query) -> FoundItem:
    name = name_item([hit.values[column] for column in plan.work.id]) if plan.work.id else str(hit.row)
    shown = "  ".join(str(value) for value in hit.values.values() if value is not None) or f"row {hit.row}"
    cut = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
    return FoundItem(name, round(hit.score, 4), cut, right=name in (query.right or ()))


def _pair(query: Query, before: list[FoundItem], after: list[FoundItem]) -> QueryPair:
    old, new = ([item.name for item in each] for each in (before, after))
    figures = [_figures(ranked, query.right) if query.right else {} for ranked in (old, new)]
    return QueryPair(
        query.text if len(query.text) <= _LONGEST else f"{query.text[: _LONGEST - 1]}…",
        query.right,
        tuple(before),
        tuple(after),
        overlap(old, new, DEPTH),
        rank_correlation(old, new, DEPTH),
        *figures,
    )


def _figures(ranked: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    grades = dict.fromkeys(right, 1)
    return {
        f"MRR@{DEPTH}": reciprocal_rank(ranked, grades, DEPTH),
        f"recall@{DEPTH}": recall(ranked, grades, DEPTH),
        _RANKED_BY: ndcg(ranked, grades, DEPTH),
    }


def _describe(side: Side, figures: Sequence[dict[str, float]]) -> ComparedSide:
    commits = side.ledger.commits.read_complete(side.plan)
    stored = stored_vectors(side.ledger, side.plan)
    failed = sum(commit.errors for commit in commits)
    count = sum(commit.rows_in_part for commit in commits) - failed
    dropped = sum(commit.dropped for commit in commits) if side.plan.work.takes_part else 0
    return ComparedSide(
        edition=side.edition,
        model=side.plan.fingerprint.get("model", str(side.plan.work.params.get("model", side.plan.work.task))),
        items=sum(commit.rows for commit in commits) - dropped,
        vectors=count,
        dims=stored.dims,
        dtype=stored.type,
        bytes=count * stored.row_bytes,
        failed=failed,
        figures={name: _mean([each[name] for each in figures]) for name in (figures[0] if figures else ())},
    )


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
