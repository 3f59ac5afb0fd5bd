"""Who may read the monitor: a token, the Host that is asked for, and headers that keep a browser careful."""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import ipaddress
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from shardmill.core.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# The one path that answers without a token.
OPEN = "/healthz"
_COOKIE_S = 30 * 86400
_LEAST_TOKEN = 16
# Scripts and styles come from files of this server alone, and nobody may frame or embed what it sends.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
# A browser keeps what follows the # of an address to itself, so a script carries it over.
_GO_ON = "const on = document.querySelector('a'); on.hash = location.hash; location.replace(on.href)"
_GO_ON_POLICY = POLICY.replace(
    "script-src 'self'", f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_GO_ON.encode()).digest()).decode()}'"
)
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    '<link rel="icon" href="data:,">{head}<title>shardmill</title><p>{text}</p></html>'
)


@dataclass(frozen=True, slots=True)
class Access:
    """The token, the port of the server and the host names it answers to. A token of ours is drawn at random."""

    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    hosts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(self.token) < _LEAST_TOKEN or not self.token.isascii() or not self.token.isprintable():
            raise UsageError(
                f"The token must have at least {_LEAST_TOKEN} printable ASCII characters.",
                hint="Make one: python3 -c 'import secrets; print(secrets.token_urlsafe(24))'",
            )

    @property
    def cookie(self) -> str:
        """The name of the cookie: monitors on several ports of a host do not log one another out."""
        return f"shardmill-{self.port}"

    @property
    def cookie_value(self) -> str:
        """What the cookie holds: proof of the token, of no use as one."""
        return hmac.new(self.token.encode(), b"shardmill monitor", hashlib.sha256).hexdigest()

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server. An address cannot be another's name, so any address will do."""
        host = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() and ":" in header else header
        host = host.lower().rstrip(".")
        if host == "localhost" or host in self.hosts:
            return True
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True

    def admits(self, authorization: str, cookies: str) -> bool:
        """Whether a request proves that it knows the token."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        try:
            morsel = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and _same(morsel.value, self.cookie_value)

    def is_token(self, given: str) -> bool:
        return _same(given, self.token)


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


class Guard:
    """Stands before the app: only whoever knows the token gets through, by the right Host, and only to read."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = _headers(scope["headers"])
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        if not self._access.knows_host(headers.get("host", "")):
            await _answer(send, 421, "This server does not answer to that name. Name it with --allow-host.")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, "The monitor only reads.", [(b"allow", b"GET, HEAD")])
        elif path == OPEN:
            await self._app(scope, receive, _with_headers(send))
        elif token := _query(scope).get("token"):
            await self._enter(scope, send, token)
        elif self._access.admits(headers.get("authorization", ""), headers.get("cookie", "")):
            await self._app(scope, receive, _with_headers(send))
        else:
            # From a link of another site the cookie is not sent; from this page it is.
            again = '<a href="">Open it again</a>, or open the address that `shardmill monitor` printed.'
            await _answer(send, 401, f"This page needs the token. {again}", [(b"www-authenticate", b"Bearer")])

    async def _enter(self, scope: Scope, send: Send, token: str) -> None:
        """Turn the token of an address into a cookie. The page goes on by itself, so that the cookie is sent then."""
        if not self._access.is_token(token):
            await _answer(send, 401, "That is not the token of this monitor.")
            return
        root = scope.get("root_path", "")
        rest = urlencode([(name, value) for name, value in _pairs(scope) if name != "token"])
        inside = "/" + scope["path"].removeprefix(root).lstrip("/")
        there = html.escape(quote(root + inside) + (f"?{rest}" if rest else ""))
        cookie = f"{self._access.cookie}={self._access.cookie_value}; HttpOnly; SameSite=Strict"
        cookie += f"; Path={root or '/'}; Max-Age={_COOKIE_S}"
        head = f'<noscript><meta http-equiv="refresh" content="0;url={there}"></noscript>'
        go_on = f'<a href="{there}">Go on</a><script>{_GO_ON}</script>'
        own = [(b"set-cookie", cookie.encode()), (b"content-security-policy", _GO_ON_POLICY.encode())]
        await _answer(send, 200, go_on, own, head)


def _pairs(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _query(scope: Scope) -> dict[str, str]:
    return dict(_pairs(scope))


def _headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *own]}
        await send(message)

    return sending


async def _answer(
    send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = (), head: str = ""
) -> None:
    body = _PAGE.format(text=text, head=head).encode()
    start = [(b"content-type", b"text/html; charset=utf-8"), (b"content-length", str(len(body)).encode()), *headers]
    sending = _with_headers(send)
    await sending({"type": "http.response.start", "status": status, "headers": start})
    await sending({"type": "http.response.body", "body": body})
