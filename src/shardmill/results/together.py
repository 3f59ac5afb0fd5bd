"""A search over several runs of the same items: their lists are fused by rank, or another run ranks the best anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardmill.core.errors import UsageError
from shardmill.core.fusion import count_candidates, fuse
from shardmill.plan import Plan
from shardmill.results.search import Hit, Queries, SearchedRun

# How many of the best items are ranked anew.
_RANKED_ANEW = 100


@dataclass(frozen=True, slots=True)
class Together:
    """`beside` adds its list to those of `own`; `rerank` ranks the best items by its own vectors."""

    own: SearchedRun
    beside: SearchedRun | None = None
    rerank: SearchedRun | None = None

    def find(
        self, k: int, *, queries: Queries | None, texts: Sequence[str], words: Sequence[str], where: str
    ) -> list[dict[int, Hit]]:
        """The `k` best items for each text, by rows of `own`; `queries` and `words` as in `SearchedRun.find`."""
        if self.beside is None and self.rerank is None:
            return self.own.find(k, queries=queries, texts=words, where=where)
        allowed = self.own.find_allowed(where) if where else None
        depth = max(count_candidates(k), _RANKED_ANEW if self.rerank is not None else 0)
        lists = [
            [[(self.own.item(row), row) for row in best[0].tolist()] for best in each]
            for each in self.own.rank(depth, queries=queries, texts=words, allowed=allowed)
        ]
        if self.beside is not None:
            kept = (
                None
                if allowed is None
                else self.beside.rows_of([self.own.item(row) for row in allowed.nonzero()[0].tolist()])
            )
            (added,) = self.beside.rank(depth, queries=self.beside.embed(texts), allowed=kept)
            lists.append([[(self.beside.item(row), -1) for row in best[0].tolist()] for best in added])
        anew = None if self.rerank is None else self.rerank.embed(texts)
        ranked = []
        for number, of_text in enumerate(zip(*lists, strict=True)):
            best = fuse([[item for item, _ in each] for each in of_text], k if anew is None else depth)
            rows = {item: row for each in reversed(of_text) for item, row in each if row >= 0}
            if anew is not None:
                best = self._rank_anew(anew[number : number + 1], [item for item, _ in best], k)
            missing = [item for item, _ in best if item not in rows]
            for row in self.own.rows_of(missing).nonzero()[0].tolist() if missing else ():
                rows.setdefault(self.own.item(row), row)
            ranked.append([(rows[item], score) for item, score in best])
        return self.own.read_hits(ranked)

    def _rank_anew(self, query: Queries, items: list[int], k: int) -> list[tuple[int, float]]:
        assert self.rerank is not None
        ((best,),) = self.rerank.rank(k, queries=query, allowed=self.rerank.rows_of(items))
        return [(self.rerank.item(row), float(score)) for row, score in zip(*best, strict=True)]


def check_same_items(plan: Plan, other: Plan, place: str) -> None:
    """Refuse to search a run together with one whose rows are of other items."""
    if _items_of(plan) != _items_of(other):
        raise UsageError(
            f"{place} was not made from the same items.",
            hint="Make both runs from the same source, with the same --where, --take and --limit.",
        )


def _items_of(plan: Plan) -> list[object]:
    work = plan.work
    return [work.query, work.where, work.take, work.limit, [file.identity for file in plan.stat.files]]
