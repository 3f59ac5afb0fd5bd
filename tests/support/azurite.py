"""Azurite, Microsoft's own emulator of Azure's blobs: started in memory, with one container."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from tests.support.guard import kill_tree
from tests.support.services import free_port, unavailable
from tests.support.waiting import PATIENCE_S

# Every Azurite has this account, and its key is public.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CONTAINER = "shardmill"


@contextmanager
def azurite(folder: Path) -> Iterator[dict[str, str]]:
    """The environment in which az://shardmill is an empty container of an Azurite of our own."""
    search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program, node = shutil.which("azurite-blob", path=search), shutil.which("node", path=search)
    if program is None or node is None:
        unavailable("Azurite is not installed: `make test` installs it beside the packages of the tests.")
    port = free_port()
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [str(node), str(program), "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", str(port)],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    try:
        _make_container(server, endpoint, folder / "log")
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
        }
    finally:
        # `node` of the package index is a program that starts another one.
        kill_tree(server)


def _make_container(server: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(_request("PUT", endpoint), timeout=PATIENCE_S):
                return
        except OSError:
            time.sleep(0.1)
    unavailable(f"Azurite did not come up: {log.read_text()[-500:]}")


def _request(method: str, endpoint: str) -> urllib.request.Request:
    """A request about the container, signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    said = "\n".join(f"{name}:{value}" for name, value in headers.items())
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}\nrestype:container"
    signed = f"{method}{chr(10) * 12}{said}\n{resource}"
    mac = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(mac).decode()}"
    url = f"{endpoint}/{CONTAINER}?restype=container"
    return urllib.request.Request(url, method=method, headers=headers)
