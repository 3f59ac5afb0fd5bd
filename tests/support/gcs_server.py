"""A small server of Google Cloud Storage's XML rules: what obstore's client asks for, objects in memory.

Each write gives an object a new generation. `x-goog-if-generation-match` must name the current one, 0 if there is none.
"""

from __future__ import annotations

import itertools
import json
import threading
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

# The client sends no token with this key, so the server asks for none.
_KEY = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
_MODIFIED = formatdate(0, usegmt=True)


@dataclass(frozen=True, slots=True)
class StoredObject:
    data: bytes
    generation: int

    @property
    def headers(self) -> dict[str, str]:
        tag = f'"g{self.generation}"'
        return {"ETag": tag, "x-goog-generation": str(self.generation), "Last-Modified": _MODIFIED}


class GcsServer:
    """With a `token`, it answers only requests that carry it."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.objects: dict[str, StoredObject] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.numbers = itertools.count(1_000)
        handler = type("Handler", (_GcsHandler,), {"shared": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {"GOOGLE_BASE_URL": url} | ({} if self.token else {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(_KEY)})

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _GcsHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    shared: GcsServer

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        _, _, key = unquote(parts.path).strip("/").partition("/")
        asked = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if self.shared.token and self.headers.get("Authorization") != f"Bearer {self.shared.token}":
            self._answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
            return
        with self.shared.lock:
            self._answer(*getattr(self, f"_{self.command.lower()}")(key, asked, body))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815

    def _get(self, key: str, asked: dict[str, str], body: bytes) -> tuple[Any, ...]:
        if not key:
            return 200, {}, self._list(asked)
        found = self.shared.objects.get(key)
        if found is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        if self.headers.get("If-Match", found.headers["ETag"]) != found.headers["ETag"]:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if self.headers.get("If-None-Match") == found.headers["ETag"]:
            return 304, {}, b""
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            data = found.data[int(first) : int(last) + 1]
            where = f"bytes {first}-{int(first) + len(data) - 1}/{len(found.data)}"
            return 206, {**found.headers, "Content-Range": where}, data
        return 200, found.headers, found.data

    _head = _get

    def _put(self, key: str, asked: dict[str, str], body: bytes) -> tuple[Any, ...]:
        if "uploadId" in asked:
            self.shared.uploads[asked["uploadId"]][int(asked["partNumber"])] = body
            return 200, {"ETag": f'"part-{asked["partNumber"]}"'}, b""
        current = self.shared.objects.get(key)
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != (current.generation if current else 0):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        return 200, self._store(key, body).headers, b""

    def _post(self, key: str, asked: dict[str, str], body: bytes) -> tuple[Any, ...]:
        if "uploads" in asked:
            upload = str(next(self.shared.numbers))
            self.shared.uploads[upload] = {}
            said = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
            return 200, {}, said.encode()
        pieces = self.shared.uploads.pop(asked["uploadId"])
        stored = self._store(key, b"".join(pieces[number] for number in sorted(pieces)))
        tag = escape(stored.headers["ETag"])
        said = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
        return 200, stored.headers, said.encode()

    def _delete(self, key: str, asked: dict[str, str], body: bytes) -> tuple[Any, ...]:
        return (204 if self.shared.objects.pop(key, None) else 404), {}, b""

    def _store(self, key: str, data: bytes) -> StoredObject:
        stored = self.shared.objects[key] = StoredObject(data, next(self.shared.numbers))
        return stored

    def _list(self, asked: dict[str, str]) -> bytes:
        prefix, after, delimiter = (asked.get(name, "") for name in ("prefix", "start-after", "delimiter"))
        if delimiter:
            below = {key[len(prefix) :].partition("/")[0] for key in self.shared.objects if key.startswith(prefix)}
            folders = [f for f in sorted(below) if any(k.startswith(f"{prefix}{f}/") for k in self.shared.objects)]
            found_in = "".join(
                f"<CommonPrefixes><Prefix>{escape(prefix + f)}/</Prefix></CommonPrefixes>" for f in folders
            )
            return f"<ListBucketResult>{found_in}</ListBucketResult>".encode()
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(found.data)}</Size>"
            f"<LastModified>1970-01-01T00:00:00.000Z</LastModified><ETag>{escape(found.headers['ETag'])}</ETag></Contents>"
            for key, found in sorted(self.shared.objects.items())
            if key.startswith(prefix) and key > after
        ]
        return f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass
