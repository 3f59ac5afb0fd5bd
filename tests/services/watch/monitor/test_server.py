"""The monitor as a process of its own, over folders that others wrote: who is let in, what is read and told."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardmill.ledger import Ledger
from tests.support.cli import Cli, assert_told, process
from tests.support.ledgers import a_plan
from tests.support.libraries import needed
from tests.support.monitored import SCRIPT, MonitorProcess, hostile_run, monitor, simulate_run
from tests.support.waiting import PATIENCE_S

httpx = needed("httpx2")
needed("fastapi")
pytestmark = pytest.mark.services

CLIENTS = 1000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitorProcess]:
    folder = tmp_path_factory.mktemp("monitored") / "runs"
    hostile_run(folder / "hostile")
    Ledger(folder / f"a {SCRIPT.replace('/', '')}").create(a_plan())
    Ledger(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).create(a_plan())
    simulate_run(folder / "large", shards=20_000, workers=200)
    with monitor(folder) as process:
        yield process


@pytest.fixture
def client(served: MonitorProcess) -> Iterator[Any]:
    with httpx.Client(base_url=served.base, headers=served.bearer, timeout=PATIENCE_S) as client:
        yield client


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)
    elif isinstance(value, str):
        yield value


def test_texts_are_bounded_and_control_nothing(client: Any) -> None:
    listed = client.get("api/runs").json()
    assert len(listed["runs"]) == 4
    assert any(run["name"].startswith("a <script>") for run in listed["runs"]), "a text is told as it is"
    answers = [listed, *(client.get(f"api/runs/{run['key']}").json() for run in listed["runs"])]
    for text in (text for answer in answers for text in texts(answer)):
        assert len(text) <= 401
        assert text.isprintable(), text
    hostile = next(answer for answer in answers if answer.get("name") == "hostile")
    assert len(hostile["workers"]) == 4
    assert hostile["reasons"][0]["reason"] == SCRIPT


def test_a_log_is_text(client: Any) -> None:
    name = urllib.parse.quote("w" + SCRIPT.replace("/", ""))
    said = client.get(f"api/runs/hostile/log?worker={name}")
    assert said.headers["content-type"] == "application/json"
    assert said.json()["text"].split("\n") == ["one red \ufffdleft\ufffdright\ufffdx", SCRIPT, "done"]


def test_nothing_outside_is_read(client: Any) -> None:
    secret = b"a secret"
    said = client.get("api/runs/hostile/log?worker=outside")
    assert (said.status_code, said.json()["text"]) == (200, SCRIPT), "its own words, as it has no log here"
    linked = client.get("api/runs/hostile/log?worker=linked")
    assert linked.status_code == 404
    assert "link" in linked.json()["detail"]
    assert client.get("api/runs/hostile/files/map.html").status_code == 404
    for path in (
        "api/runs/../../etc/passwd",
        "api/runs/..%2f..%2fetc%2fpasswd",
        "api/runs/%2e%2e",
        "api/runs/hostile/files/plan.json",
        "api/runs/hostile/files/..%2f..%2f..%2fsecret.log",
        "static/..%2fapp.py",
        "static/../app.py",
        "static/%2e%2e%2f%2e%2e%2ferrors.py",
        "static/",
        "docs",
        "redoc",
    ):
        said = client.get(path)
        assert said.status_code == 404, path
        assert secret not in said.content


def test_a_page_of_others_is_sandboxed(client: Any) -> None:
    said = client.get("api/runs/hostile/files/report.html")
    assert said.status_code == 200
    policy = said.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    assert said.headers["x-content-type-options"] == "nosniff"


def test_a_page_of_any_size_is_streamed(
    client: Any, served: MonitorProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = next(path for path in tmp_path_factory.getbasetemp().glob("monitored*/runs/large"))
    size = (80 << 20) + 3
    with (folder / "map.html").open("wb") as file:
        file.truncate(size)
        file.write(b"<!doctype html>")
    before = psutil.Process(served.process.pid).memory_info().rss
    with client.stream("GET", "api/runs/large/files/map.html") as said:
        assert said.status_code == 200
        assert int(said.headers["content-length"]) == size
        assert said.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
        pieces = said.iter_bytes()
        got = len(first := next(pieces)) + sum(map(len, pieces))
    assert first.startswith(b"<!doctype html>")
    assert got == size
    assert psutil.Process(served.process.pid).memory_info().rss - before < size // 2, "it is never held as a whole"


def test_what_machines_read(client: Any) -> None:
    described = client.get("api/openapi.json").json()
    assert {"/api/runs", "/api/runs/{key}", "/api/runs/{key}/shards", "/api/events"} <= set(described["paths"])
    answer = client.get("api/runs/large/shards")
    assert len(answer.content) == 20_000
    counts = client.get("api/runs/large").json()["shard_states"]
    assert [answer.content.count(state) for state in range(4)] == [
        counts[name] for name in ("waiting", "running", "done", "failed")
    ]
    again = client.get("api/runs/large/shards", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("api/runs/large/search?q=x").status_code == 404
    assert client.get("api/runs/none").status_code == 404


def test_who_is_let_in(served: MonitorProcess) -> None:
    with httpx.Client(base_url=served.base, timeout=PATIENCE_S) as client:
        assert client.get("healthz").text == "ok\n"
        for path in ("", "api/runs", "api/events", "api/openapi.json", "static/page.js", "metrics", "nothing"):
            assert client.get(path).status_code == 401, path
        assert client.get("healthz", headers={"host": "evil.example"}).status_code == 421
        assert client.get("api/runs", headers={**served.bearer, "host": "evil.example"}).status_code == 421
        entered = client.get(f"?token={served.token}")
        assert entered.cookies
        assert client.get("api/runs").status_code == 200
        assert client.post("api/runs").status_code == 405


def test_a_thousand_slow_clients_do_not_stop_it(served: MonitorProcess, client: Any) -> None:
    """They ask for events and read nothing, or never end their question; whoever reads is served as before."""
    path = urllib.parse.urlsplit(served.base).path
    ask = f"GET {path}api/events?run=large HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {served.token}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for number in range(CLIENTS):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S))
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.sendall(ask.encode()[: len(ask) // 2 if number % 4 == 0 else None])
        assert client.get("api/runs").status_code == 200
        heard = 0
        with client.stream("GET", "api/events?run=large") as stream:
            for line in stream.iter_lines():
                heard += line.startswith("event: run")
                if heard >= 4:
                    break
        assert client.get("api/runs/large").json()["shards"] == 20_000
    assert served.process.poll() is None


@pytest.mark.timeout(300)
def test_a_fifo_in_a_run_folder_holds_nobody_up(tmp_path: Path, shardmill: Cli) -> None:
    """It would wait for whoever writes into it: the monitor's readers and `status` for ever."""
    for name in ("state", "page", "well"):
        Ledger(tmp_path / "runs" / name).create(a_plan())
    (tmp_path / "runs" / "state" / "state.json").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "runs" / "state" / "state.json")
    os.mkfifo(tmp_path / "runs" / "page" / "report.html")
    assert_told(process("status", tmp_path / "runs" / "state"), 2, "state.json is not a regular file", "remove it")
    with (
        monitor(tmp_path / "runs") as served,
        httpx.Client(base_url=served.base, headers=served.bearer, timeout=PATIENCE_S) as client,
    ):
        for _ in range(12):
            said = client.get("api/runs/page/files/report.html")
            assert (said.status_code, "not a regular file" in said.json()["detail"]) == (404, True)
        runs = {run["name"]: run for run in client.get("api/runs").json()["runs"]}
        assert "state.json is not a regular file" in runs["state"]["trouble"]
        assert (runs["page"]["trouble"], runs["well"]["trouble"]) == ("", "")


