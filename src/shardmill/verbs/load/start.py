"""Starts `load`: a run whose result goes into a table."""

from __future__ import annotations

from shardmill.run.request import Request
from shardmill.run.result import Run


def start(request: Request) -> Run:
    """Embed every item of a source and load it into a table."""
    return request.with_work(to=request.work.get("to") or {"url": ""}).carry_out()
