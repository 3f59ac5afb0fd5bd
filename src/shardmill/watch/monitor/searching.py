"""The process that searches runs: a request per line of stdin, an answer per line of stdout.

python -m shardmill.watch.monitor.searching MAP RUN…

MAP is empty if no map is searched.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core import permission
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.results.merge import read_rows, stored_vectors
from shardmill.results.search import Hit, SearchedRun, check_request, check_searchable, embed_queries
from shardmill.run.result import Run
from shardmill.watch.monitor.files import shorten

# Vectors that are searched here; a larger result wants a database.
_MOST_BYTES = 8 << 30
_LOWER_PRIORITY = 10
# The point of a row that has no place on the map.
NO_POINT = -1


class RunSearch:
    """Runs of one model, which stays loaded. No run folder is written: vectors that it lacks lie in a folder of ours.

    With a map of them, each item is told with its point on the map.
    """

    def __init__(self, urls: Sequence[str], scratch: Path, map_url: str = "") -> None:
        self._runs, self._scratch = [Run(url) for url in urls], scratch
        first = self._runs[0]
        self._points = number_points(Run(map_url), self._runs) if map_url else None
        for run in self._runs:
            permission.check(run.plan.code)
            if run.plan.fingerprint != first.plan.fingerprint:
                raise UsageError("The runs on this map have vectors of different models.")
        self._check_size()
        self._work = first.plan.work
        self._precise = first.ledger.execution().get("precision") == "float32"
        check_searchable(self._work.task, self._work.params)

    def _check_size(self) -> None:
        size = sum(_vector_bytes(run) for run in self._runs)
        if size > _MOST_BYTES:
            raise UsageError(
                f"The vectors have {size / 2**30:,.1f} GiB; the monitor searches up to {_MOST_BYTES >> 30}.",
                hint="Use `shardmill search`, or load the result into a table.",
            )

    def answer(self, text: str, k: int) -> list[dict[str, Any]]:
        for run in self._runs:
            check_request(run.ledger, run.plan, [text], k)
        query = embed_queries(self._work.task, self._work.params, [text], precise=self._precise)
        hits = []
        for number, run in enumerate(self._runs):
            searched = SearchedRun(run.ledger, run.plan, quiet=True, scratch=self._scratch)
            (found,) = searched.find(k, queries=query)
            points = None if self._points is None else self._points[number]
            hits += [(hit, None if points is None else int(points[row])) for row, hit in found.items()]
        nearest = sorted(hits, key=lambda each: -each[0].score)[:k]
        return [_show(hit) | ({} if point is None else {"point": point}) for hit, point in nearest if point != NO_POINT]


def number_points(mapped: Run, runs: Sequence[Run]) -> list[NDArray[np.int64]]:
    """The number of the point of each row of each run on a map of them, as the page counts them, or NO_POINT."""
    commits = [run.ledger.commits.read_complete(run.plan) for run in runs]
    digests = [commit.digest[:32] for each in commits for commit in each]
    if [file.edges.rpartition(":")[2] for file in mapped.plan.stat.files] != digests:
        raise UsageError("The run has changed since the map was made.", hint="Make the map again.")
    batches = read_rows(mapped.ledger, mapped.plan, ["x"])
    there = np.concatenate([batch.column("x").is_valid().to_numpy(zero_copy_only=False) for batch in batches])
    rows = [sum(commit.rows_in_part for commit in each) for each in commits]
    return np.split(np.where(there, np.cumsum(there) - 1, NO_POINT), np.cumsum(rows)[:-1])


def _vector_bytes(run: Run) -> int:
    rows = sum(commit.rows_in_part for commit in run.ledger.commits.read().values())
    return rows * stored_vectors(run.ledger, run.plan).row_bytes


def serve(map_url: str, urls: Sequence[str], requests: Any, answers: Any) -> None:
    """Answer until there are no more requests."""
    with tempfile.TemporaryDirectory(prefix="shardmill-search-") as scratch:
        opened: RunSearch | None = None
        for line in requests:
            request = json.loads(line)
            try:
                opened = opened or RunSearch(urls, Path(scratch), map_url)
                said: dict[str, Any] = {"hits": opened.answer(request["text"], request["k"])}
            except ShardmillError as error:
                said = {"error": f"{error.message} {error.hint}".strip()}
            except Exception as error:
                said = {"error": shorten(f"{type(error).__name__}: {error}")}
            answers.write(json.dumps(said) + "\n")
            answers.flush()


def _show(hit: Hit) -> dict[str, Any]:
    values = {shorten(name, 100): shorten(value) for name, value in list(hit.values.items())[:20]}
    return {"row": hit.row, "score": round(hit.score, 4), "values": values, "span": hit.span}


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(_LOWER_PRIORITY)
    # Libraries may print; only answers go where answers are expected.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.argv[2:], sys.stdin, answers)


if __name__ == "__main__":
    main()
