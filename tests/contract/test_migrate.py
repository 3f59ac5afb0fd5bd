"""A run is moved to another model: computed beside the old result, compared on queries, switched, taken back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shardmill.core.errors import EditionPruned, UsageError
from shardmill.ledger import Editions, Ledger
from shardmill.plan import Plan
from shardmill.results.comparison import ComparedSide, Comparison, Side, _count_failed
from shardmill.run import Run
from shardmill.run.migrating import Asked, migrate
from shardmill.run.reports.migration import sentences_of
from shardmill.run.rollback import roll_back
from tests.support import tiny_models
from tests.support.answers import passages, questions, write_embedder
from tests.support.cli import Cli, assert_told

ON_CPU = ("--device", "cpu", "--workers", 1)
CHANGES = {"device": "cpu", "workers": 1}


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of different widths."""
    folder = tmp_path_factory.mktemp("models")
    write_embedder(folder / "old")
    wider = tiny_models.bert(vocab_size=30522, hidden_size=48, intermediate_size=64)
    tiny_models.write_model(folder / "new", wider, [tiny_models.pooling("cls", embedding_dimension=48)])
    return folder


@pytest.fixture
def docs(tmp_path: Path, models: Path, shardmill: Cli) -> Path:
    source = lines(tmp_path / "docs.jsonl", passages())
    said = shardmill(
        *("embed", source, "--text", "text", "--id", "id", "--model", models / "old", *ON_CPU),
        *("--shard-bytes", "1KB", "--out", tmp_path / "run"),
    )
    assert said.status == 0, said
    return tmp_path / "run"


def width(run: Path | str) -> int:
    return int(Run(run).table(["embedding"]).schema.field("embedding").type.list_size)


def is_proved(run: Path) -> bool:
    return Run(run).verify(report=False).verified


def test_a_refresh_leaves_another_model_to_a_migration(
    docs: Path, models: Path, tmp_path: Path, shardmill: Cli
) -> None:
    words = ("embed", tmp_path / "docs.jsonl", "--text", "text", "--id", "id", "--out", docs, *ON_CPU, "--refresh")
    told = shardmill(*words, "--model", models / "new")
    assert_told(told, 2, "was made by another command: model was ", f"shardmill migrate {docs} --model MODEL")
    assert_told(shardmill(*words, "--model", models / "old", "--dims", 8), 2, "dims was None and is 8")


def test_another_model_is_compared_chosen_and_taken_back(
    docs: Path, models: Path, tmp_path: Path, shardmill: Cli
) -> None:
    asked = lines(
        tmp_path / "queries.jsonl", [{"query": q["question"], "gold": [q["passage_id"]]} for q in questions(12)]
    )
    would = json.loads(shardmill("migrate", docs, "--model", models / "new", "--dry-run", "--json", *ON_CPU).out)
    assert (would["edition"], would["items"], would["computed"], would["switched"]) == (2, 48, 48, False)
    assert not (docs / "editions").exists(), "a dry run writes nothing"

    words = ("migrate", docs, "--model", models / "new", "--queries", asked, *ON_CPU)
    said = shardmill(*words, "--compare-only")
    assert said.status == 0, said
    assert "Edition 1 is still the one that is read" in said.err
    assert (width(docs), width(Editions(docs).place(2))) == (32, 48)
    comparison = json.loads((docs / "editions/000002/comparison.json").read_text())
    assert (comparison["queries"], comparison["with_gold"]) == (12, 12)
    assert (comparison["before"]["dims"], comparison["after"]["dims"]) == (32, 48)
    assert comparison["after"]["bytes"] == 48 * 48 * 4
    for side in ("before", "after"):
        assert set(comparison[side]["figures"]) == {"MRR@10", "recall@10", "nDCG@10"}
        assert all(0 <= value <= 1 for value in comparison[side]["figures"].values())
    assert comparison["better"] + comparison["worse"] + comparison["equal"] == 12
    page = (docs / "editions/000002/comparison.html").read_text()
    assert questions(1)[0]["question"] in page or len(comparison["worst"]) == 10
    assert comparison["worst"][0]["query"] in page

    commits = [path.stat().st_mtime_ns for path in (docs / "editions/000002/parts").iterdir()]
    said = shardmill(*words)
    assert "Edition 2 is read from now on" in said.err, said
    assert "Edition 2 has 48 items, computed before." in said.err
    assert commits == [path.stat().st_mtime_ns for path in (docs / "editions/000002/parts").iterdir()]
    assert width(docs) == 48
    assert is_proved(docs)
    assert_told(shardmill(*words), 2, "made with this model and these parameters already")

    said = shardmill("rollback", docs)
    assert "Edition 1 is read from now on; it was 2." in said.err
    assert width(docs) == 32
    assert is_proved(docs)
    assert_told(shardmill("rollback", docs), 2, "no edition before 1", "--edition 2")
    assert "replaced within the hour stays" in shardmill("prune", docs, "--keep-editions", 1).err
    assert "Edition 2 is read from now on" in shardmill(*words).err, "it is there already"
    assert Editions(docs).current() == 2


