"""A bucket of Google's reached by the identity of an account, as on GKE: no key, but a token of the metadata server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from shardmill.core.errors import ShardmillError
from shardmill.run import start
from shardmill.store import open_store
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.gcs_server import GcsServer
from tests.support.served import served

TOKEN = "ya29.of-the-account"
PATH = "/computeMetadata/v1/instance/service-accounts/default/token"


class MetadataHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path.partition("?")[0] == PATH and self.headers.get("Metadata-Flavor") == "Google"
        body = (
            json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}).encode() if known else b""
        )
        self.send_response(200 if known else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    server = GcsServer(TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    yield "gs://of-an-account"
    server.stop()


def test_a_run_by_the_identity_of_the_account(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fake_rows(40)
    with served(MetadataHandler) as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        open_store(f"{bucket}/in").put("items.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        spec = fake_spec(f"{bucket}/in/items.jsonl", shard_bytes=1_000)
        run = start(spec, f"{bucket}/run", engine=InProcessEngine())
        assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in rows]
        assert run.verify().verified


def test_an_account_without_a_right_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.contract.test_gcs_identity.TOKEN", "ya29.of-another")
    with served(MetadataHandler) as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        with pytest.raises(ShardmillError, match="access is denied"):
            open_store(f"{bucket}/in").put("items.jsonl", b"{}")
