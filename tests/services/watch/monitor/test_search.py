"""A search in a process of its own: nothing is written into the run folder, and every refusal is a line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import UsageError
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from shardmill.verbs.map.making import make_map
from shardmill.watch.monitor.search import Searcher
from shardmill.watch.monitor.searching import number_points
from tests.support.corpora import fake_rows

pytestmark = pytest.mark.services

Write = Callable[..., Path]


def files(folder: Path) -> Iterator[str]:
    for path, _, names in os.walk(folder):
        yield from (f"{path}/{name}" for name in names)


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Write) -> Run:
    work = {"source": str(write_jsonl(fake_rows(30))), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    return start(make_spec(work, {"shard_bytes": 500}), tmp_path / "run", engine=InProcessEngine())


def test_searches_share_a_process_and_write_nothing_into_the_run(run: Run) -> None:
    before = sorted(files(Path(run.ledger.url)))

    async def ask() -> None:
        searcher = Searcher()
        try:
            first, second = await asyncio.gather(
                searcher.search([run.ledger.url], "text 7", 3), searcher.search([run.ledger.url], "text 8", 2)
            )
            assert [hit["score"] for hit in first] == sorted((hit["score"] for hit in first), reverse=True)
            assert (len(first), len(second)) == (3, 2)
            assert set(first[0]) == {"row", "score", "values", "span"}
            with pytest.raises(UsageError, match="is empty"):
                await searcher.search([run.ledger.url], "  ", 3)
            with pytest.raises(UsageError, match="no run found here"):
                await searcher.search([run.ledger.url + "-not"], "text", 3)
        finally:
            await searcher.close()

    asyncio.run(ask())
    assert sorted(files(Path(run.ledger.url))) == before
    expected = [hit.row for hit in run.search("text 7", 3)]
    assert len(expected) == 3


def test_on_a_map_rows_without_a_place_are_no_points(tmp_path: Path, write_jsonl: Write) -> None:
    rows = [*fake_rows(4), {"id": "bad", "text": "!nan"}, *fake_rows(3)]
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    spec = make_spec(work, {"max_errors": "50%"})
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    mapped = make_map({"source": run.ledger.url}, {}, tmp_path / "map", engine=InProcessEngine())

    async def ask() -> list[int]:
        searcher = Searcher()
        try:
            hits = await searcher.search([run.ledger.url], "text 2", 8, map_url=mapped.ledger.url)
            assert [hit["row"] - (hit["row"] > 4) for hit in hits] == [hit["point"] for hit in hits]
            return [hit["point"] for hit in hits]
        finally:
            await searcher.close()

    assert sorted(asyncio.run(ask())) == list(range(7))
    write_jsonl([*rows[1:], rows[0]])
    start(spec, tmp_path / "run", fresh=True, engine=InProcessEngine())
    with pytest.raises(UsageError, match="has changed since the map was made"):
        number_points(mapped, [Run(run.ledger.url)])


def test_a_map_of_two_runs_finds_the_points_of_both(tmp_path: Path, write_jsonl: Write) -> None:
    runs, texts = [], []
    for name, rows in (("one", [*fake_rows(6), {"id": "bad", "text": "!nan"}]), ("two", fake_rows(12)[5:])):
        source = write_jsonl(rows, name=f"{name}.jsonl")
        work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
        spec = make_spec(work, {"max_errors": "50%", "shard_bytes": 200})
        runs.append(start(spec, tmp_path / name, engine=InProcessEngine()))
        texts += [row["text"] for row in rows if row["id"] != "bad"]
    places = [run.ledger.url for run in runs]
    source = [f"run:{place}" for place in places]
    mapped = make_map({"source": source}, {}, tmp_path / "map", engine=InProcessEngine())
    assert len(mapped.plan.stat.files) > 2

    async def ask(text: str, k: int) -> list[dict[str, Any]]:
        searcher = Searcher()
        try:
            return await searcher.search(places, text, k, map_url=mapped.ledger.url)
        finally:
            await searcher.close()

    hits = asyncio.run(ask(texts[8], 20))
    assert sorted(hit["point"] for hit in hits) == list(range(13))
    assert texts[hits[0]["point"]] == texts[8]
    scores = [hit["score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    few = asyncio.run(ask(texts[8], 3))
    assert [hit["point"] for hit in few] == [hit["point"] for hit in hits[:3]]
