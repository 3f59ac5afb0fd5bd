"""An OpenAI-compatible server as a place that answers prompts."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardmill.core.errors import EndpointRefused, EndpointSilent, nearest
from shardmill.core.passwords import clean_url
from shardmill.core.permission import KEY_VARIABLE
from shardmill.models.answer_schema import SecondTries
from shardmill.models.endpoints.counts import EndpointCounts
from shardmill.models.endpoints.line import EndpointAddress
from shardmill.models.endpoints.pace import MOST, START, Pace
from shardmill.models.endpoints.patience import Patience
from shardmill.models.endpoints.request import PromptAnswer, PromptRefusal, PromptRequest
from shardmill.models.endpoints.sender import K, Result, Revise
from shardmill.models.endpoints.stream import RequestStream
from shardmill.models.endpoints.troubles import judge_error

_LOOK_S, _SIGN_OF_LIFE_S = 0.02, 1.0
_CHECK_S = 30.0


def fit_schema(tries: SecondTries) -> Revise:
    """Let only answers pass that fit a schema, as a `revise` of `Endpoint.stream`."""

    def revise(request: PromptRequest, answer: PromptAnswer, made: int) -> PromptRequest | PromptRefusal | None:
        why = tries.schema.why_invalid(answer.text)
        if why is None:
            return None
        varied = tries.vary(made, request.seed, request.temperature)
        if varied is None:
            return PromptRefusal(tries.reason(why, answer.text))
        return replace(request, seed=varied[0], temperature=varied[1])

    return revise


class Endpoint:
    """A model behind a URL, such as vLLM's `http://host:8000/v1`. The key is read from an environment variable.

    How many requests are sent at once is found by trying, up to `most`, and kept from one stream to the next.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str = KEY_VARIABLE,
        most: int = MOST,
        patience: Patience | None = None,
    ) -> None:
        self._address = EndpointAddress(clean_url(url), model, key_variable)
        # Each connection is an open file.
        self._pace = Pace(START, min(most, max(START, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)))
        self._patience = patience or Patience()
        self.counts = EndpointCounts()

    @property
    def url(self) -> str:
        return self._address.url

    def check(self) -> int | None:
        """Refuse a model that the server does not have; give the largest number of tokens of it, if the server says.

        A server that cannot be reached yet is no error: `stream` waits for it.
        """

        async def look() -> list[dict[str, Any]] | None:
            async with self._address.connect() as line, asyncio.timeout(_CHECK_S):
                return await line.list_models()

        try:
            listed = asyncio.run(look())
        except (EndpointRefused, EndpointSilent):
            raise
        except Exception as error:
            judge_error(self.url, error, ever_answered=False)
            return None
        if listed is None:
            return None
        found = [entry for entry in listed if entry["id"] == self._address.model]
        if not found:
            raise EndpointRefused(
                f"{self.url} has no model {self._address.model!r}.",
                hint=nearest(self._address.model, [entry["id"] for entry in listed]),
            )
        largest = found[0].get("max_model_len")
        return largest if isinstance(largest, int) and largest > 0 else None

    def stream(
        self, requests: Iterator[tuple[K, PromptRequest] | None], revise: Revise | None = None
    ) -> Iterator[list[tuple[K, Result]]]:
        """Answer requests, each with its key, in groups as the answers arrive.

        None among the requests means that none is ready just now. While nothing arrives, an empty group is given every
        second. `revise` sees each answer with the request and the
        number of tries; it returns None if the answer is good, another request to send instead, or a refusal.
        """
        self._pace.begin()
        under_way: RequestStream[K] = RequestStream(self._address, self._pace, self._patience, self.counts, revise)
        try:
            more = True
            while more or under_way.held:
                starved = False
                while more and not starved and under_way.wants_more:
                    try:
                        given = next(requests)
                    except StopIteration:
                        more = False
                        break
                    if given is None:
                        starved = True
                    else:
                        under_way.send(*given)
                if under_way.held or starved:
                    done = under_way.collect(_LOOK_S if starved else _SIGN_OF_LIFE_S)
                    if done or not starved:
                        yield done
        finally:
            under_way.close()

    @property
    def notes(self) -> list[str]:
        """What was sent, in sentences for the worker's record."""
        return self.counts.sentences(self.url)
