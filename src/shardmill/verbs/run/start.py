"""Starts `run`: whatever task the options or the spec name."""

from __future__ import annotations

from shardmill.core.errors import UsageError
from shardmill.run.request import Request, read_parameters
from shardmill.run.result import Run


def start(request: Request) -> Run:
    """Run any task over every item of a source."""
    if not request.work.get("task"):
        raise UsageError("No task was given.", hint="Name one: --task embed, or task = … in [work] of a spec.")
    if given := read_parameters(request.options.param):
        request = request.with_work(params={**request.params, **given})
    return request.carry_out()
