"""Tables of real servers whose rows tell when they changed, in types of times that only these have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.plan.spec import make_spec
from tests.contract.test_refresh import again, begin, is_as_fresh, rows_stay
from tests.contract.test_refresh_since import count, read
from tests.support.corpora import fake_spec

pytestmark = pytest.mark.services

__all__ = ["read", "rows_stay"]

ROWS = 40


@pytest.mark.parametrize(("kind", "type"), [("postgres", "timestamptz"), ("mariadb", "datetime")])
def test_rows_that_did_not_change_are_not_read(
    kind: str, type: str, read: list[int], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Any = request.getfixturevalue(kind)
    server.execute(
        "DROP TABLE IF EXISTS changing",
        f"CREATE TABLE changing (id int PRIMARY KEY, text text, changed {type})",
        *(f"INSERT INTO changing VALUES ({n}, 'text {n}', '2026-01-01 00:00:{n}')" for n in range(10, 10 + ROWS)),
    )
    work = fake_spec(server.url(), query="SELECT * FROM changing").work.model_dump(exclude_unset=True)
    spec = make_spec({**work, "changed_since": "changed"}, {"shard_bytes": 80})
    run = begin(spec, tmp_path / "run")
    assert len(run.plan.shards) > 3
    same, seen = count(read, lambda: again(tmp_path / "run"))
    assert (same.changed, seen) == (False, 1)
    server.execute(
        "UPDATE changing SET text = 'edited', changed = '2026-01-02 00:00:00' WHERE id = 30",
        "INSERT INTO changing VALUES (99, 'committed late', '2026-01-01 00:00:12')",
        "DELETE FROM changing WHERE id = 13",
    )
    done, seen = count(read, lambda: again(tmp_path / "run"))
    assert (done.items, done.computed) == (ROWS, 2)
    assert seen < ROWS
    is_as_fresh(tmp_path / "run", spec, tmp_path / "fresh")
