"""Searches by words in several languages: the language of an index is found, recorded, kept and changed."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import MissingExtra, UsageError
from shardmill.models.retrieval.passages import find_rules
from shardmill.models.retrieval.wording import WordRules
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, assert_told
from tests.support.languages import QUESTIONS, TEXTS
from tests.support.libraries import needed

bm25s = needed("bm25s")

ENGLISH = ["The old mill stands by the river.", "A phone and its battery are on the table.", "Mice fear the cat."]
# Questions that find their own text first. What stems cannot join stays apart, such as broken plurals in Arabic.
FOUND = {"de": 8, "ru": 8, "ar": 6, "hi": 8, "zh": 8, "ja": 8, "th": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needed("torch")
    from tests.support.tiny_models import bert, pooling, write_model

    return write_model(tmp_path_factory.mktemp("tiny") / "model", bert(), [pooling("mean"), ("Normalize", {}, {})])


def make_run(
    folder: Path, texts: list[str], shard_bytes: int = 10_000, place: str = "", model: Path | None = None
) -> Run:
    folder.mkdir(exist_ok=True)
    source = folder / "items.jsonl"
    source.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    work = {"source": str(source), "text": "text", "id": "id", "keep": "text"}
    task = {"task": "embed", "params": {"model": str(model)}} if model else {"task": "shardmill.testing:FakeTask"}
    return start(
        make_spec({**work, **task}, {"shard_bytes": shard_bytes, "device": "cpu"}),
        place or folder / "run",
        engine=InProcessEngine(),
    )


def first_rows(run: Run, texts: list[str], **how: Any) -> list[int | None]:
    return [hits[0].row if hits else None for hits in run.search_many(texts, 1, words=True, **how)]


def recorded(run: Run) -> dict[str, Any] | None:
    found = [*Path(run.ledger.url).glob("final/passages-*/words.json")]
    return json.loads(found[0].read_text()) if found else None


@pytest.mark.parametrize("language", TEXTS)
def test_questions_find_their_texts(language: str, tmp_path: Path) -> None:
    needed("Stemmer")
    run = make_run(tmp_path, TEXTS[language])
    found = first_rows(run, QUESTIONS[language])
    assert sum(row == i for i, row in enumerate(found)) >= FOUND[language], found
    assert recorded(run) == {"language": language, "stems": language in ("de", "ru", "ar", "hi")}
    before = first_rows(run, QUESTIONS[language])
    assert first_rows(Run(run.ledger.url), QUESTIONS[language], language=language) == before == found


def test_an_english_index_is_that_of_earlier_versions_to_the_byte(tmp_path: Path) -> None:
    run = make_run(tmp_path, ENGLISH)
    assert first_rows(run, ["mills", "old mill", "battery"]) == [None, 0, 1]
    assert recorded(run) is None
    (folder,) = Path(run.ledger.url).glob("final/passages-*/000000.words")
    index = bm25s.BM25(method="lucene")
    index.index(bm25s.tokenize(ENGLISH, stopwords="en", return_ids=False, show_progress=False), show_progress=False)
    index.save(tmp_path / "expected", show_progress=False)
    for name in ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"):
        assert (folder / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


def test_an_index_of_an_earlier_version_keeps_its_words(tmp_path: Path) -> None:
    """It has no record of a language, whatever its texts are in."""
    run = make_run(tmp_path, TEXTS["zh"], shard_bytes=100)
    assert first_rows(run, QUESTIONS["zh"], language="en") == [None] * 8
    assert recorded(run) is None
    again = Run(run.ledger.url)
    assert first_rows(again, QUESTIONS["zh"]) == [None] * 8
    with pytest.raises(UsageError, match="indexed in the language en") as told:
        again.search("咖啡豆", words=True, language="zh")
    assert "Delete" in told.value.hint


def test_index_changes_the_language_and_answers_depend_on_it(shardmill: Cli, tmp_path: Path, model: Path) -> None:
    from shardmill.verbs.answer.retriever import look_up

    needed("Stemmer")
    run = make_run(tmp_path, TEXTS["ru"], model=model)
    place = run.ledger.url
    run.index(graph=False, language="en")
    assert "words" not in look_up(place).identity
    assert json.loads(shardmill("index", place, "--language", "Russian", "--json").out)["language"] == "ru"
    assert look_up(place).identity["words"] == "ru, stems"
    assert first_rows(Run(place), QUESTIONS["ru"]) == [*range(8)]
    assert "Words: ru, stems." in shardmill("index", place).err
    run.index(language="en")
    assert "words" not in look_up(place).identity
    said = shardmill("search", place, "кошки", "--words", "--language", "ru")
    assert_told(said, 2, "indexed in the language en", f"shardmill index {place} --language ru")
    said = shardmill("search", place, "кошки", "--words", "--language", "klingon")
    assert_told(said, 2, "'klingon' is not known")
    assert_told(shardmill("search", place, "кошки", "--language", "ru"), 2, "--words or --hybrid")


def test_a_run_in_several_languages_is_mixed(tmp_path: Path) -> None:
    texts = [*ENGLISH, *TEXTS["zh"], *TEXTS["ru"], *TEXTS["th"]]
    run = make_run(tmp_path, texts, shard_bytes=200)
    assert first_rows(run, ["old mill", QUESTIONS["zh"][0], "шахматист", QUESTIONS["th"][5]]) == [0, 3, 15, 24]
    assert recorded(run) == {"language": "mul", "stems": False}


def test_without_the_library_words_have_their_endings(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shardmill.models.retrieval.wording.find_spec", lambda name: None)
        run = make_run(tmp_path, TEXTS["ru"], model=model)
        assert first_rows(run, ["кошка", "кошки"]) == [5, None]
        assert recorded(run) == {"language": "ru", "stems": False}
    assert first_rows(Run(run.ledger.url), ["кошки"]) == [None]
    needed("Stemmer")
    run.index(graph=False, language="ru")
    assert first_rows(Run(run.ledger.url), ["кошки"]) == [5]
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(MissingExtra, match="PyStemmer"):
        Run(run.ledger.url).search("кошки", words=True)


def test_a_run_in_a_store_has_its_language_there(tmp_path: Path, model: Path) -> None:
    needed("Stemmer")
    run = make_run(tmp_path, TEXTS["de"], model=model, place=f"memory://{uuid.uuid4().hex}/run")
    assert first_rows(run, QUESTIONS["de"]) == [*range(8)]
    (key,) = [e.key for e in run.ledger.store.list("final/") if e.key.endswith("words.json")] or [""]
    assert not key
    record = run.index(graph=False)
    assert find_rules(run.ledger.store, record) == WordRules("de", stems=True)
    assert first_rows(Run(run.ledger.url), QUESTIONS["de"]) == [*range(8)]
    run.index(language="nl")
    assert find_rules(run.ledger.store, record).language == "nl"
