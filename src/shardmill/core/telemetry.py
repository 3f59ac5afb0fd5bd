"""A run as a trace of OpenTelemetry: its plan, its shards and the steps after them.

Whoever does a step sends its span. All of them find the same trace, because its id comes from the run's own. Without an
endpoint in the environment nothing is imported, made or sent.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from shardmill._version import __version__
from shardmill.core.console import say
from shardmill.core.extras import missing_package

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# Of more shards, this many at even distances have spans.
MOST_SHARDS = 1000
_LONGEST = 200
_PARTING_S = 5.0


def is_on() -> bool:
    """Whether the environment names an endpoint."""
    return any(os.environ.get(name) for name in _ENDPOINTS)


def open_trace(plan: str, generation: str) -> RunTrace | None:
    """The trace of a run, by the id and the generation of its plan; None if nothing is to be sent."""
    sender = _open_sender() if is_on() else None
    return RunTrace(sender, plan, generation) if sender is not None else None


class RunTrace:
    """Adds spans to the trace of a run. A span that cannot be sent is lost, and nothing waits for it."""

    def __init__(self, sender: _SpanSender, plan: str, generation: str) -> None:
        self._sender, self._plan = sender, plan
        self.trace_id, self.root_id = trace_ids(plan, generation)

    def add(self, name: str, began: float, ended: float, *, failed: str = "", **attributes: Any) -> None:
        """Add what was done from one time to another, in seconds since 1970."""
        self._sender.send(self, name, began, ended, attributes, failed, is_root=False)

    @contextlib.contextmanager
    def timed(self, name: str, **attributes: Any) -> Iterator[None]:
        """Add what is done inside, also if it fails."""
        began, failed = time.time(), ""
        try:
            yield
        except BaseException as error:
            failed = type(error).__name__
            raise
        finally:
            self.add(name, began, time.time(), failed=failed, **attributes)

    def add_shard(self, shard: int, shards: int, began: float, ended: float, **attributes: Any) -> None:
        """Add a committed shard, unless there are too many and it is not one of those that are shown."""
        if shard % -(-shards // MOST_SHARDS) == 0:
            self.add("shard", began, ended, shard=shard, **attributes)

    def end(self, began: float, *, failed: str = "", **attributes: Any) -> None:
        """Add the run itself, from its beginning until now."""
        self._sender.send(self, "run", began, time.time(), {"plan": self._plan, **attributes}, failed, is_root=True)


def timed_step(plan: str, generation: str, name: str, **attributes: Any) -> contextlib.AbstractContextManager[None]:
    """A step of a run as a span of its trace, if there is one."""
    trace = open_trace(plan, generation)
    return trace.timed(name, **attributes) if trace is not None else contextlib.nullcontext()


def trace_ids(plan: str, generation: str) -> tuple[int, int]:
    """The id of a run's trace and that of its first span. Neither may be 0.

    >>> [f"{number:x}" for number in trace_ids("9f2c", "a1b2c3d4")]
    ['5cd9ff65ce700d1052fb53de21c2f96b', 'dd15369ac1c3a86f']
    """
    digest = hashlib.sha256(f"shardmill {plan} {generation}".encode()).digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:24], "big") or 1


@functools.cache
def _open_sender() -> _SpanSender | None:
    """One sender per process; None, said once, if the libraries are missing."""
    try:
        return _SpanSender()
    except ImportError as error:
        say(f"No trace is sent: {missing_package(error.name or 'opentelemetry', 'telemetry')}")
        return None


class _SpanSender:
    """Sends spans in batches from a thread of the library's own; at the end of the process it has a few seconds."""

    def __init__(self) -> None:
        import atexit

        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class Ids(RandomIdGenerator):
            """Ids of the next span: those of a run for its first span, random ones otherwise."""

            run: RunTrace | None = None

            def generate_trace_id(self) -> int:
                return self.run.trace_id if self.run is not None else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return self.run.root_id if self.run is not None else super().generate_span_id()

        own = {"service.version": __version__}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            own["service.name"] = "shardmill"
        self._api, self._ids, self._lock = trace, Ids(), threading.Lock()
        self._provider = TracerProvider(resource=Resource.create(own), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("shardmill", __version__)
        atexit.register(self._part)

    def send(
        self, run: RunTrace, name: str, began: float, ended: float, attributes: Any, failed: str, *, is_root: bool
    ) -> None:
        api = self._api
        context = None
        if not is_root:
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            parent = api.SpanContext(run.trace_id, run.root_id, is_remote=True, trace_flags=flags)
            context = api.set_span_in_context(api.NonRecordingSpan(parent))
        with self._lock:
            self._ids.run = run if is_root else None
            span = self._tracer.start_span(name, context=context, start_time=int(began * 1e9))
        for key, value in attributes.items():
            span.set_attribute(f"shardmill.{key}", value[:_LONGEST] if isinstance(value, str) else value)
        if failed:
            span.set_status(api.Status(api.StatusCode.ERROR, failed[:_LONGEST]))
        span.end(int(ended * 1e9))

    def _part(self) -> None:
        """Send what is left. The library would wait longer for a collector that is away."""
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(_PARTING_S)
