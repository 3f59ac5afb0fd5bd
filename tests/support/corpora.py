"""Items to run over, and the spec of a run of the fake task over them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardmill.spec import Spec, make_spec
from shardmill.testing import FakeTask


def fake_spec(source: Path | str, *, params: dict[str, Any] | None = None, query: str = "", **execution: Any) -> Spec:
    """A run of the fake task over `{"id", "text"}` rows."""
    settings = {"shard_bytes": 2_000, "max_errors": "100%", "lease_s": 5.0, **execution}
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    work |= {"query": query} if query else {}
    return make_spec({**work, "params": params or {}}, settings)


def fake_rows(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"id": f"k{i}", "text": f"text {i} " + "x" * (i * 7 % 40)} for i in range(start, start + count)]


class UsersTask(FakeTask):
    """A task of a user: workers import it only if the permission reached them."""
