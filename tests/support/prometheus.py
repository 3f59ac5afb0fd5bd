"""A real Prometheus, Debian's, that scrapes a monitor by the configuration that we ship."""

from __future__ import annotations

import contextlib
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.debian import require
from tests.support.guard import kill_tree
from tests.support.services import free_port
from tests.support.waiting import wait_for

SHIPPED = Path(__file__).parents[2] / "deploy/monitoring"


class PrometheusServer:
    """The server as a test sees it."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}") as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        return list(self.ask("query", query=expression)["result"])

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/-/ready") as answer:
            return answer.status == 200
        return False


@contextlib.contextmanager
def prometheus(folder: Path, monitor_port: int, token: str, namespace: str = "") -> Iterator[PrometheusServer]:
    """A server that scrapes every second: the shipped configuration with another target and another token.

    A `namespace` is a label of all series, as Prometheus gives it to those of a cluster.
    """
    program = require("prometheus", "prometheus")
    (folder / "token").write_text(token)
    (folder / "rules.yml").write_text((SHIPPED / "rules.yml").read_text())
    text = (SHIPPED / "prometheus.yml").read_text().replace("15s", "1s").replace(":8321", f":{monitor_port}")
    if namespace:
        text += f"        labels: {{namespace: {namespace}}}\n"
    (folder / "prometheus.yml").write_text(text)
    port = free_port()
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    options += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    process = subprocess.Popen([program, *options])
    try:
        server = PrometheusServer(port)
        wait_for(server.is_ready)
        yield server
    finally:
        kill_tree(process)
