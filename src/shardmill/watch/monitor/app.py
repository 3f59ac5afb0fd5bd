"""The web application: the page's files, what it reads, and nothing that changes a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Annotated, TypeVar

from shardmill._version import __version__
from shardmill.core.errors import ShardmillError
from shardmill.core.extras import missing_package
from shardmill.watch.monitor.access import OPEN, POLICY, Access, Guard
from shardmill.watch.monitor.description import find_searched
from shardmill.watch.monitor.events import EventStream, LiveFeed
from shardmill.watch.monitor.files import shorten
from shardmill.watch.monitor.model import LogLines, RunDetail, RunList, SearchAnswer
from shardmill.watch.monitor.search import LONGEST_QUERY, Searcher, explain
from shardmill.watch.monitor.watcher import Watcher

try:
    from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
    from starlette.background import BackgroundTask
    from starlette.responses import StreamingResponse
except ImportError as error:
    raise missing_package("fastapi") from error

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from shardmill.watch.alerts import AlertDesk

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Scripts of such a page run, so that a map can be moved, but as those of no origin: no cookie, no request, no frame
# in it. Only a page of ours may frame it.
_SANDBOXED = {
    "content-security-policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
}
_Answer = TypeVar("_Answer")
_STATIC = resources.files("shardmill.watch.monitor") / "static"


def make_app(
    watcher: Watcher,
    access: Access,
    *,
    routers: Sequence[APIRouter] = (),
    searcher: Searcher | None = None,
    desk: AlertDesk | None = None,
    root_path: str = "",
    worker_link: str = "",
    clock: Callable[[], float] = time.time,
) -> ASGIApp:
    """The application over what a watcher saw. `routers` add paths; all of them are behind the token.

    Without a `searcher`, no result can be searched. The page shows the alerts of a `desk`, and links a worker to the
    page of its pod or job by `worker_link`, in which `{name}` stands for the name.
    """
    feed = LiveFeed(watcher, clock, searches=searcher is not None, worker_link=worker_link, desk=desk)
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

    @app.get("/map", include_in_schema=False)
    async def map_page() -> Response:
        """A frame around the map of a run: it asks for what the map in its sandbox cannot ask for."""
        return _asset("map.html", {"content-security-policy": f"{POLICY}; frame-src 'self'"})

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

    @app.get("/api/runs/{key}/log", response_model=LogLines)
    def log(key: str, worker: str) -> Response:
        """The last lines of a worker's log."""
        return _json(LogLines(text=_ask(watcher.log, key, worker)).model_dump_json().encode())

    @app.get("/api/runs/{key}/files/{name}", response_class=Response)
    def file(key: str, name: str) -> Response:
        """A page that lies in the run folder, in a sandbox: whoever wrote it may not act for whoever looks at it."""
        found = _ask(watcher.page, key, name)
        return StreamingResponse(
            found.pieces(),
            media_type="text/html; charset=utf-8",
            headers={"content-length": str(found.size), **_SANDBOXED},
            background=BackgroundTask(found.close),
        )

    @app.get("/api/runs/{key}/search", response_model=SearchAnswer)
    async def search(
        key: str,
        q: Annotated[str, Query(min_length=1, max_length=LONGEST_QUERY)],
        k: Annotated[int, Query(ge=1, le=50)] = 10,
    ) -> Response:
        """The items of a finished run nearest in meaning to a text; for a map, those of the runs that were mapped."""
        seen = watcher.run(key)
        over = () if seen is None else find_searched(seen, watcher.runs())
        if seen is None or not over or searcher is None:
            raise HTTPException(404, "This run cannot be searched here.")
        try:
            hits = await searcher.search([run.url for run in over], q, k, map_url="" if seen in over else seen.url)
        except ShardmillError as error:
            raise HTTPException(503 if error.retryable else 400, explain(error)) from error
        return _json(SearchAnswer.model_validate({"hits": hits}).model_dump_json().encode())

    @app.get("/api/events", response_class=Response)
    async def events(run: str = "") -> Response:
        """Server-sent events: `runs` after each change and, with `run`, `run` with everything about that one."""
        return EventStream(feed, run)

    for router in routers:
        app.include_router(router)
    return Guard(app, access)


def _ask(read: Callable[[str, str], _Answer], key: str, name: str) -> _Answer:
    """What a run folder holds; a refusal of ours says why it does not."""
    try:
        return read(key, name)
    except ShardmillError as error:
        raise HTTPException(503 if error.retryable else 404, shorten(explain(error))) from error
    except OSError as error:
        raise HTTPException(503, shorten(f"It cannot be read: {error.strerror}.")) from error


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")


def _asset(name: str, headers: Mapping[str, str] | None = None) -> Response:
    """A file of the page; only files of the package are served, by their name alone."""
    found = next((file for file in _STATIC.iterdir() if file.name == name and file.is_file()), None)
    if found is None:
        raise HTTPException(404, "There is no such page.")
    kind = _KINDS.get(name.rpartition(".")[2], "text/plain")
    return Response(found.read_bytes(), media_type=kind, headers={"cache-control": "no-cache", **(headers or {})})
