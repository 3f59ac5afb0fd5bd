"""A map of a table with vectors, in a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.testing import InProcessEngine
from tests.support.libraries import needed
from tests.support.services import PostgresServer
from tests.support.vectors import clusters

pytestmark = pytest.mark.services
needed("numba")

from shardmill.verbs.map.making import make_map  # noqa: E402


def test_a_table_is_mapped(postgres: PostgresServer, tmp_path: Path) -> None:
    values = ", ".join(f"({i}, 'text {i}', '{vector.tolist()}')" for i, vector in enumerate(clusters(30, dims=5)))
    postgres.execute(
        "CREATE EXTENSION IF NOT EXISTS vector",
        'CREATE TABLE "Mapped" (id int PRIMARY KEY, body text, embedding vector(5))',
        f'INSERT INTO "Mapped" VALUES {values}',
        'UPDATE "Mapped" SET embedding = NULL WHERE id = 3',
    )
    place = postgres.url().replace("?", "/Mapped?")
    wanted = {"source": place, "id": "id", "text": "body", "sample": 19}
    run = make_map(wanted, {}, tmp_path / "map", engine=InProcessEngine())
    table = run.table(["id", "x", "excerpt"])
    assert table.column("id").to_pylist() == list(range(30))
    assert [i for i, x in enumerate(table.column("x").to_pylist()) if x is None] == [3]
    assert table.column("excerpt").to_pylist()[7] == "text 7"
    assert run.verify().verified
