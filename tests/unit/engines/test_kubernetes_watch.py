"""How a watch goes on after all that an API server may answer. What no real one does on demand is played here."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import EngineRefused, EngineSilent, UsageError
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for

needed("lightkube")

from shardmill.engines.kubernetes import api as api_module  # noqa: E402
from shardmill.engines.kubernetes.api import ClusterApi, patiently  # noqa: E402
from shardmill.engines.kubernetes.mirror import GONE, Mirror  # noqa: E402

PODS = "/api/v1/namespaces/ml/pods"


def pod(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def listed(version: int, *pods: dict[str, Any]) -> tuple[int, list[Any]]:
    return 200, [{"metadata": {"resourceVersion": str(version)}, "items": list(pods)}]


def event(what: str, seen: dict[str, Any]) -> dict[str, Any]:
    return {"type": what, "object": seen}


class Played(ThreadingHTTPServer):
    """Gives prepared answers, in order; the last one again and again."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, list[Any]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers, self.asked = list(answers), list[str]()
        self.tokens: list[str] = []
        self.good_token = ""

    def api(self, folder: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any] | None = None) -> ClusterApi:
        server = f"http://127.0.0.1:{self.server_address[1]}"
        config = {
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "me", "user": user or {"token": "token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me", "namespace": "ml"}}],
        }
        (folder / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(folder / "config"))
        return ClusterApi()


class _Handler(BaseHTTPRequestHandler):
    server: Played

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.server.tokens.append(self.headers.get("Authorization", ""))
        if self.server.good_token and self.server.tokens[-1] != f"Bearer {self.server.good_token}":
            status, lines = 401, [{"message": "Unauthorized"}]
        else:
            answers = self.server.answers
            status, lines = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        for line in lines:
            self.wfile.write(json.dumps(line).encode() + b"\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    servers: list[Played] = []
    monkeypatch.setattr(api_module, "pause", lambda faults: 0.01)

    def start(*answers: tuple[int, list[Any]]) -> Played:
        server = Played(*answers)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def changes(mirror: Mirror, count: int) -> list[tuple[str, str]]:
    found = [mirror.changes.get(timeout=PATIENCE_S) for _ in range(count)]
    return [(change.what, change.object["metadata"]["name"]) for change in found]


def test_a_watch_goes_on_after_bookmarks_cuts_and_errors(
    play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = play(
        listed(5, pod("a", 4)),
        (200, [event("ADDED", pod("b", 6)), event("BOOKMARK", pod("", 90))]),
        (429, [{"message": "slow down"}]),
        (503, [{"message": "starting"}]),
        (200, [event("MODIFIED", pod("a", 91))]),
        (200, [event("ERROR", {"code": 410, "message": "too old"})]),
        listed(200, pod("b", 6), pod("c", 150)),
        (200, [event("DELETED", pod("c", 201))]),
        (200, []),
    )
    mirror = Mirror(server.api(tmp_path, monkeypatch), PODS, labelSelector="app=x")
    mirror.start()
    first = [("MODIFIED", "a"), ("ADDED", "b"), ("MODIFIED", "a")]
    again = [(GONE, "a"), ("MODIFIED", "b"), ("MODIFIED", "c"), (GONE, "c")]
    assert changes(mirror, 7) == first + again
    mirror.end()
    watches = [path for path in server.asked if "watch=true" in path]
    # The bookmark's version, not that of the last pod.
    assert "resourceVersion=90" in watches[1]
    assert all("allowWatchBookmarks=true" in path and "labelSelector=app%3Dx" in path for path in watches)
    wait_for(lambda: mirror.trouble is None)


def test_a_list_is_read_page_by_page(play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = (200, [{"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [pod("a", 1)]}])
    server = play(first, listed(7, pod("b", 2)))
    found, version = server.api(tmp_path, monkeypatch).items(PODS)
    assert ([each["metadata"]["name"] for each in found], version) == (["a", "b"], "7")
    assert "continue=more" in server.asked[1]


def test_a_token_is_made_anew_when_it_has_expired(play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the program that the kubeconfig names, in each version of its interface."""
    script = f"import json; print(json.dumps({{'status': {{'token': open('{tmp_path}/token').read()}}}}))"
    for version in ("v1", "v1beta1"):
        server = play(listed(1))
        run = {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": sys.executable,
            "args": ["-c", script],
        }
        api = server.api(tmp_path, monkeypatch, {"exec": run})
        for token in ("one", "two"):
            (tmp_path / "token").write_text(token)
            server.good_token = token
            api.items(PODS)
        assert server.tokens[-2:] == ["Bearer one", "Bearer two"]


def test_a_server_that_is_away_is_asked_again(play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = play((500, [{}]), (429, [{}]), listed(3))
    assert patiently(lambda: server.api(tmp_path, monkeypatch).items(PODS), 60) == ([], "3")
    server.answers = [(503, [{"message": "no leader"}])]
    with pytest.raises(EngineSilent, match="no leader"):
        patiently(lambda: server.api(tmp_path, monkeypatch).items(PODS), 0)


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (401, "Unauthorized", "kubectl auth whoami"),
        (403, 'User "ann" cannot list resource "pods"', "shardmill kubernetes render role"),
        (404, 'namespaces "ml" not found', "There is no namespace 'ml'"),
        (422, "spec.template: Invalid value", "Invalid value"),
    ],
)
def test_a_refusal_says_what_to_do(
    status: int, message: str, words: str, play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = play((status, [{"message": message}]))
    with pytest.raises(EngineRefused) as refused:
        server.api(tmp_path, monkeypatch).items(PODS)
    assert words in str(refused.value)


@pytest.mark.parametrize("content", [None, "", "[]", "a: [", "{}", '{"clusters": 5, "contexts": []}'])
def test_a_kubeconfig_that_cannot_be_used_is_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none{os.pathsep}{path}")
    with pytest.raises(UsageError) as refused:
        ClusterApi()
    assert refused.value.hint


def test_a_context_that_is_misspelt_is_guessed(play: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(listed(1)).api(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="Did you mean 'test'"):
        ClusterApi(context="tset")
