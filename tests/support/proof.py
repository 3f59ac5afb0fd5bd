"""What every complete run has to show."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardmill.run import Run


def assert_complete(run: str | os.PathLike[str], rows: Sequence[dict[str, str]]) -> None:
    """Every row is in the result once, in source order, and the run verifies."""
    opened = Run(run)
    assert opened.table(["id"]).column("id").to_pylist() == [row["id"] for row in rows]
    report = opened.verify()
    assert report.verified, report
