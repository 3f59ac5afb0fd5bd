"""Passwords in URLs. They stay in this process, and reach workers only through the environment."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import unquote, urlsplit

from shardmill.core.errors import SpecError

_VARIABLE = "SHARDMILL_PASSWORDS"
_SECRETS = ("password", "sslpassword", "ssl_key_password")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<authority>[^/]*)(?P<rest>.*)", re.DOTALL)

# By place. Removed from the environment, so that processes started by a worker do not inherit them.
_known: dict[str, dict[str, str]] = json.loads(os.environ.pop(_VARIABLE, "{}"))


def withhold(place: str) -> str:
    """The place without its passwords, which are kept here to connect with.

    >>> withhold("postgresql://ann:s3cret@db.example/shop?sslmode=require&password=other")
    'postgresql://ann@db.example/shop?sslmode=require'
    """
    match = _URL.fullmatch(place)
    if match is None:
        return place
    authority, rest = match["authority"], match["rest"]
    if "@" not in authority and ":" in authority and "@" in rest.partition("?")[0]:
        raise SpecError("The password in the source URL contains a /.", hint="Write it as %2F.")
    # A ? also ends the authority, unless it is part of a password.
    if "@" not in authority and "?" in authority:
        authority, mark, tail = authority.partition("?")
        rest = mark + tail + rest
    found: dict[str, str] = {}
    user, at, host = authority.rpartition("@")
    user, _, password = user.partition(":")
    if password:
        found["password"] = unquote(password)
    path, mark, query = rest.partition("?")
    kept = []
    for pair in query.split("&") if mark else ():
        name, _, value = pair.partition("=")
        if unquote(name) in _SECRETS:
            found[unquote(name)] = unquote(value)
        else:
            kept.append(pair)
    bare = f"{match['scheme']}{user}{at}{host}{path}{'?' * bool(kept)}{'&'.join(kept)}"
    if found:
        _known[bare] = found
    return bare


def withheld(place: str) -> dict[str, str]:
    """The passwords removed from this place, by the names that the driver has for them."""
    return dict(_known.get(place, {}))


def environment() -> dict[str, str]:
    """Variables to add to the environment of a worker."""
    return {_VARIABLE: json.dumps(_known)} if _known else {}


def redact(text: str) -> str:
    """Replace known passwords in a text, such as a message of the server."""
    for secret in {secret for found in _known.values() for secret in found.values() if secret}:
        text = text.replace(secret, "***")
    return text


def clean_url(url: str) -> str:
    """The URL up to /v1, without user, password, query and path of a request.

    >>> clean_url("http://localhost:8000/v1/chat/completions")
    'http://localhost:8000/v1'
    """
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        shown = "The endpoint" if "@" in url else repr(url)
        raise SpecError(f"{shown} is not the URL of a server.", hint="Write --endpoint http://host:8000/v1.")
    path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
