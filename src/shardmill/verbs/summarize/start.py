"""Starts `summarize`: a run over the items, and one over their groups if there are any."""

from __future__ import annotations

from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.verbs.summarize.groups import summarize_work


def start(request: Request) -> Run:
    """Summarize every item of a source, or every group of items."""
    how = {name: value for name, value in request.how.items() if name != "allow_code"}
    return summarize_work(request.work, request.execution, request.out, **how)
