"""Clients of object stores: one per bucket and environment, with timeouts and limited retries."""

from __future__ import annotations

import functools
import os
import socket
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from shardmill.core.errors import UsageError
from shardmill.store import hub
from shardmill.store.troubles import no_credentials

BUCKETS = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"}
SCHEMES = BUCKETS | {"http", "https", hub.SCHEME}

_SETTINGS = ("AWS_", "AZURE_", "GOOGLE_", "HF_")
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_METADATA = "http://169.254.169.254"
_METADATA_S = 2.0

CONNECT_S = 10
SILENCE_S = 30
UPLOAD_S = 600
RETRIES, RETRY_S = 10, 180


_LONGEST_PAUSE = timedelta(seconds=15)


class Clients(NamedTuple):
    """Two clients of one bucket: `quick` gives up on a silent server, `patient` lets a slow connection upload a part.

    The read timeout of a client also counts the time it takes to send, so one client cannot do both.
    """

    quick: Any
    patient: Any


def connect(url: str) -> tuple[Clients, str]:
    """The clients for a URL, shared by all URLs in its bucket, and the prefix of its keys in the bucket."""
    scheme, _, rest = url.partition("://")
    bucket, _, folder = rest.strip("/").partition("/")
    if scheme == hub.SCHEME:
        root, folder = hub.web_address(url), ""
    elif scheme not in BUCKETS:
        root, folder = url, ""
    else:
        root = f"{scheme}://{bucket}"
    settings = tuple(sorted((k, v) for k, v in os.environ.items() if k.startswith(_SETTINGS)))
    token = hub.find_token() if scheme == hub.SCHEME else ""
    return _connect(root, settings, token), f"{folder}/" if folder else ""


@functools.lru_cache(64)
def _connect(root: str, settings: tuple[tuple[str, str], ...], token: str) -> Clients:
    known = dict(settings)
    if root.startswith("s3"):
        _look_for_credentials(root, known)
    return Clients(
        _client(
            root, known, token, {"read_timeout": timedelta(seconds=SILENCE_S), "timeout": timedelta(seconds=UPLOAD_S)}
        ),
        _client(root, known, token, {"timeout": timedelta(seconds=UPLOAD_S)}),
    )


def _client(root: str, known: dict[str, str], token: str, timeouts: dict[str, timedelta]) -> Any:
    from obstore.store import from_url

    endpoint = _endpoint(root, known)
    config: Any = {"endpoint": endpoint} if endpoint and root.startswith("s3") else None
    plain = (endpoint or root).startswith("http://")
    options: Any = {"allow_http": plain, "connect_timeout": timedelta(seconds=CONNECT_S), **timeouts}
    if token:
        # The client leaves it out where the hub sends it on to another server.
        options["default_headers"] = {"authorization": f"Bearer {token}"}
    try:
        return from_url(
            root,
            config=config,
            client_options=options,
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_S),
                "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": _LONGEST_PAUSE, "base": 3},
            },
        )
    except Exception as error:
        if "Account must be specified" in str(error):
            raise no_credentials(root) from error
        raise UsageError(f"{root}: {str(error).partition(chr(10))[0]}") from error


def find_endpoint(url: str) -> str:
    """Where the environment says that the store of a URL is, for clients that are not ours."""
    return _endpoint(url, dict(os.environ))


def options_for_others(place: str) -> dict[str, str]:
    """Where the store of a place is, for libraries that have a client of their own; nothing for a path."""
    if "://" not in place or not (endpoint := find_endpoint(place)):
        return {}
    return {"aws_endpoint": endpoint, "allow_http": str(endpoint.startswith("http://")).lower()}


def _endpoint(root: str, known: dict[str, str]) -> str:
    """Where the environment says that the store of this bucket is; "" for the service's own address."""
    if root.startswith("s3"):
        return known.get("AWS_ENDPOINT_URL_S3") or known.get("AWS_ENDPOINT_URL") or ""
    if root.startswith("gs"):
        return known.get("GOOGLE_BASE_URL", "")
    if root.startswith("http"):
        return ""
    return known.get("AZURE_STORAGE_ENDPOINT") or known.get("AZURE_ENDPOINT") or ""


def _look_for_credentials(root: str, known: dict[str, str]) -> None:
    """Fail early: without credentials the client asks the metadata service, for minutes if there is none."""
    unsigned = known.get("AWS_SKIP_SIGNATURE", "").lower() in ("true", "1", "yes", "on", "y", "t")
    if unsigned or any(known.get(name) for name in _CREDENTIALS):
        return
    service = urlsplit(known.get("AWS_METADATA_ENDPOINT") or _METADATA)
    try:
        socket.create_connection((service.hostname or "", service.port or 80), timeout=_METADATA_S).close()
    except OSError:
        raise no_credentials(root) from None
