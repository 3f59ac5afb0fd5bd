"""Stand-ins of the clouds' metadata services: what they say before and after the notice, by their documentation."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "a token of two minutes"
AWS = "/latest/meta-data/spot/instance-action"
GCP = "/computeMetadata/v1/instance/preempted"
AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_NOTICE = {"action": "terminate", "time": "2026-11-19T17:00:00Z"}


@dataclass
class MetadataService:
    """`taken` is whether this machine is taken away; `others` whether another one of its scale set is."""

    address: str = ""
    taken: bool = False
    others: bool = False
    asked: list[str] = field(default_factory=list)

    def answer(self, path: str, header: dict[str, str]) -> tuple[int, str]:
        if path == AWS:
            if header.get("x-aws-ec2-metadata-token") != TOKEN:
                return 401, ""
            return (200, json.dumps(_NOTICE)) if self.taken else (404, "")
        if path == GCP and header.get("metadata-flavor") == "Google":
            return 200, "TRUE" if self.taken else "FALSE"
        if path == AZURE and header.get("metadata") == "true":
            whom = ["vm_1"] * self.taken + ["vm_2"] * self.others
            event = {"EventType": "Preempt", "Resources": whom, "NotBefore": "Thu, 19 Nov 2026 17:00:00 GMT"}
            return 200, json.dumps({"Events": [event] if whom else []})
        if path == _AZURE_NAME and header.get("metadata") == "true":
            return 200, "vm_1"
        return 400, ""


@contextmanager
def metadata_service() -> Iterator[MetadataService]:
    service = MetadataService()

    class Handler(BaseHTTPRequestHandler):
        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            service.asked.append(self.path)
            self._say(*service.answer(self.path, {name.lower(): value for name, value in self.headers.items()}))

        def do_PUT(self) -> None:
            wanted = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
            self._say(200 if wanted else 400, TOKEN)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
