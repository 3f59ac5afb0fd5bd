"""Duplicates fall away: the planted ones are found, the first stays, and nothing depends on how the work was cut."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import TooManyErrors, UsageError
from shardmill.run import Run
from shardmill.testing import InProcessEngine, crash_at
from shardmill.verbs.dedup.removal import Deduplicated, remove_duplicates
from tests.support.cli import Cli, assert_told
from tests.support.libraries import needed
from tests.support.tables import finish_process, start_process

needed("datasketch")

Write = Callable[..., Path]
WORDS = [f"{a}{b}" for a in ("ba", "ko", "mi", "ru", "se", "ti", "vo", "za") for b in ("l", "m", "n", "r", "s", "t")]


def planted(originals: int = 150) -> tuple[list[dict[str, Any]], dict[int, int]]:
    """Texts of 60 words; after them copies in other case and marks, copies with one word changed, and none of them."""
    draw = random.Random(5)
    texts = [[draw.choice(WORDS) for _ in range(60)] for _ in range(originals)]
    rows = [" ".join(words) for words in texts]
    copies = {}
    for i in range(0, originals, 3):
        copies[len(rows)] = i
        rows.append(", ".join(texts[i]).upper() + "!")
    for i in range(1, originals, 3):
        changed = [*texts[i]]
        changed[draw.randrange(60)] = "another"
        copies[len(rows)] = i
        rows.append(" ".join(changed))
    return [{"id": f"t{i}", "body": text} for i, text in enumerate(rows)], copies


def dedup(source: Path, out: Path, *, shard_bytes: int = 20_000, **how: Any) -> Deduplicated:
    work = {"source": str(source), "text": "body", "id": "id"}
    return remove_duplicates(work, {"shard_bytes": shard_bytes}, out, engine=InProcessEngine(), **how)


def pairs_of(done: Deduplicated) -> dict[int, int]:
    table = pq.read_table(done.pairs)
    return dict(zip(table.column("dropped").to_pylist(), table.column("kept").to_pylist(), strict=True))


def test_planted_duplicates_are_found_and_no_other(write_jsonl: Write, tmp_path: Path) -> None:
    rows, copies = planted()
    done = dedup(write_jsonl(rows), tmp_path / "run")
    assert pairs_of(done) == copies
    assert (done.items, done.dropped, done.exact) == (250, 100, 50)
    assert done.run.table(["id", "body"]).column("id").to_pylist() == [r["id"] for r in rows[:150]]
    report = done.run.verify()
    assert report.verified, report
    assert all(len(Run(f"{tmp_path}/run{part}").plan.shards) > 1 for part in ("", "-signatures", "-bands"))
    table = pq.read_table(done.pairs)
    assert table.schema.names == ["kept", "dropped", "similarity", "kept_id", "dropped_id"]
    assert table.column("dropped_id").to_pylist() == [f"t{row}" for row in table.column("dropped").to_pylist()]
    similarity = table.column("similarity").to_pylist()
    assert similarity[:50] == [1.0] * 50
    assert all(0.8 <= value < 1 for value in similarity[50:])


def test_only_equal_texts_with_exact(write_jsonl: Write, tmp_path: Path) -> None:
    rows, copies = planted()
    done = dedup(write_jsonl(rows), tmp_path / "run", exact=True)
    equal = {dropped: kept for dropped, kept in copies.items() if kept % 3 == 0}
    assert pairs_of(done) == equal
    assert done.dropped == done.exact == len(equal)
    assert not (tmp_path / "run-bands").exists()
    assert done.run.verify().verified


def test_the_same_whatever_the_shards(write_jsonl: Write, tmp_path: Path) -> None:
    rows, _ = planted(60)
    source = write_jsonl(rows)
    made = [dedup(source, tmp_path / f"run{size}", shard_bytes=size) for size in (1_000, 7_000, 1 << 20)]
    assert len({len(done.run.plan.shards) for done in made}) > 1
    tables = [done.run.table() for done in made]
    assert tables[0] == tables[1] == tables[2]
    assert pq.read_table(made[0].pairs) == pq.read_table(made[1].pairs) == pq.read_table(made[2].pairs)


def test_texts_without_words_stay(write_jsonl: Write, tmp_path: Path) -> None:
    rows = [
        {"id": str(i), "body": text} for i, text in enumerate(["!!!", "one two", "?!", "One, two.", "", "...", None])
    ]
    for exact in (True, False):
        done = dedup(write_jsonl(rows), tmp_path / f"run{exact}", exact=exact)
        assert pairs_of(done) == {3: 1}
        assert Run(f"{done.run.ledger.url}-signatures").status().errors == 0
        assert done.run.table(["id"]).column("id").to_pylist() == ["0", "1", "2", "4", "5", "6"]


def test_what_is_no_text_is_a_failed_row(write_jsonl: Write, tmp_path: Path) -> None:
    source = write_jsonl([{"id": str(i), "body": i} for i in range(20)])
    with pytest.raises(TooManyErrors, match="'body' is a number, not text"):
        dedup(source, tmp_path / "run")


def test_a_line_that_cannot_be_read_is_a_failed_row_of_the_result(tmp_path: Path) -> None:
    source = tmp_path / "items.jsonl"
    lines = [json.dumps({"id": f"t{i}", "body": f"text number {i} " * 9}) for i in range(200)]
    lines[7], lines[20] = '{"id": "t7", "bod', lines[19].replace("t19", "t20")
    source.write_text("\n".join(lines))
    done = dedup(source, tmp_path / "run")
    assert pairs_of(done) == {20: 19}
    report = done.run.verify(sample=8)
    assert report.verified, report
    assert report.errors == 1
    assert None in done.run.table(["id"]).column("id").to_pylist()


def test_columns_of_a_source_stay_whatever_their_names(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    """Columns named as those of the runs on the way fell away without a word."""
    row = {"item": "one two three", "signature": "s", "key": "k", "kept": 1, "text": "t", "digest": "d", "row": 7}
    source = write_jsonl([row, row, {**row, "item": "other"}])
    said = shardmill("dedup", source, "--text", "item", "--out", tmp_path / "run")
    assert said.status == 0, said
    for name in ("digest", "row"):
        assert f"The column '{name}' is left out" in said.err
    table = Run(tmp_path / "run").table()
    assert table.schema.names == ["row", "item", "signature", "key", "kept", "text", "digest"]
    assert table.column("item").to_pylist() == ["one two three", "other"]


@pytest.mark.parametrize("threshold", [0.999, 1.0])
def test_the_highest_thresholds(threshold: float, write_jsonl: Write, tmp_path: Path) -> None:
    rows, copies = planted(30)
    done = dedup(write_jsonl(rows), tmp_path / "run", threshold=threshold)
    assert pairs_of(done) == {dropped: kept for dropped, kept in copies.items() if kept % 3 == 0}


def test_duplicates_of_duplicates_are_one_group(write_jsonl: Write, tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(60)]
    chain = []
    for step in range(5):
        chain.append({"id": str(step), "body": " ".join(words)})
        words[step * 12] = f"changed{step}"
    assert pairs_of(dedup(write_jsonl(chain), tmp_path / "run")) == {1: 0, 2: 0, 3: 0, 4: 0}


def test_without_a_duplicate_all_stay(write_jsonl: Write, tmp_path: Path) -> None:
    rows, _ = planted(20)
    done = dedup(write_jsonl(rows[:20]), tmp_path / "run")
    assert (done.dropped, done.run.table().num_rows) == (0, 20)


@pytest.mark.parametrize(("step", "after"), [("committing", 0), ("committing", 3), ("staged", 6), ("committed", 9)])
def test_a_kill_in_any_of_its_runs(step: str, after: int, write_jsonl: Write, tmp_path: Path) -> None:
    rows, copies = planted(60)
    source = write_jsonl(rows)
    ended = finish_process(start_process(_dedup_until, source, tmp_path / "run", step, after))
    assert ended == -signal.SIGKILL
    done = dedup(source, tmp_path / "run", shard_bytes=9_000)
    assert pairs_of(done) == copies
    assert done.run.verify().verified


def _dedup_until(source: Path, out: Path, step: str, after: int) -> None:
    work = {"source": str(source), "text": "body", "id": "id"}
    engine = InProcessEngine(on_step=crash_at(step, after))
    remove_duplicates(work, {"shard_bytes": 9_000}, out, engine=engine)


def test_bad_requests_are_told(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    source = write_jsonl(planted(5)[0])
    assert_told(shardmill("dedup", source, "--out", tmp_path / "run"), 2, "No --text was given")
    assert_told(shardmill("dedup", source, "--text", "body", "--out", tmp_path / "run", "--threshold", "0"), 2, "0.8")
    with pytest.raises(UsageError, match="detach"):
        remove_duplicates({"source": str(source), "text": "body"}, {"detach": True}, tmp_path / "run")


def test_what_fell_away_is_said(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    said = shardmill("dedup", write_jsonl(planted(12)[0]), "--text", "body", "--exact", "--out", tmp_path / "run")
    assert "20 items: 16 kept, 4 duplicates removed (equal)" in said.err
    again = shardmill(
        "dedup", tmp_path / "items.jsonl", "--text", "body", "--exact", "--out", tmp_path / "run", "--json"
    )
    assert json.loads(again.out) == {
        "run": str(tmp_path / "run"),
        "items": 20,
        "kept": 16,
        "dropped": 4,
        "exact": 4,
        "pairs": str(tmp_path / "run" / "duplicates.parquet"),
    }


def test_a_table_of_pairs_has_its_columns_even_if_it_is_empty(write_jsonl: Write, tmp_path: Path) -> None:
    done = dedup(write_jsonl(planted(5)[0][:5]), tmp_path / "run", exact=True)
    assert pq.read_table(done.pairs).schema.field("similarity").type == pa.float64()


def test_the_proof_looks_at_the_pairs(write_jsonl: Write, tmp_path: Path) -> None:
    """Also if it is a step of the run, which has the pairs by then."""
    rows, _ = planted(30)
    work = {"source": str(write_jsonl(rows)), "text": "body", "id": "id"}
    how: dict[str, Any] = {"exact": True, "engine": InProcessEngine()}
    done = remove_duplicates(work, {"shard_bytes": 5_000, "then": ["verify"]}, tmp_path / "run", **how)
    proof = json.loads((tmp_path / "run" / "report.json").read_text())
    assert proof["verified"]
    assert {"name": "duplicates", "ok": True, "seen": "10 items are in duplicates.parquet, as many as have no row"} in [
        {name: check[name] for name in ("name", "ok", "seen")} for check in proof["checks"]
    ]
    pairs = pq.read_table(done.pairs)

    def told() -> str:
        return "; ".join(check.seen for check in Run(tmp_path / "run").verify().checks if not check.ok)

    pq.write_table(pairs.slice(1), done.pairs)
    assert told() == "duplicates.parquet names 9 items, but not the 10 that have no row"
    other = pairs.set_column(1, "dropped", pa.array([29, *pairs.column("dropped").to_pylist()[1:]]))
    pq.write_table(other, done.pairs)
    assert "duplicates.parquet names 10 items" in told()
    Path(done.pairs).write_bytes(b"PAR1")
    assert "duplicates.parquet is damaged" in told()
    Path(done.pairs).unlink()
    assert told() == "duplicates.parquet is missing: the same command writes it again"
    remove_duplicates(work, {"shard_bytes": 5_000}, tmp_path / "run", **how)
    assert told() == ""
