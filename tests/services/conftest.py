"""A folder in the real store, and a line to it on which things go wrong."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator

import pytest

from shardmill.store import clients
from tests.support.badline import BadLine


@pytest.fixture
def line(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadLine]:
    """The address of the store in the environment is that of a line of our own; silence is noticed soon."""
    line = BadLine(os.environ["AWS_ENDPOINT_URL"])
    thread = threading.Thread(target=line.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", line.url)
    monkeypatch.setattr(clients, "SILENCE_S", 0.5)
    yield line
    line.shutdown()
    line.server_close()
    thread.join(10)


@pytest.fixture
def folder(s3_server: str) -> str:
    return f"{s3_server}/{uuid.uuid4().hex}"
