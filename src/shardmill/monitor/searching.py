"""The process that searches one run: a request per line of stdin, an answer per line of stdout.

python -m shardmill.monitor.searching RUN [MAP]
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

from shardmill import permission
from shardmill.errors import ShardmillError, UsageError
from shardmill.monitor.files import shorten
from shardmill.results.merge import part_schema, read_rows, vector_field
from shardmill.results.search import Hit, check_request, search_rows
from shardmill.run.result import Run
from shardmill.tasks import open_here, open_task

# Vectors that are searched here; a larger result wants a database.
_MOST_BYTES = 8 << 30
_LOWER_PRIORITY = 10


class RunSearch:
    """One run with its model loaded. The run folder is not written: vectors that it lacks lie in a folder of ours.

    With a map of it, each item is told with its point on the map.
    """

    def __init__(self, url: str, scratch: Path, map_url: str = "") -> None:
        self._run, self._scratch = Run(url), scratch
        plan = self._run.plan
        self._points = number_points(Run(map_url), self._run) if map_url else None
        permission.check(plan.code)
        self._check_size()
        self._task = open_task(plan.work.task, plan.work.params)
        if self._task.embed_query is None:
            raise UsageError(f"The result of the task {plan.work.task!r} cannot be searched.")
        open_here(self._task, precise=self._run.ledger.execution().get("precision") == "float32")

    def _check_size(self) -> None:
        kind = vector_field(part_schema(self._run.ledger, self._run.plan)).type
        rows = sum(commit.rows_in_part for commit in self._run.ledger.commits.read().values())
        size = rows * kind.list_size * kind.value_type.bit_width // 8
        if size > _MOST_BYTES:
            raise UsageError(
                f"The vectors have {size / 2**30:,.1f} GiB; the monitor searches up to {_MOST_BYTES >> 30}.",
                hint="Use `shardmill search`, or load the result into a table.",
            )

    def answer(self, text: str, k: int) -> list[dict[str, Any]]:
        ledger, plan = self._run.ledger, self._run.plan
        check_request(ledger, plan, [text], k)
        assert self._task.embed_query is not None
        query = np.stack([self._task.embed_query(text)])
        found = search_rows(ledger, plan, query, k, quiet=True, scratch=self._scratch)[0]
        if self._points is None:
            return [_show(hit) for hit in found.values()]
        points = self._points
        return [_show(hit) | {"point": int(points[row])} for row, hit in found.items() if points[row] >= 0]


def number_points(mapped: Run, of: Run) -> NDArray[np.int64]:
    """The number of the point of each row of a run on a map of it, as the page counts them; -1 without a place."""
    commits = of.ledger.commits.read_complete(of.plan)
    if [file.edges.rpartition(":")[2] for file in mapped.plan.stat.files] != [c.digest[:32] for c in commits]:
        raise UsageError("The run has changed since the map was made.", hint="Make the map again.")
    batches = read_rows(mapped.ledger, mapped.plan, ["x"])
    there = np.concatenate([batch.column("x").is_valid().to_numpy(zero_copy_only=False) for batch in batches])
    return np.where(there, np.cumsum(there) - 1, -1)


def serve(urls: Sequence[str], requests: Any, answers: Any) -> None:
    """Answer until there are no more requests."""
    with tempfile.TemporaryDirectory(prefix="shardmill-search-") as scratch:
        opened: RunSearch | None = None
        for line in requests:
            request = json.loads(line)
            try:
                opened = opened or RunSearch(urls[0], Path(scratch), *urls[1:])
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
    serve(sys.argv[1:], sys.stdin, answers)


if __name__ == "__main__":
    main()
