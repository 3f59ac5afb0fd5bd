"""A small hub of datasets, with the routes that Hugging Face's client library and `datasets` use.

Files come from a second server, as from the hub's own storage: it must never see a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

Files = dict[str, bytes]
Answer = tuple[int, bytes, dict[str, str]]
_PAGE = 3


@dataclass
class Hub:
    """Datasets by name: commits with their files, and what branches name. `tokens` may see private ones."""

    url: str = ""
    storage: str = ""
    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    branches: dict[str, dict[str, str]] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    tokens: set[str] = field(default_factory=set)
    refused: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)

    def push(self, repo: str, files: Files, branch: str = "main") -> str:
        """A new commit with these files."""
        named = json.dumps([[path, hashlib.sha1(data).hexdigest()] for path, data in sorted(files.items())])
        commit = hashlib.sha1(f"{repo} {named} {len(self.commits.get(repo, {}))}".encode()).hexdigest()
        self.commits.setdefault(repo, {})[commit] = files
        self.branches.setdefault(repo, {})[branch] = commit
        return commit


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    hub: Hub

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Storage(_Quiet):
    def do_GET(self) -> None:
        if "Authorization" in self.headers:
            self.hub.leaked.append(self.path)
        repo, commit, path = parse_qs(urlsplit(self.path).query)["of"][0].split("|")
        data = self.hub.commits[repo][commit][path]
        tag = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        wanted = self.headers.get("Range")
        if wanted is None:
            self.answer(200, data, tag)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(len(data), int(last) + 1) if first and last else len(data)
        self.answer(206, data[start:stop], {**tag, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})

    do_HEAD = do_GET  # noqa: N815


class _Hub(_Quiet):
    def do_GET(self) -> None:
        self.answer(*self._route())

    do_HEAD = do_GET  # noqa: N815
    do_POST = do_GET  # noqa: N815

    def _route(self) -> Answer:
        hub, parts = self.hub, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.asked.append((self.command, parts.path))
        if hub.refused:
            hub.refused -= 1
            return 429, b"", {"Retry-After": "0"}
        words = [unquote(word) for word in parts.path.strip("/").split("/")]
        of_files = words[:1] == ["datasets"]
        repo = "/".join(words[1:3] if of_files else words[2:4])
        if (refusal := self._refusal(repo)) is not None:
            return refusal
        kind, revision, *path = words[3:] if of_files else (words[4:] or ["revision", "main"])
        commit = revision if revision in hub.commits[repo] else hub.branches[repo].get(revision)
        if commit is None:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"}
        match kind:
            case "resolve":
                return self._resolve(repo, commit, "/".join(path))
            case "revision":
                siblings = [{"rfilename": path} for path in hub.commits[repo][commit]]
                return _tell({"id": repo, "sha": commit, "siblings": siblings, "private": False, "tags": []})
            case "tree":
                return self._tree(hub.commits[repo][commit], "/".join(path), parse_qs(parts.query))
            case "paths-info":
                asked = json.loads(body) if body.startswith(b"{") else parse_qs(body.decode())
                return _tell(
                    [_entry(path, data) for path, data in hub.commits[repo][commit].items() if path in asked["paths"]]
                )
        return 404, b"", {}

    def _refusal(self, repo: str) -> Answer | None:
        if repo in self.hub.gated:
            return 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo not in self.hub.commits or (repo in self.hub.private and given not in self.hub.tokens):
            return 401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
        return None

    def _tree(self, files: Files, below: str, query: dict[str, list[str]]) -> Answer:
        """A page of the files in a folder and, without `recursive`, of its folders."""
        inside = f"{below}/" if below else ""
        entries = [_entry(path, data) for path, data in sorted(files.items()) if path.startswith(inside)]
        if query.get("recursive", ["false"])[0].lower() != "true":
            deeper = {
                entry["path"][len(inside) :].partition("/")[0]
                for entry in entries
                if "/" in entry["path"][len(inside) :]
            }
            entries = [entry for entry in entries if "/" not in entry["path"][len(inside) :]]
            entries += [
                {"type": "directory", "path": inside + name, "oid": "0" * 40, "size": 0} for name in sorted(deeper)
            ]
        at = int(query.get("cursor", ["0"])[0])
        status, body, headers = _tell(entries[at : at + _PAGE])
        if entries[at + _PAGE :]:
            more = urlencode({**{name: values[0] for name, values in query.items()}, "cursor": at + _PAGE})
            headers["Link"] = f'<{self.hub.url}{urlsplit(self.path).path}?{more}>; rel="next"'
        return status, body, headers

    def _resolve(self, repo: str, commit: str, path: str) -> Answer:
        data = self.hub.commits[repo][commit].get(path)
        if data is None:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        tag = f'"{hashlib.sha256(data).hexdigest()}"'
        told = {"X-Repo-Commit": commit, "ETag": tag, "X-Linked-ETag": tag, "X-Linked-Size": str(len(data))}
        return 302, b"", {**told, "Location": f"{self.hub.storage}/blob?of={quote(f'{repo}|{commit}|{path}')}"}


def _tell(what: Any) -> Answer:
    return 200, json.dumps(what).encode(), {"Content-Type": "application/json"}


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    servers = []
    for kind in (_Storage, _Hub):
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), {"hub": hub}))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.storage, hub.url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
