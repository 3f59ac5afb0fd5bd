"""What servers say, sorted: answers, refusals, setbacks, and what ends a run."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest

from shardmill.core.errors import EndpointRefused, UsageError
from shardmill.models.endpoints.request import PromptAnswer, PromptRefusal, PromptRequest, is_strict, other_token_limit
from shardmill.models.endpoints.troubles import Cause, Setback, judge_response, pause_of, retry_after

CHAT = {"choices": [{"message": {"content": "Bonjour"}, "finish_reason": "stop"}]}
USAGE = {"usage": {"prompt_tokens": 3, "completion_tokens": 1}}


def judge(status: int, said: object, **headers: str) -> PromptAnswer | PromptRefusal | Setback:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    return judge_response("http://host/v1", status, {n.replace("_", "-"): v for n, v in headers.items()}, body)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (CHAT | USAGE, PromptAnswer("Bonjour", "stop", 3, 1)),
        (CHAT, PromptAnswer("Bonjour", "stop")),
        ({"choices": [{"text": "Bon", "finish_reason": "length"}]} | USAGE, PromptAnswer("Bon", "length", 3, 1)),
        ({"choices": [{"message": {"content": None}, "finish_reason": "length"}]}, PromptAnswer("", "length")),
        (
            {"choices": [{"message": {"content": "", "refusal": "I can't."}, "finish_reason": "stop"}]} | USAGE,
            PromptRefusal("the model refused: I can't.", 3, 1),
        ),
        (
            {"choices": [{"message": {"content": "…"}, "finish_reason": "content_filter"}]},
            PromptRefusal("the server's content filter stopped the answer"),
        ),
    ],
)
def test_an_answer_is_read(said: object, wanted: object) -> None:
    assert judge(200, said) == wanted


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"[]", b"7", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": [{"message": null}]}'),
        *(b'{"choices": [{"text": {"a": 1}}]}', b'{"choices": [{"text": "half', b'{"error": "none"}', b"\xff\xfe"),
    ],
)
def test_a_broken_answer_is_asked_for_again(body: bytes) -> None:
    got = judge(200, body)
    assert isinstance(got, Setback)
    assert got.cause is Cause.FAULT


@pytest.mark.parametrize("status", [400, 413, 422, 451])
def test_a_refused_prompt_has_the_words_of_the_server_in_one_line(status: int) -> None:
    got = judge(status, {"error": {"message": "too\nlong: " + "word " * 1000}})
    assert isinstance(got, PromptRefusal)
    assert got.reason.startswith(f"the server refused the prompt: {status} too long: word")
    assert len(got.reason) < 500


@pytest.mark.parametrize("status", [301, 401, 402, 403, 404, 405])
def test_what_no_request_can_change_ends_the_run(status: int) -> None:
    with pytest.raises(EndpointRefused, match=str(status)):
        judge(status, {"detail": "no"})


def test_an_account_without_money_ends_the_run() -> None:
    with pytest.raises(EndpointRefused, match="may spend no more"):
        judge(429, {"error": {"message": "You exceeded your quota.", "code": "insufficient_quota"}})


@pytest.mark.parametrize(
    ("status", "cause"),
    [(429, Cause.BUSY), (503, Cause.BUSY), (529, Cause.BUSY), (500, Cause.FAULT), (408, Cause.FAULT)],
)
def test_what_passes_is_a_setback(status: int, cause: Cause) -> None:
    got = judge(status, b"", retry_after="7")
    assert isinstance(got, Setback)
    assert (got.cause, got.wait_s) == (cause, 7.0)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("3", 3.0), ("0.25", 0.25), ("0", 0.0), ("", None), ("soon", None), ("-1", None), ("nan", None), ("inf", None)],
)
def test_retry_after_in_seconds(said: str, wanted: float | None) -> None:
    assert retry_after({"retry-after": said}) == wanted


def test_retry_after_as_a_date_and_in_milliseconds() -> None:
    waited = retry_after({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert waited is not None
    assert 3000 < waited <= 3600
    assert retry_after({"retry-after": formatdate(0, usegmt=True)}) == 0
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5


def limits(of: str, limit: int, left: int, reset: str) -> dict[str, str]:
    values = {"limit": limit, "remaining": left, "reset": reset}
    return {f"x-ratelimit-{name}-{of}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, 0.0),
        (limits("requests", 60, 5, "55s"), 0.0),
        (limits("requests", 60, 0, "1m0s"), 1.0),
        (limits("requests", 10, 0, "200ms"), 0.02),
        (limits("tokens", 10_000, 0, "10"), 0.1),
        (limits("tokens", 10_000, 100, "10"), 0.0),
        (limits("tokens", 50, 0, "10s"), 10.0),
        (limits("requests", 0, 0, "3s"), 3.0),
        (limits("requests", 60, 0, "2026-11-16T00:00:00Z"), 0.0),
    ],
)
def test_announced_limits_are_kept(headers: dict[str, str], wanted: float) -> None:
    assert pause_of(headers, tokens=100) == pytest.approx(wanted)


def test_a_request_names_its_largest_number_of_tokens_and_nothing_that_was_not_set() -> None:
    assert json.loads(PromptRequest("Hi", 5).body("m")) == {
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.0,
        "prompt": "Hi",
    }
    request = PromptRequest(
        [{"role": "user", "content": "é"}], 7, 0.5, 0.9, seed=3, stop=("\n",), schema={"type": "object"}
    )
    assert request.path == "/chat/completions"
    sent = json.loads(request.body("m", "max_completion_tokens"))
    assert sent["messages"] == [{"role": "user", "content": "é"}]
    assert (sent["max_completion_tokens"], sent["top_p"], sent["seed"], sent["stop"]) == (7, 0.9, 3, ["\n"])
    assert sent["response_format"]["json_schema"] == {"name": "answer", "schema": {"type": "object"}, "strict": False}
    with pytest.raises(UsageError, match="0 tokens"):
        PromptRequest("Hi", 0)


def test_half_a_character_is_sent_as_a_question_mark() -> None:
    assert json.loads(PromptRequest("a\ud800b", 1).body("m"))["prompt"] == "a?b"


def test_the_other_name_of_the_largest_number_of_tokens_is_taken_from_the_refusal() -> None:
    words = "400 Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    assert other_token_limit(words, "max_tokens") == "max_completion_tokens"
    assert other_token_limit("400 Too long.", "max_tokens") is None


def test_a_schema_is_strict_if_its_objects_are_closed() -> None:
    closed = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
    assert is_strict(closed)
    assert is_strict({"type": "array", "items": closed})
    assert not is_strict({"anyOf": [{"type": "object"}]})
    assert not is_strict(closed | {"required": []})
