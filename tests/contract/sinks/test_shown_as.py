"""A result of another model goes into a table of its own, and readers find it under the name that they know."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import ShardmillError, UsageError
from shardmill.run import Run, start
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec
from tests.support.libraries import needed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """The same items with vectors of 4 and of 8 numbers."""
    folder = tmp_path_factory.mktemp("runs")
    source = folder / "items.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(30)))
    narrow, wide = (start(fake_spec(source, params={"dims": n}), folder / f"run{n}") for n in (4, 8))
    return narrow, wide


def width_of(kind: str, place: Path) -> int:
    """How many numbers a reader of `docs` finds in a vector."""
    asked = "SELECT embedding FROM docs LIMIT 1"
    if kind == "sqlite":
        with sqlite3.connect(place) as database:
            return len(database.execute(asked).fetchone()[0]) // 4
    with needed("duckdb").connect(str(place)) as database:
        return len(database.execute(asked).fetchone()[0])


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_view_is_switched_and_taken_back(kind: str, runs: tuple[Run, Run], tmp_path: Path, shardmill: Cli) -> None:
    place = tmp_path / "rows.db"
    narrow, wide = (str(run.ledger.url) for run in runs)
    for run, table, width in ((narrow, "docs_4", 4), (wide, "docs_8", 8), (narrow, "docs_4", 4)):
        said = shardmill("load", "--from", run, "--to", f"{kind}:{place}#{table}", "--as", "docs")
        assert said.status == 0, said
        assert width_of(kind, place) == width
    assert all(run.verify(sample=0, source=False, report=False).verified for run in runs)
    runs[1].deliver(f"{kind}:{place}#docs_8", shown_as="docs")
    assert width_of(kind, place) == 8


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_table_is_not_replaced_by_a_view(kind: str, runs: tuple[Run, Run], tmp_path: Path) -> None:
    address = f"{kind}:{tmp_path / 'rows.db'}"
    runs[0].deliver(f"{address}#docs")
    with pytest.raises(ShardmillError, match="So docs is no view of it") as told:
        runs[1].deliver(f"{address}#docs_8", shown_as="docs")
    assert "the rows were delivered" in told.value.hint
    assert width_of(kind, tmp_path / "rows.db") == 4


def test_an_alias_of_qdrant_is_switched(runs: tuple[Run, Run], tmp_path: Path) -> None:
    qdrant: Any = needed("qdrant_client")
    for run, name in ((runs[0], "docs_4"), (runs[1], "docs_8")):
        run.deliver(f"qdrant:{tmp_path / 'points'}#{name}", shown_as="docs")
        client = qdrant.QdrantClient(path=str(tmp_path / "points"))
        assert client.get_collection("docs").config.params.vectors.size == int(name[-1])
        client.close()


def test_an_alias_of_milvus_is_switched(runs: tuple[Run, Run], tmp_path: Path) -> None:
    needed("milvus_lite")
    milvus: Any = needed("pymilvus")
    for run, width in ((runs[0], 4), (runs[1], 8)):
        run.deliver(f"milvus:{tmp_path / 'rows.db'}#docs_{width}", shown_as="docs")
    client = milvus.MilvusClient(str(tmp_path / "rows.db"))
    assert client.describe_collection("docs")["collection_name"] == "docs_8"
    client.close()


def test_other_stores_have_no_views(runs: tuple[Run, Run], tmp_path: Path, shardmill: Cli) -> None:
    needed("deltalake")
    with pytest.raises(UsageError, match="no views and no aliases"):
        runs[0].deliver(f"delta:{tmp_path / 'rows'}", shown_as="docs")
    assert_told(shardmill("load", "x.jsonl", "--to", "sqlite:x.db", "--as", "docs"), 2, "--as without --from")