def test_editions_of_a_migration_are_listed_under_their_headings(docs: Path, shardmill: Cli) -> None:
    migrate(docs, Asked({"dims": 8}, sample=0), CHANGES, quiet=True)
    head, *lines = shardmill("show", docs, "--editions").out.splitlines()
    state = slice(head.index("state"), head.index("made"))
    assert [line[state].rstrip() for line in lines] == ["kept", "current, migrate"]
    assert all(line[: head.index("items") + len("items")].endswith(" 48") for line in lines)


def test_the_same_weights_in_another_folder_are_the_same_model(docs: Path, models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "old", tmp_path / "renamed")
    with pytest.raises(UsageError, match="with this model and these parameters already"):
        migrate(docs, Asked({"model": str(tmp_path / "renamed")}), CHANGES, quiet=True)


def test_queries_of_another_corpus_are_told_how_ids_look(docs: Path, models: Path, tmp_path: Path) -> None:
    asked = lines(tmp_path / "queries.jsonl", [{"query": "A town on a lake?", "gold": "nobody"}])
    with pytest.raises(UsageError, match=r"lacks all right items of the queries \(1\), such as 'nobody'") as told:
        migrate(docs, Asked({"model": str(models / "new")}, queries=str(asked)), CHANGES, quiet=True)
    assert told.value.hint == f"They are compared with the id, id, such as {passages()[0]['id']!r}."


def test_fewer_dimensions_are_compared_on_texts_of_the_run(docs: Path) -> None:
    done = migrate(docs, Asked({"dims": 8, "dtype": "float16"}, sample=10), CHANGES, quiet=True)
    assert done.switched
    assert done.comparison is not None
    assert done.comparison.sampled
    assert (done.comparison.queries, done.comparison.with_gold) == (10, 0)
    assert (done.comparison.after.dims, done.comparison.after.dtype) == (8, "float16")
    assert done.comparison.after.bytes * 8 == done.comparison.before.bytes
    assert 0 < done.comparison.overlap <= 1
    for pair in done.comparison.worst:
        assert pair.query not in {item.shown for item in (*pair.before, *pair.after)}, "a text does not find itself"
    assert is_proved(docs)


def test_a_refresh_in_the_middle_serves_both(docs: Path, models: Path, tmp_path: Path, shardmill: Cli) -> None:
    wanted = Asked({"model": str(models / "new")}, sample=0, compare_only=True)
    migrate(docs, wanted, CHANGES, quiet=True)
    rows = passages()
    rows[3]["text"] += " It was painted."
    lines(tmp_path / "docs.jsonl", [*rows, {"id": "one more", "text": "Another town lies on a lake."}])
    said = json.loads(shardmill("refresh", docs, "--json", *ON_CPU).out)
    assert (said["edition"], said["reused"], said["computed"]) == (3, 47, 2)
    assert width(docs) == 32
    done = migrate(docs, Asked({"model": str(models / "new")}, sample=0), CHANGES, quiet=True)
    assert (done.before, done.edition, done.reused, done.computed) == (3, 4, 47, 2)
    assert width(docs) == 48
    assert is_proved(docs)
    said = json.loads(shardmill("refresh", docs, "--json", *ON_CPU).out)
    assert not said["changed"], "the next refresh is made with the new model"
    assert roll_back(docs).edition == 3
    assert len(Run(docs).table()) == 49


