"""A search in a process of its own: nothing is written into the run folder, and every refusal is a line."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardmill.errors import UsageError
from shardmill.monitor.search import Searcher
from shardmill.run import Run, start
from shardmill.spec import make_spec
from shardmill.testing import InProcessEngine
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
                searcher.search(run.ledger.url, "text 7", 3), searcher.search(run.ledger.url, "text 8", 2)
            )
            assert [hit["score"] for hit in first] == sorted((hit["score"] for hit in first), reverse=True)
            assert (len(first), len(second)) == (3, 2)
            assert set(first[0]) == {"row", "score", "values", "span"}
            with pytest.raises(UsageError, match="is empty"):
                await searcher.search(run.ledger.url, "  ", 3)
            with pytest.raises(UsageError, match="no run found here"):
                await searcher.search(run.ledger.url + "-not", "text", 3)
        finally:
            await searcher.close()

    asyncio.run(ask())
    assert sorted(files(Path(run.ledger.url))) == before
    expected = [hit.row for hit in run.search("text 7", 3)]
    assert len(expected) == 3
