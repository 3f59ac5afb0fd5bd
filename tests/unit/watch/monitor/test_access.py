"""Who is let in: the token as bearer or cookie, the Host that is asked for, and what every answer says to a browser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shardmill.core.errors import UsageError
from shardmill.watch.monitor.access import Access, Guard

TOKEN = "a token of thirty-two characters"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"inside"})


def ask(path: str = "/", query: str = "", root: str = "", method: str = "GET", **headers: str) -> Any:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    given = {"host": "127.0.0.1:8321", **headers}
    scope = {
        "type": "http",
        "method": method,
        "path": root + path,
        "root_path": root,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    guard = Guard(app, Access(port=8321, token=TOKEN, hosts=frozenset({"runs.example.org"})))
    asyncio.run(guard(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, sent[1]["body"]


def test_without_the_token_only_health_answers() -> None:
    assert ask("/healthz")[0] == 200
    for path in ("/", "/static/page.js", "/api/runs", "/api/openapi.json", "/metrics", "/healthz/", "/docs"):
        status, headers, body = ask(path)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert b"inside" not in body


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Bearer nonsense", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff\xfe"],
)
def test_a_wrong_bearer_is_refused(given: str) -> None:
    assert ask(authorization=given)[0] == 401


def test_the_token_as_bearer() -> None:
    assert ask(authorization=f"Bearer {TOKEN}")[2] == b"inside"
    assert ask(authorization=f"bearer  {TOKEN}")[0] == 200


def test_the_token_of_an_address_becomes_a_cookie() -> None:
    status, headers, body = ask("/page", f"x=%22%3E%3Cb%3E&token={TOKEN.replace(' ', '+')}", root="/runs")
    assert status == 200
    name, _, rest = headers["set-cookie"].partition("=")
    assert name == "shardmill-8321"
    assert "; HttpOnly; SameSite=Strict; Path=/runs;" in rest
    assert TOKEN not in headers["set-cookie"]
    assert b'content="0;url=/runs/page?x=%22%3E%3Cb%3E"' in body
    assert TOKEN.encode() not in body
    value = rest.partition(";")[0]
    assert ask(cookie=f"other=1; shardmill-8321={value}")[2] == b"inside"
    assert ask(cookie=f"shardmill-8322={value}")[0] == 401
    assert ask(cookie=f"shardmill-8321={TOKEN}")[0] == 401
    assert ask(authorization=f"Bearer {value}")[0] == 401
    assert ask("/", "token=wrong")[0] == 401


def test_a_path_of_another_host_is_not_gone_to() -> None:
    body = ask("//evil.example/x", f"token={TOKEN.replace(' ', '+')}")[2]
    assert b'url=/evil.example/x"' in body


@pytest.mark.parametrize("host", ["localhost:8321", "127.0.0.1", "[::1]:8321", "10.1.2.3:80", "RUNS.example.org."])
def test_a_host_that_is_known(host: str) -> None:
    assert ask("/healthz", host=host)[0] == 200


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8321", "[::1"])
def test_a_host_that_is_not(host: str) -> None:
    assert ask("/healthz", host=host)[0] in (421,)
    assert ask(host=host, authorization=f"Bearer {TOKEN}")[2] != b"inside"


def test_it_only_reads() -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(method=method, authorization=f"Bearer {TOKEN}")[0] == 405


def test_every_answer_keeps_a_browser_careful() -> None:
    for said in (ask(), ask("/healthz"), ask(host="evil"), ask(authorization=f"Bearer {TOKEN}")):
        headers = said[1]
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("token", ["", "short", "with a\nline break in it", "with ünïcode in it, long"])
def test_a_token_that_is_none(token: str) -> None:
    with pytest.raises(UsageError, match="at least 16"):
        Access(token=token)


def test_tokens_are_drawn() -> None:
    assert Access().token != Access().token
    assert len(Access().token) >= 32
