"""A process that searches or asks twice loads its model once, and another one where anything is different."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.models.embedder import TextEmbedder
from shardmill.run import Run
from shardmill.tasks.kept import KEPT
from shardmill.verbs.answer.asking import ask
from tests.support.answers import searchable, write_models


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    models = write_models(tmp_path_factory.mktemp("models"))
    return searchable(tmp_path_factory.mktemp("over"), models / "embedder")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The models that were loaded."""
    names: list[str] = []
    load = TextEmbedder.open

    def count(self: TextEmbedder, device: Any) -> None:
        names.append(self.location.name)
        load(self, device)

    monkeypatch.setattr(TextEmbedder, "open", count)
    KEPT.close()
    yield names
    KEPT.close()


def test_two_searches_load_once(run: Run, loaded: list[str]) -> None:
    first = run.search("a tower", 3)
    assert Run(run.ledger.url).search("a tower", 3) == first
    assert len(loaded) == 1
    run.close()
    assert run.search("a tower", 3) == first
    assert len(loaded) == 2


def test_two_questions_load_once(run: Run, loaded: list[str]) -> None:
    first = ask(run.ledger.url, ["Who built the tower?"])
    assert ask(run.ledger.url, ["Who built the tower?"]) == first
    assert len(loaded) == 1
    ask(run.ledger.url, ["Who built the tower?"], k=2)
    assert len(loaded) == 2


def test_another_model_of_the_same_name_is_loaded(run: Run, loaded: list[str]) -> None:
    run.search("a tower")
    config = Path(run.plan.work.params["model"]) / "config.json"
    before = config.read_text()
    config.write_text(before + "\n")
    try:
        run.search("a tower")
    finally:
        config.write_text(before)
    assert len(loaded) == 2


def test_threads_take_turns(run: Run, loaded: list[str]) -> None:
    """The requests of a compiled network belong to one caller at a time."""
    texts = [f"the tower of {n} " + "stones " * (n % 7) for n in range(40)]
    expected = run.search_many(texts, 3)
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: [run.search(text, 3) for text in texts[n::4]]}))  # type: ignore[misc]
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        assert [[hit.row for hit in hits] for hits in found[n]] == [
            [hit.row for hit in hits] for hits in expected[n::4]
        ]
    assert len(loaded) == 1
