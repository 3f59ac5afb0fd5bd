"""Paths for machines: metrics for Prometheus, the backlog for autoscalers, the alerts that hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel

from shardmill.core.errors import StoreError
from shardmill.core.extras import missing_package
from shardmill.watch.monitor.backlog import Backlog, count_backlog
from shardmill.watch.monitor.files import shorten
from shardmill.watch.monitor.metrics import write_metrics
from shardmill.watch.monitor.model import OpenAlert, ShownText
from shardmill.watch.monitor.reading import RunSeen
from shardmill.watch.monitor.watcher import Watcher

try:
    from fastapi import APIRouter, HTTPException, Request, Response
except ImportError as error:
    raise missing_package("fastapi") from error

if TYPE_CHECKING:
    from shardmill.watch.alerts import AlertDesk


class FailingTarget(BaseModel):
    """A target that does not take its messages."""

    target: ShownText
    since: float
    message: ShownText
    waiting: int


class AlertList(BaseModel):
    """The alerts that hold, and the targets that are broken; `watching` is false if there is no file of alerts."""

    watching: bool
    open: list[OpenAlert]
    failing: list[FailingTarget]


def machine_paths(watcher: Watcher, desk: AlertDesk | None, clock: Callable[[], float] = time.time) -> APIRouter:
    """The paths over what a watcher saw."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    def metrics(request: Request) -> Response:
        """All metrics, in the text format of Prometheus or of OpenMetrics."""
        try:
            backlog: Backlog | None = _count(watcher, watcher.runs(), clock())
        except StoreError:
            # Metrics that are not known are left out.
            backlog = None
        body, kind = write_metrics(watcher.runs(), backlog, desk, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})

    @router.get("/api/backlog", response_model=Backlog, responses={503: {"description": "The store cannot be read."}})
    def backlog(run: str = "") -> Backlog:
        """Shards that are left of wanted runs, or of one: 503 if that cannot be read, never a wrong 0."""
        seen = [each for each in watcher.runs() if not run or run in (each.key, each.name)]
        if run and all(each.gone for each in seen) and not watcher.trouble:
            raise HTTPException(404, "There is no such run.")
        try:
            return _count(watcher, seen, clock())
        except StoreError as error:
            raise HTTPException(503, shorten(error.message)) from error

    @router.get("/api/alerts", response_model=AlertList)
    def alerts() -> AlertList:
        """The alerts that hold, and the targets that cannot be told."""
        if desk is None:
            return AlertList(watching=False, open=[], failing=[])
        failing = [
            FailingTarget(target=each.target, since=each.since, message=each.message, waiting=each.waiting)
            for each in desk.troubles()
        ]
        return AlertList(watching=True, open=[OpenAlert(**each) for each in desk.open_alerts()], failing=failing)

    return router


def _count(watcher: Watcher, seen: list[RunSeen], now: float) -> Backlog:
    if watcher.trouble:
        raise StoreError(watcher.trouble)
    return count_backlog(seen, now)
