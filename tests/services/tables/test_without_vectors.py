"""Results without vectors in a real PostgreSQL: loaded, verified, and made anew only where something changed."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.errors import DatabaseError, SpecError, StaleResume, UsageError
from shardmill.plan.salt import make_salt
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from shardmill.run.loading import place_of
from shardmill.run.table import Table
from shardmill.sinks.digests import digest_items
from shardmill.testing import InProcessEngine, crash_at
from tests.support import corpora
from tests.support.cli import Cli
from tests.support.corpora import SHOUTING
from tests.support.services import PostgresServer
from tests.support.tables import finish_process, place, start_process, work_at

pytestmark = pytest.mark.services

ROWS = [{"id": i, "text": f"text {i}{' !mute' if i == 7 else ''}", "tone": "calm"} for i in range(60)]
Write = Callable[..., Path]


class Whispering(corpora.Shouting):
    """Another task with the same columns."""


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the task was asked."""
    seen: list[str] = []
    run = corpora.Shouting.run
    monkeypatch.setattr(corpora.Shouting, "run", lambda self, inputs: seen.extend(inputs) or run(self, inputs))
    return seen


def _spec(source: Path, url: str, table: str, task: str = SHOUTING, **settings: Any) -> Spec:
    to = {"url": url, "table": table, **settings.pop("to", {})}
    params = settings.pop("params", {})
    work = {"source": str(source), "text": "text", "id": "id", "keep": "text", "to": to, "task": task}
    limits = {"shard_bytes": 800, "batch_rows": 8, "max_errors": "100%", "lease_s": 5.0, **settings}
    return make_spec({**work, "params": params}, limits)


@pytest.fixture
def into(postgres: PostgresServer, write_jsonl: Write, tmp_path: Path) -> Callable[..., Run]:
    def load(rows: list[Any], table: str, **settings: Any) -> Run:
        source = write_jsonl(rows, f"{uuid.uuid4().hex}.jsonl")
        out = tmp_path / uuid.uuid4().hex
        return start(_spec(source, postgres.url(), table, **settings), out, engine=InProcessEngine())

    return load


def test_texts_are_loaded_verified_and_searched_by_words(postgres: PostgresServer, into: Callable[..., Run]) -> None:
    run = into(ROWS, "shouts")
    found = postgres.execute("SELECT id, shout, letters FROM shouts ORDER BY id")
    wanted = [(r["id"], r["text"].upper() + "!", len(r["text"])) for r in ROWS if "!mute" not in r["text"]]
    assert found == wanted
    report = run.verify()
    assert report.verified, report
    assert (
        "keys, texts and results of 59 rows are as they were sent" in {c.name: c.seen for c in report.checks}["digests"]
    )
    table = Table(place_of(run))
    report = table.verify()
    assert report.verified, report
    seen = {check.name: check.seen for check in report.checks}
    assert "59 rows, 0 without a result" in seen["rows"]
    assert seen["sample"] == (
        "59 of 59 rows computed again in float32 on the CPU are equal; a fault in 5 % of the rows would not be missed"
    )
    assert not {"recall", "norms", "finite"} & seen.keys()
    assert [hit.values["id"] for hit in table.search_many(["42"], mode="text")[0]] == [42]
    for mode in ("vector", "hybrid"):
        with pytest.raises(UsageError, match="shouts has no vectors to search by meaning") as caught:
            table.search_many(["42"], mode=mode)  # type: ignore[arg-type]
        assert "--words" in caught.value.hint


def test_a_result_that_was_changed_or_emptied_is_found(postgres: PostgresServer, into: Callable[..., Run]) -> None:
    run = into(ROWS, "meddled")
    postgres.execute("UPDATE meddled SET shout = 'no' WHERE id = 3")
    assert [c.name for c in run.verify().checks if not c.ok] == ["digests"]
    assert [c.name for c in Table(place_of(run)).verify().checks if not c.ok] == ["sample"]
    postgres.execute("UPDATE meddled SET shout = NULL, letters = NULL WHERE id = 3")
    assert [c.name for c in run.verify().checks if not c.ok] == ["digests", "results"]
    assert [c.name for c in Table(place_of(run)).verify().checks if not c.ok] == ["rows"]


def test_only_what_changed_is_made_anew(postgres: PostgresServer, into: Callable[..., Run], heard: list[str]) -> None:
    """Another text, or another parameter of the task, which is part of every row."""
    into(ROWS, "again")
    heard.clear()
    assert into(ROWS, "again", to={"changed_only": True}).verify().verified
    assert heard == ["text 7 !mute"]
    heard.clear()
    into([{**row, "text": "new"} if row["id"] == 5 else row for row in ROWS], "again", to={"changed_only": True})
    assert sorted(heard) == ["new", "text 7 !mute"]
    assert postgres.execute("SELECT shout FROM again WHERE id IN (4, 5) ORDER BY id") == [("TEXT 4!",), ("NEW!",)]
    heard.clear()
    run = into(ROWS, "again", params={"mark": "?"}, to={"changed_only": True})
    assert len(heard) == len(ROWS)
    assert postgres.execute("SELECT count(*) FROM again WHERE shout LIKE '%?'") == [(59,)]
    assert Table(place_of(run)).verify().verified


