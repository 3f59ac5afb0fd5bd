"""The searches of a run. What one has opened stays open for the next."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardmill.core.fusion import choose_mode
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.search import Hit, SearchedRun, check_request, check_searchable
from shardmill.results.together import Together, check_same_items


class Searches:
    def __init__(self) -> None:
        self._open: dict[str, SearchedRun] = {}

    def search(
        self,
        ledger: Ledger,
        plan: Plan,
        texts: Sequence[str],
        k: int,
        *,
        where: str,
        words: bool,
        hybrid: bool,
        language: str,
        beside: str | os.PathLike[str] | None,
        rerank: str | os.PathLike[str] | None,
        quiet: bool,
    ) -> list[list[Hit]]:
        """The best items for each text; a place of another run is that of one over the same items."""
        mode, others = choose_mode(hybrid, words, language), {"beside": beside, "rerank": rerank}
        if mode != "text":
            check_searchable(plan.work.task, plan.work.params)
        check_request(ledger, plan, texts, k, where)
        opened = {name: self._open_other(place, plan, quiet) for name, place in others.items() if place is not None}
        own, queries = self._of(ledger, plan, quiet), None
        if mode != "vector":
            own.words(language)  # Refuses a run without texts before a model is loaded.
        if mode != "text":
            queries = own.embed(texts)
        asked = () if mode == "vector" else texts
        found = Together(own, **opened).find(k, queries=queries, texts=texts, words=asked, where=where)
        return [[*hits.values()] for hits in found]

    def close(self) -> None:
        """Forget what is open."""
        self._open.clear()

    def _open_other(self, place: str | os.PathLike[str], plan: Plan, quiet: bool) -> SearchedRun:
        ledger = Ledger(place)
        other = ledger.plan()
        check_searchable(other.work.task, other.work.params)
        check_same_items(plan, other, os.fspath(place))
        return self._of(ledger, other, quiet)

    def _of(self, ledger: Ledger, plan: Plan, quiet: bool) -> SearchedRun:
        there = self._open.get(ledger.url)
        if there is None or not there.is_of(ledger, plan):
            there = self._open[ledger.url] = SearchedRun(ledger, plan)
        there.quiet = quiet
        return there