def test_a_killed_migration_goes_on(docs: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked({"model": str(models / "new")}, sample=0)
    plans = []

    def killed(ledger: Ledger, *rest: Any) -> None:
        plans.append(ledger.plan().id)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shardmill.run.migrating.finish_run", killed)
        with pytest.raises(KeyboardInterrupt):
            migrate(docs, asked, CHANGES, quiet=True)
    assert (Editions(docs).current(), width(docs)) == (1, 32)
    done = migrate(docs, asked, CHANGES, quiet=True)
    assert done.edition == 2
    assert Run(docs).plan.id == plans[0]


def test_the_old_one_is_pruned(docs: Path, models: Path, shardmill: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Run(docs)
    migrate(docs, Asked({"model": str(models / "new")}, sample=0), CHANGES, quiet=True)
    monkeypatch.setattr("shardmill.ledger.editions.GRACE_S", 0.0)
    assert json.loads(shardmill("prune", docs, "--keep-editions", 1, "--json").out)["pruned"] == [1]
    with pytest.raises(EditionPruned):
        old.table()
    with pytest.raises(UsageError, match="no edition before 2"):
        roll_back(docs)
    assert is_proved(docs)


def test_what_cannot_be_migrated_is_told(docs: Path, models: Path, tmp_path: Path, shardmill: Cli) -> None:
    new = ("--model", models / "new")
    assert_told(shardmill("migrate", docs, *ON_CPU), 2, "Nothing to migrate to was given")
    assert_told(shardmill("migrate", docs, "--model", models / "old", *ON_CPU), 2, "this model and these parameters")
    assert_told(shardmill("migrate", docs, "--dims", 99, *ON_CPU), 2, "32")
    assert_told(shardmill("migrate", tmp_path / "nowhere", *new, *ON_CPU), 2, "no run found")
    asked = lines(tmp_path / "asked.jsonl", [{"query": "where?", "gold": "nobody"}])
    assert_told(
        shardmill("migrate", docs, *new, "--queries", asked, *ON_CPU), 2, "lacks all right items of the queries (1)"
    )
    assert_told(
        shardmill("migrate", docs, *new, "--queries", asked, "--query-text", "text", *ON_CPU),
        *(2, "no column 'text'"),
    )
    assert_told(shardmill("rollback", docs, "--edition", 7), 2, "no complete edition 7")
    assert not (docs / "editions").exists()


def test_items_without_a_vector_are_told(docs: Path, models: Path, tmp_path: Path, shardmill: Cli) -> None:
    rows = passages()
    rows[5]["text"] = None
    source, run = lines(tmp_path / "holes.jsonl", rows), tmp_path / "holes"
    words = ("--text", "text", "--id", "id", "--model", models / "old", "--max-errors", "50%", *ON_CPU)
    assert shardmill("embed", source, *words, "--out", run).status == 0
    said = shardmill("migrate", run, "--model", models / "new", "--sample", 5, *ON_CPU)
    assert said.status == 0, said
    assert f"1 item failed and have no vector in edition 2, 1 in edition 1: shardmill show {run} --errors" in said.err
    assert "1 item failed and have no vector in edition 2, 1 in edition 1: no query finds them." in said.err
    comparison = json.loads((run / "editions/000002/comparison.json").read_text())
    assert [comparison[side]["failed"] for side in ("before", "after")] == [1, 1]
    assert [comparison[side]["vectors"] for side in ("before", "after")] == [47, 47]
    assert "items without vector" in (run / "editions/000002/comparison.html").read_text()


def test_right_items_that_lost_their_vector_are_told() -> None:
    sides = [_side(failed) for failed in (["x"], ["x", "y", "z"])]
    assert _count_failed({"x", "y", "w"}, *sides) == 1
    before, after = (ComparedSide(n, "m", 9 - n, 9, 8, "float32", 0, failed=n) for n in (1, 3))
    found = Comparison(1, False, 1, 0, before, after, 1.0, 1.0, 0, 0, 1, (), failed_gold=1)
    said = " ".join(sentences_of(found))
    assert "3 items failed and have no vector in edition 3, 1 in edition 1" in said
    assert "1 right item had one before." in said
    assert "Edition 3 has 6 items and edition 1 8: the source has changed." in said


def _side(failed: list[str]) -> Side:
    """A side of which nothing is known but the records of the items that failed."""
    ledger = SimpleNamespace(
        commits=SimpleNamespace(read_complete=lambda plan: [None]),
        errors=SimpleNamespace(read=lambda commit: [{"id": {"id": each}} for each in failed]),
    )
    return Side(1, cast(Ledger, ledger), cast(Plan, None))