def test_a_path_behind_a_proxy_over_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "token").write_text("a token from a file\n")
    options = ("--root-path", "/watch/", "--token-file", tmp_path / "token", "--allow-host", "runs.example.org")
    with monitor(tmp_path / "runs", "--port", 0, *options) as served:
        assert served.base.endswith("/watch/")
        assert served.token == ""
        bare = served.base.removesuffix("watch/")
        headers = {"authorization": "Bearer a token from a file", "host": "runs.example.org"}
        assert httpx.get(f"{bare}api/runs", headers=headers).json()["runs"] == []
        assert 'src="static/page.js"' in httpx.get(bare, headers=headers).text
        entered = httpx.get(f"{bare}?token=a+token+from+a+file")
        assert "Path=/watch;" in entered.headers["set-cookie"]
        assert "url=/watch/" in entered.text


def test_bad_input_is_told_in_one_line(tmp_path: Path, shardmill: Cli) -> None:
    assert_told(shardmill("monitor", tmp_path / "nowhere"), 2, "no such folder")
    (tmp_path / "empty").write_text("")
    assert_told(shardmill("monitor", tmp_path, "--token-file", tmp_path / "empty"), 2, "has no token")
    assert_told(shardmill("monitor", tmp_path, "--token-file", tmp_path / "none"), 2, "cannot be read")
    (tmp_path / "short").write_text("short")
    assert_told(shardmill("monitor", tmp_path, "--token-file", tmp_path / "short"), 2, "at least 16")
    assert_told(shardmill("monitor", tmp_path, "--host", "192.0.2.1"), 2, "cannot be listened on")
    for link in ("javascript:alert('{name}')", "https://console.example.org/pods"):
        assert_told(shardmill("monitor", tmp_path, "--worker-link", link), 2, "not an address with a place for")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert_told(shardmill("monitor", tmp_path, "--port", port), 2, f"Port {port} is taken")
