"""A collector of OpenTelemetry's traces in a process of its own; what it got is in a file, one span a line."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class OtlpCollector:
    """The collector as a test sees it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-m", "tests.support.otlp", str(file)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def spans(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def otlp_collector(file: Path) -> Iterator[OtlpCollector]:
    collector = OtlpCollector(file)
    try:
        yield collector
    finally:
        collector.kill()


def _describe(span: Any, resource: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "began": span.start_time_unix_nano / 1e9,
        "ended": span.end_time_unix_nano / 1e9,
        "failed": span.status.message,
        "attributes": _values(span.attributes),
        "resource": resource,
    }


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def _main(file: Path) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            with open(file, "a") as got:
                for resource_spans in request.resource_spans:
                    resource = _values(resource_spans.resource.attributes)
                    for scope in resource_spans.scope_spans:
                        got.writelines(json.dumps(_describe(span, resource)) + "\n" for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
