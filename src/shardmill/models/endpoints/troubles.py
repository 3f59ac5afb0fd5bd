"""Sorts what a server answers: an answer, a refusal of one prompt, a setback that passes, or the end of the run."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from socket import EAI_AGAIN, gaierror

from shardmill.core.errors import EndpointRefused, is_passing
from shardmill.models.endpoints.request import BrokenAnswer, PromptAnswer, PromptRefusal, read_answer, read_error

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s|)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_OVERLOADED = {429, 503, 529}
_NO_MONEY = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}


class Cause(Enum):
    """What a setback is about."""

    FAULT = "fault"  # one answer is missing or broken
    SLOW = "slow"  # one answer takes too long
    BUSY = "busy"  # the server asks for fewer requests
    AWAY = "away"  # nobody listens


@dataclass(frozen=True, slots=True)
class Setback:
    """A request that is sent again; `wait_s` is how long the server asks to wait."""

    cause: Cause
    reason: str
    wait_s: float | None = None


def judge_response(
    place: str, status: int, headers: Mapping[str, str], body: bytes
) -> PromptAnswer | PromptRefusal | Setback:
    """Sort a response. Raises EndpointRefused if no request can succeed."""
    if status == 200:
        try:
            return read_answer(body)
        except BrokenAnswer as error:
            return Setback(Cause.FAULT, str(error))
    words, code = read_error(body)
    said = f"{status} {words}".strip()
    if code in _NO_MONEY or status == 402:
        raise EndpointRefused(f"{place}: the account may spend no more ({said}).", hint="Check its quota and billing.")
    if status in _OVERLOADED:
        return Setback(Cause.BUSY, f"it is overloaded ({said})", retry_after(headers))
    if status >= 500 or status in (408, 425):
        return Setback(Cause.FAULT, f"it failed ({said})", retry_after(headers))
    if status in (401, 403):
        raise EndpointRefused(f"{place} denies access ({said}).")
    if status == 404 or code == "model_not_found":
        raise EndpointRefused(f"{place} does not know the model or the address ({said}).")
    if status < 400 or status == 405:
        raise EndpointRefused(
            f"{place} is not an OpenAI-compatible server ({said or 'no error message'}).",
            hint="Give the URL up to /v1, as in http://host:8000/v1.",
        )
    return PromptRefusal(f"the server refused the prompt: {said}")


def judge_error(place: str, error: Exception, *, ever_answered: bool) -> Setback:
    """Sort an error of the connection. Raises EndpointRefused if a retry cannot help."""
    import httpx2

    causes = _causes(error)
    if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
        raise EndpointRefused(f"{place} is not the URL of a server ({error}).", hint="As in http://host:8000/v1.")
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        raise EndpointRefused(
            f"{place}: the certificate of the server is not trusted ({causes[-1]}).",
            hint="Set SSL_CERT_FILE to the authority that signed it.",
        )
    unknown = [cause for cause in causes if isinstance(cause, gaierror) and cause.errno != EAI_AGAIN]
    if unknown and not ever_answered:
        raise EndpointRefused(f"{place}: no host has this name ({unknown[0].strerror}).", hint="Check the URL.")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
        return Setback(Cause.AWAY, "it cannot be reached")
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return Setback(Cause.SLOW, "it does not answer in time")
    if isinstance(error, httpx2.TransportError | BrokenAnswer) or is_passing(error):
        return Setback(Cause.FAULT, f"the connection broke ({error or type(error).__name__})")
    raise error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait: a number, a date, or milliseconds."""
    if (milliseconds := _number(headers.get("retry-after-ms", ""))) is not None:
        return milliseconds / 1000
    said = headers.get("retry-after", "").strip()
    if (seconds := _number(said)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def pause_of(headers: Mapping[str, str], tokens: float) -> float:
    """The seconds until one more request of this many tokens fits the limits that a server announces."""
    return max(_pause(headers, "requests", 1.0), _pause(headers, "tokens", max(1.0, tokens)))


def _pause(headers: Mapping[str, str], of: str, need: float) -> float:
    left = _number(headers.get(f"x-ratelimit-remaining-{of}", ""))
    reset_s = _duration(headers.get(f"x-ratelimit-reset-{of}", ""))
    if left is None or reset_s is None or left >= need:
        return 0.0
    limit = _number(headers.get(f"x-ratelimit-limit-{of}", ""))
    # The bucket is full after `reset_s`; it fills evenly.
    return reset_s if not limit or limit <= left else reset_s * min(1.0, (need - left) / (limit - left))


def _duration(said: str) -> float | None:
    """Seconds of durations such as 6m0s, 20ms or 1.5."""
    parts = _DURATION.findall(said)
    if not parts or "".join(number + unit for number, unit in parts) != said.strip():
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def _number(said: str) -> float | None:
    try:
        number = float(said)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < 16:
        found.append(seen)
        if isinstance(seen, BaseExceptionGroup):
            found.extend(seen.exceptions)
        seen = seen.__cause__ or seen.__context__
    return found
