"""Sends requests on an event loop, and sends again what did not succeed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from shardmill.core.console import duration, say
from shardmill.core.errors import EndpointRefused, EndpointSilent
from shardmill.models.endpoints.counts import EndpointCounts
from shardmill.models.endpoints.line import EndpointAddress, ServerLine
from shardmill.models.endpoints.pace import Pace
from shardmill.models.endpoints.patience import LONGEST_PAUSE_S, Patience
from shardmill.models.endpoints.request import PromptAnswer, PromptRefusal, PromptRequest, other_token_limit
from shardmill.models.endpoints.troubles import Cause, Setback, judge_error, judge_response, pause_of

K = TypeVar("K")
Result = PromptAnswer | PromptRefusal
Revise = Callable[[PromptRequest, PromptAnswer, int], PromptRequest | PromptRefusal | None]

_LONGEST_PROBE_PAUSE_S, _PROBE_S = 15.0, 30.0
_NEVER = float("-inf")


class PromptJob(Generic[K]):
    """A prompt on its way, with what went wrong so far."""

    __slots__ = ("faults", "is_last_try", "key", "reason", "renamed", "request", "slow", "spent", "tries")

    def __init__(self, key: K, request: PromptRequest) -> None:
        self.key, self.request = key, request
        self.faults = self.slow = 0
        self.tries = 1
        self.reason = ""
        self.renamed = self.is_last_try = False
        self.spent = (0, 0)


class RequestSender(Generic[K]):
    """Sends as many requests at once as the pace allows; all its methods run on the loop.

    A prompt that fails often has its last try after another prompt was answered: so a server that is away costs no row.
    """

    def __init__(
        self,
        address: EndpointAddress,
        line: ServerLine,
        pace: Pace,
        patience: Patience,
        counts: EndpointCounts,
        revise: Revise | None,
        deliver: Callable[[tuple[K, Result]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._address, self._line, self._pace, self._patience = address, line, pace, patience
        self._counts, self._revise, self._deliver, self._tell = counts, revise, deliver, fail
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PromptJob[K]] = deque()
        self._doubted: list[PromptJob[K]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = 0
        self._probing = self._away = self._failed = False
        self._token_limit = "max_tokens"
        self._answered_at = self._held_at = self._hold_until = _NEVER
        self._troubled_at: float | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._busy_in_row = 0
        self._longest_s, self._mean_tokens = 0.0, 0.0

    def take(self, job: PromptJob[K]) -> None:
        self._waiting.append(job)
        self._fill()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _fill(self) -> None:
        """Send as many of the waiting requests as are allowed now."""
        if self._failed or self._away:
            return
        if (left_s := self._hold_until - self._loop.time()) > 0:
            if self._wake is not None:
                self._wake.cancel()
            self._wake = self._loop.call_later(left_s, self._fill)
            return
        while self._waiting and self._under_way < self._pace.limit:
            self._under_way += 1
            self._start(self._attempt(self._waiting.popleft()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._tell(error)

    async def _ask(self, request: PromptRequest, limit_s: float) -> tuple[Result | Setback, Mapping[str, str]]:
        """Send a request once and sort what comes back."""
        self._counts.requests += 1
        try:
            async with asyncio.timeout(limit_s):
                body = request.body(self._address.model, self._token_limit)
                status, headers, said = await self._line.post(request.path, body)
        except Exception as error:
            return judge_error(self._address.url, error, ever_answered=self._answered_at > _NEVER), {}
        try:
            return judge_response(self._address.url, status, headers, said), headers
        except EndpointRefused as error:
            error.hint = error.hint or await self._line.advise(status)
            raise

    async def _attempt(self, job: PromptJob[K]) -> None:
        began, token_limit = self._loop.time(), self._token_limit
        limit_s = self._patience.limit_s(self._counts.answers, self._longest_s, job.slow)
        try:
            got, headers = await self._ask(job.request, limit_s)
            was_full = bool(self._waiting) or self._under_way >= self._pace.limit
        finally:
            self._under_way -= 1
        if isinstance(got, Setback):
            self._set_back(job, got, began)
        else:
            now = self._note_answer()
            self._longest_s = max(0.999 * self._longest_s, now - began)
            self._pace.answered(now, began, 1 + got.tokens_out, was_full=was_full)
            self._mean_tokens += 0.1 * (got.tokens_in + got.tokens_out - self._mean_tokens)
            if (pause_s := pause_of(headers, self._mean_tokens)) > 0:
                self._hold(min(pause_s, self._patience.away_s))
            other = other_token_limit(got.reason, token_limit) if isinstance(got, PromptRefusal) else None
            if other and not job.renamed:
                job.renamed, self._token_limit = True, other
                self._waiting.appendleft(job)
            else:
                self._conclude(job, got)
        self._fill()

    def _note_answer(self) -> float:
        self._answered_at, self._troubled_at, self._busy_in_row = self._loop.time(), None, 0
        return self._answered_at

    def _conclude(self, job: PromptJob[K], got: Result) -> None:
        """Hand a result over, unless it calls for another try."""
        job.spent = job.spent[0] + got.tokens_in, job.spent[1] + got.tokens_out
        if isinstance(got, PromptAnswer) and self._revise is not None:
            revised = self._revise(job.request, got, job.tries)
            if isinstance(revised, PromptRequest):
                job.request, job.tries = revised, job.tries + 1
                self._counts.again["invalid"] += 1
                self._waiting.appendleft(job)
                return
            got = revised or got
        result = replace(got, tokens_in=job.spent[0], tokens_out=job.spent[1])
        self._counts.add(result)
        self._counts.peak = max(self._counts.peak, self._pace.peak)
        self._deliver((job.key, result))

    def _set_back(self, job: PromptJob[K], setback: Setback, began: float) -> None:
        now = self._loop.time()
        self._troubled_at = now if self._troubled_at is None else self._troubled_at
        self._counts.again[setback.cause.value] += 1
        job.reason = setback.reason
        if setback.cause in (Cause.BUSY, Cause.SLOW):
            self._pace.overloaded(now, began)
        if setback.cause is Cause.BUSY:
            self._slow_down(setback, began)
        elif setback.cause is not Cause.AWAY:
            job.slow += setback.cause is Cause.SLOW
            job.faults += 1
            if job.is_last_try:
                self._conclude(job, PromptRefusal(f"no answer in {job.faults} tries; the last time {job.reason}"))
                return
            if job.faults >= self._patience.tries - 1 or job.slow >= self._patience.slow_tries - 1:
                self._doubted.append(job)
                self._probe(job.request)
                return
        if setback.cause is Cause.AWAY or now - self._troubled_at > self._patience.away_s:
            self._away = self._away or setback.cause is Cause.AWAY
            self._waiting.appendleft(job)
            self._probe(job.request)
        elif setback.cause is Cause.BUSY:
            self._waiting.appendleft(job)
        else:
            pause_s = min(setback.wait_s or self._patience.pause(job.faults), self._patience.away_s)
            self._loop.call_later(pause_s, self.take, job)

    def _slow_down(self, setback: Setback, began: float) -> None:
        """Send nothing for as long as the server asks, or for longer each time."""
        is_new = began > self._held_at
        self._busy_in_row += is_new
        # Whoever asks for no pause, again and again, gets a longer one each time.
        pauses = self._busy_in_row - (setback.wait_s is not None)
        own_s = self._patience.pause(pauses, 2 * LONGEST_PAUSE_S) if is_new and pauses > 0 else 0.0
        wait_s = max(setback.wait_s or 0.0, own_s)
        if wait_s > self._patience.away_s:
            self._fail(self._silent(f"it asks to wait for {duration(wait_s)}; {setback.reason}"))
        else:
            self._hold(wait_s)

    def _hold(self, wait_s: float) -> None:
        now = self._loop.time()
        if now + wait_s > self._hold_until:
            self._counts.held_s += now + wait_s - max(now, self._hold_until)
            self._held_at, self._hold_until = now, now + wait_s

    def _probe(self, like: PromptRequest) -> None:
        if not self._probing and not self._failed:
            self._probing = True
            self._start(self._await_server(like))

    async def _await_server(self, like: PromptRequest) -> None:
        """Send the smallest prompt until it is answered. If it is at once, doubted prompts have one more try."""
        prompt: Any = "Hi" if isinstance(like.prompt, str) else [{"role": "user", "content": "Hi"}]
        began, tries = self._loop.time(), 0
        while True:
            if (left_s := self._hold_until - self._loop.time()) > 0:
                await asyncio.sleep(left_s)
            sent = self._loop.time()
            got, _ = await self._ask(PromptRequest(prompt, 1), _PROBE_S)
            if not isinstance(got, Setback) or self._answered_at > sent:
                break
            tries += 1
            self._away = True
            away_s = self._loop.time() - began
            if away_s > self._patience.away_s:
                self._fail(self._silent(f"{got.reason}, for {duration(away_s)}"))
                return
            if tries == 2:
                say(f"{self._address.url}: {got.reason}; waiting for it for up to {duration(self._patience.away_s)}.")
            asked_s = min(got.wait_s or 0.0, self._patience.away_s)
            await asyncio.sleep(max(asked_s, self._patience.pause(tries, _LONGEST_PROBE_PAUSE_S)))
        now = self._note_answer()
        self._probing = self._away = False
        if tries:
            self._counts.away_s += now - began
            self._pace.returned(now)
        for job in self._doubted:
            job.is_last_try = tries == 0
            if tries:
                job.faults = job.slow = 0
            self._waiting.append(job)
        self._doubted = []
        self._fill()

    def _silent(self, reason: str) -> EndpointSilent:
        return EndpointSilent(
            f"{self._address.url} does not answer: {reason}.",
            hint="Nothing is lost: once the server is back, the same command resumes.",
        )
