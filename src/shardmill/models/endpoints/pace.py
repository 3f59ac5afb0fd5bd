"""How many requests are sent at once: found by trying."""

from __future__ import annotations

START, MOST = 8, 512
# The least gain in throughput that a doubled, and then a slightly larger, number of requests must bring.
_DOUBLING_GAIN, _STEP_GAIN = 1.15, 1.03
# A measurement takes one round of answers, at least this many.
_LEAST_ANSWERS = 16
_BACK_OFF, _CEILING_KEPT = 0.7, 0.95
_COLLAPSED_RATE, _COLLAPSED_WAIT = 0.7, 2.0
_LONGEST_REST = 32


class Pace:
    """Raises the limit while throughput rises, and lowers it when the server is overloaded.

    It doubles the limit at first and then adds an eighth. A limit that brings no more throughput is taken back, and the
    next trial waits for some rounds. After a refusal it returns to where it was by one per round.
    Times are in seconds of any clock; `work` is what an answer counts.
    """

    def __init__(self, start: int = START, most: int = MOST) -> None:
        self.limit = min(start, most)
        self.peak = self.limit
        self._most = most
        self._doubling = True
        # The limit that is known to be good, with its throughput and time per answer; 0 if not measured yet.
        self._good, self._rate, self._wait = self.limit, 0.0, 0.0
        self._rest, self._next_rest = 0, 2
        self._lowered_at = float("-inf")
        # Where the limit was before it was lowered, and the answers since it last rose.
        self._ceiling = self._since_rise = 0
        self._skip = 0
        self.begin()

    def begin(self) -> None:
        """Measure from the next answer on."""
        self._since: float | None = None
        self._answers = self._full = 0
        self._work = self._waited = 0.0

    def answered(self, now: float, began: float, work: float, *, was_full: bool) -> None:
        """Count an answer; `was_full` says that as many requests as allowed were under way."""
        if self.limit < self._ceiling:
            self._since_rise += 1
            if self._since_rise >= self.limit:
                self._since_rise = 0
                self._good = self.limit = self.limit + 1
            self.begin()
            return
        if self._skip > 0 or self._since is None:
            # Sent under another limit, or the first of all.
            self._skip = max(0, self._skip - 1)
            self._restart(now)
            return
        self._answers += 1
        self._full += was_full
        self._work += work
        self._waited += now - began
        if self._answers < max(self.limit, _LEAST_ANSWERS):
            return
        if self._full >= 0.8 * self._answers and now > self._since:
            self._decide(self._work / (now - self._since), self._waited / self._answers)
        self._restart(now)

    def overloaded(self, now: float, began: float) -> None:
        """Lower the limit, once for all requests that were under way together."""
        if began <= self._lowered_at:
            return
        self._lowered_at = now
        self._ceiling, self._since_rise = max(self.limit, int(self._ceiling * _CEILING_KEPT)), 0
        self._settle(int(self.limit * _BACK_OFF))
        self.begin()

    def returned(self, now: float) -> None:
        """Begin with one request: the server was away."""
        self._lowered_at = now
        self._settle(1)
        self._doubling, self._skip, self._ceiling = True, 0, 0
        self.begin()

    def _decide(self, rate: float, wait: float) -> None:
        if self.limit > self._good or self._rate == 0.0:
            gain = _DOUBLING_GAIN if self._doubling else _STEP_GAIN
            if rate > gain * self._rate:
                self._good, self._rate, self._wait = self.limit, rate, wait
                self._rest, self._next_rest = 0, 2
                self._raise()
            elif self._doubling:
                self._doubling = False
                self._set(self._good)
            else:
                self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)
                self._set(self._good)
            return
        if rate < _COLLAPSED_RATE * self._rate and wait > _COLLAPSED_WAIT * self._wait:
            self._ceiling = 0
            self._settle(int(self.limit * _BACK_OFF))
            return
        self._rate, self._wait = (self._rate + rate) / 2, (self._wait + wait) / 2
        if self._rest > 0:
            self._rest -= 1
        else:
            self._raise()

    def _raise(self) -> None:
        step = self.limit if self._doubling else max(1, self.limit // 8)
        self._set(min(self.limit + step, self._most))

    def _settle(self, limit: int) -> None:
        """Take a lower limit as good; it is measured anew."""
        self._doubling = False
        self._set(max(1, limit))
        self._good, self._rate, self._wait = self.limit, 0.0, 0.0
        self._rest = 0

    def _set(self, limit: int) -> None:
        if limit != self.limit:
            self._skip = self.limit
        self.limit = limit
        self.peak = max(self.peak, limit)

    def _restart(self, now: float) -> None:
        self.begin()
        self._since = now
