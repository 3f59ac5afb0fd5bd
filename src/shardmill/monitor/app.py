"""The web application: the page's files, what it reads, and nothing that changes a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from shardmill._version import __version__
from shardmill.errors import missing_extra
from shardmill.monitor.access import OPEN, Access, Guard
from shardmill.monitor.events import EventStream, LiveFeed
from shardmill.monitor.model import RunDetail, RunList
from shardmill.monitor.watcher import Watcher

try:
    from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
except ImportError as error:
    raise missing_extra("fastapi", "web") from error

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_STATIC = resources.files("shardmill.monitor") / "static"


def make_app(
    watcher: Watcher,
    access: Access,
    *,
    routers: Sequence[APIRouter] = (),
    root_path: str = "",
    clock: Callable[[], float] = time.time,
) -> ASGIApp:
    """The application over what a watcher saw. `routers` add paths; all of them are behind the token."""
    feed = LiveFeed(watcher, clock)
    app = FastAPI(
        title="shardmill monitor",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        root_path=root_path,
    )

    @app.get(OPEN, include_in_schema=False)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _asset("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _asset(name)

    @app.get("/api/runs", response_model=RunList)
    async def runs() -> Response:
        """All runs at a glance."""
        return _json(feed.runs())

    @app.get("/api/runs/{key}", response_model=RunDetail)
    async def run(key: str) -> Response:
        """Everything that is shown of one run."""
        found = feed.run(key)
        if found is None:
            raise HTTPException(404, "There is no such run.")
        return _json(found)

    @app.get("/api/runs/{key}/shards", response_class=Response)
    async def shards(key: str, request: Request) -> Response:
        """The state of every shard, one byte each: 0 waiting, 1 running, 2 done, 3 failed."""
        found = feed.states(key)
        if found is None:
            raise HTTPException(404, "There is no such run, or it could not be read.")
        packed, tag = found
        headers = {"etag": tag, "content-encoding": "gzip", "cache-control": "private, no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(packed, media_type="application/octet-stream", headers=headers)

    @app.get("/api/events", response_class=Response)
    async def events(run: str = "") -> Response:
        """Server-sent events: `runs` after each change and, with `run`, `run` with everything about that one."""
        return EventStream(feed, run)

    for router in routers:
        app.include_router(router)
    return Guard(app, access)


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")


def _asset(name: str) -> Response:
    """A file of the page; only files of the package are served, by their name alone."""
    found = next((file for file in _STATIC.iterdir() if file.name == name and file.is_file()), None)
    if found is None:
        raise HTTPException(404, "There is no such page.")
    kind = _KINDS.get(name.rpartition(".")[2], "text/plain")
    return Response(found.read_bytes(), media_type=kind, headers={"cache-control": "no-cache"})