def test_fields_of_a_task_are_part_of_what_a_row_is_made_from(
    postgres: PostgresServer, into: Callable[..., Run]
) -> None:
    stream: dict[str, Any] = {"task": "shardmill.testing:FakeStream", "params": {"field": "tone"}}
    into(ROWS, "tones", **stream)
    changed = [{**row, "tone": "wild"} if row["id"] == 5 else row for row in ROWS]
    run = into(changed, "tones", **stream, to={"changed_only": True})
    assert postgres.execute("SELECT answer FROM tones WHERE id IN (4, 5) ORDER BY id") == [
        ("calm:4 text",),
        ("wild:5 text",),
    ]
    assert sum(c.tokens_out for c in run.ledger.commits.read().values()) == 2
    assert run.verify().verified
    postgres.execute("UPDATE tones SET finish_reason = 'whim' WHERE id = 9")
    assert [c.seen for c in run.verify().checks if not c.ok] == ["unknown reasons ['stop', 'whim']"]


class Counting(corpora.Shouting):
    """Measures its result."""

    def measure(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        return {"letters": sum(sum(batch.column("letters").to_pylist()) for batch in batches)}


def test_a_task_measures_its_result_in_a_table(into: Callable[..., Run]) -> None:
    report = into(ROWS, "measured", task=f"{__name__}:Counting").verify()
    assert report.verified, report
    assert report.figures == {"letters": sum(len(row["text"]) for row in ROWS if "!mute" not in row["text"])}


def test_another_task_or_a_schema_for_vectors_is_refused(into: Callable[..., Run]) -> None:
    into(ROWS[:3], "taken")
    with pytest.raises(StaleResume, match="holds rows that were made differently: the task was"):
        into(ROWS[:3], "taken", task=f"{__name__}:Whispering")
    with pytest.raises(DatabaseError, match="it has no column 'embedding'"):
        into(ROWS[:3], "taken", task="shardmill.testing:FakeTask")
    with pytest.raises(SpecError, match=r"has a column for vectors, and the task .* makes none"):
        into(ROWS[:3], "x", to={"preset": "amazon-reviews-2023"})


@pytest.mark.parametrize("step", ["batch-recorded", "committing"])
def test_a_worker_killed_while_it_loads(
    step: str, postgres: PostgresServer, write_jsonl: Write, tmp_path: Path
) -> None:
    table = f"killed_{step.replace('-', '_')}"
    run = place(_spec(write_jsonl(ROWS), postgres.url(), table, task="shardmill.testing:FakeStream"), tmp_path / "run")
    assert finish_process(start_process(_work_until, run, step)) == -signal.SIGKILL
    assert finish_process(start_process(work_at, run)) == 0
    assert postgres.execute(f"SELECT count(*), count(DISTINCT answer) FROM {table}") == [(60, 60)]
    assert Run(run).verify().verified


def _work_until(run: str, step: str) -> None:
    work_at(run, crash_at(step, 1))


def test_from_the_command_line(shardmill: Cli, postgres: PostgresServer, write_jsonl: Write, tmp_path: Path) -> None:
    options = ("--text", "text", "--id", "id", "--device", "cpu", "--workers", 1, "--max-errors", 1)
    to = ("--to", postgres.url(), "--table", "typed", "--out", tmp_path / "run")
    said = shardmill("run", write_jsonl(ROWS), "--task", SHOUTING, *options, *to)
    assert said.status == 0, said
    assert "shardmill search" not in said.err
    assert postgres.execute("SELECT count(*), count(text) FROM typed") == [(59, 59)]
    said = shardmill("search", f"{postgres.url().partition('?')[0]}/typed?{postgres.url().partition('?')[2]}", "loud")
    assert said.status == 2
    assert "typed has no vectors to search by meaning." in said.err


def test_digests_of_texts_alone_are_those_of_earlier_versions() -> None:
    old = [bytes.fromhex("ca978112ca1bbdcafac231b39a23dc4d"), None]
    assert digest_items(pa.array(["a", None])).to_pylist() == old
    fields = pa.record_batch({"n": [1, 2]})
    salted = digest_items(pa.array(["a", None]), None, b"salt").to_pylist()
    both = digest_items(pa.array(["a", "a"]), fields, b"salt").to_pylist()
    assert len({old[0], salted[0], *both, digest_items(pa.array(["a"]), fields.slice(0, 1)).to_pylist()[0]}) == 5
    salt = make_salt("generate", {"model": "./here", "system": "be brief"}, {"weights": "1"})
    assert salt == make_salt("generate", {"system": "be brief", "model": "./there"}, {"weights": "1"})
    assert salt != make_salt("generate", {"system": "be long"}, {"weights": "1"})
    assert salt != make_salt("generate", {"system": "be brief"}, {"weights": "2"})
