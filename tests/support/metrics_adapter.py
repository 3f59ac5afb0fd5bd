"""What prometheus-adapter does with a rule of ours: it answers the cluster's questions for an external metric.

Its program is not to be had here, so this reads the rule as its documentation says; Prometheus, the API server and the
autoscaler are real.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.support.prometheus import PrometheusServer
from tests.support.served import served

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
_ASKED = re.compile(rf"/apis/{GROUP}/{VERSION}/namespaces/(?P<namespace>[^/]+)/(?P<metric>[^/?]+)")


class _Handler(BaseHTTPRequestHandler):
    rule: dict[str, Any]
    source: PrometheusServer

    def do_GET(self) -> None:
        found: dict[str, Any] = {"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": f"{GROUP}/{VERSION}"}
        found["resources"] = []
        if asked := _ASKED.match(self.path):
            found = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ExternalMetricValueList", "metadata": {}}
            found["items"] = self._values(asked["namespace"]) if asked["metric"] == self.rule["name"]["as"] else []
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _values(self, namespace: str) -> list[dict[str, Any]]:
        """A series counts for the namespace of the autoscaler alone."""
        (label,) = self.rule["resources"]["overrides"]
        query = self.rule["metricsQuery"].replace("<<.Series>>", self.rule["seriesQuery"])
        query = query.replace("<<.LabelMatchers>>", f'{label}="{namespace}"')
        now = datetime.now(UTC).isoformat(timespec="seconds")
        values = [series["value"][1] for series in self.source.query(query)]
        return [{"metricName": self.rule["name"]["as"], "timestamp": now, "value": value} for value in values]

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def metrics_adapter(rule: dict[str, Any], source: PrometheusServer, certificate: Path) -> Iterator[int]:
    """The server; yields its port, where the API server speaks TLS to it."""
    handler = type("Handler", (_Handler,), {"rule": rule, "source": source})
    with served(handler, certificate) as port:
        yield port
