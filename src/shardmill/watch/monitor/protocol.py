"""HTTP with a time limit on headers: uvicorn alone waits for them for as long as a client likes."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

# A client that takes longer to send the headers of a request is disconnected.
_HEADERS_S = 10.0


class TimedProtocol(H11Protocol):
    """Closes a connection on which no request begins, or whose headers do not end, within a time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._late is None:
            self._late = self.loop.call_later(_HEADERS_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
