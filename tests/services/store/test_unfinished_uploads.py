"""What a killed process leaves of an upload: nothing of a small one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import uuid

import pytest

from shardmill.store import open_store
from tests.support.badline import BadLine

pytestmark = pytest.mark.services

SMALL, LARGE = 20 << 20, 50 << 20

_KILLED = """
import os, signal, sys
from shardmill.store import open_store
file = open_store(sys.argv[1]).writer(sys.argv[2])
for _ in range(int(sys.argv[3]) >> 20):
    file.write(bytes(1 << 20))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _unfinished() -> list[str]:
    """The uploads that were begun and neither finished nor given up, as the server keeps them."""
    url = f"{os.environ['WEED_FILER_URL']}/buckets/shardmill/.uploads/?limit=1000"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": "application/json"})) as answer:
            return [entry["FullPath"] for entry in json.load(answer)["Entries"] or ()]
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return []


def test_a_small_part_takes_one_request(line: BadLine, folder: str) -> None:
    asked: list[str] = []
    line.fault = lambda method, path: asked.append(f"{method} {path}") or ""
    store = open_store(folder)
    with store.writer("part") as file:
        for _ in range(SMALL >> 20):
            file.write(bytes(1 << 20))
    assert len(asked) == 1, asked
    found = store.head("part")
    assert found is not None
    assert found.size == SMALL


def test_a_killed_upload_of_a_small_part_leaves_nothing(folder: str) -> None:
    """A large one shows that the server keeps what is unfinished, and that we would see it."""
    before = _unfinished()
    for size, left in ((SMALL, 0), (LARGE, 1)):
        key = uuid.uuid4().hex
        subprocess.run([sys.executable, "-c", _KILLED, folder, key, str(size)], check=False)
        assert len(_unfinished()) == len(before) + left
        assert open_store(folder).head(key) is None
