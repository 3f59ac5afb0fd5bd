"""The searches of a run. What one has opened stays open for the next."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardmill.core.errors import UsageError
from shardmill.core.fusion import choose_mode
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.search import Hit, SearchedRun, check_request, check_searchable, embed_pictures
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
        if mode != "vector" and plan.work.picture:
            raise UsageError("Pictures have no words to search by.", hint="Leave out --words, --hybrid and --language.")
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


def search_pictures(
    ledger: Ledger, plan: Plan, files: Sequence[str | os.PathLike[str]], k: int, where: str
) -> list[list[Hit]]:
    """The best items of a run over pictures for the picture in each file."""
    check_request(ledger, plan, [str(file) for file in files], k, where)
    contents = [_read_picture(file, plan.work.max_item_bytes) for file in files]
    precise = ledger.execution().get("precision") == "float32"
    queries = embed_pictures(plan.work.task, plan.work.params, contents, precise=precise)
    return [[*hits.values()] for hits in SearchedRun(ledger, plan, quiet=True).find(k, queries=queries, where=where)]


def _read_picture(file: str | os.PathLike[str], most_bytes: int) -> bytes:
    try:
        with open(file, "rb") as opened:
            content = opened.read(most_bytes + 1)
    except OSError as error:
        raise UsageError(
            f"--picture {os.fspath(file)}: {error.strerror}.", hint="Name the file of a picture."
        ) from error
    if not content or len(content) > most_bytes:
        raise UsageError(f"--picture {os.fspath(file)} has {'no bytes' if not content else 'too many bytes'}.")
    return content
