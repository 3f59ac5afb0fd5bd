"""Prompts sent to a real server process, which fails on purpose."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from shardmill.core import permission
from shardmill.core.errors import EndpointRefused, EndpointSilent, ShardmillError, UsageError
from shardmill.models.answer_schema import AnswerSchema, SecondTries
from shardmill.models.endpoints import Endpoint, Patience, PromptAnswer, PromptRefusal, PromptRequest, fit_schema
from shardmill.models.endpoints.pace import START
from tests.support.llm_server import KINDS, MODEL, LlmServer, answer_to, llm_server
from tests.support.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.services

Result = PromptAnswer | PromptRefusal
QUICK = Patience(pause_s=0.02)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    with llm_server() as server:
        yield server


def chat(text: str, **options: Any) -> PromptRequest:
    return PromptRequest([{"role": "user", "content": text}], 16, **options)


def ask(endpoint: Endpoint, *prompts: str) -> list[Result]:
    got = collect(endpoint, ((number, chat(text)) for number, text in enumerate(prompts)))
    return [got[number] for number in range(len(prompts))]


def collect(endpoint: Endpoint, requests: Iterable[tuple[int, PromptRequest] | None]) -> dict[int, Result]:
    got: dict[int, Result] = {}
    for group in endpoint.stream(iter(requests)):
        for key, result in group:
            assert key not in got
            got[key] = result
    return got


def list_until_error(stream: Iterator[Any]) -> list[Any]:
    groups: list[Any] = []
    try:
        groups.extend(stream)
    except ShardmillError as error:
        groups.append(error)
    return groups


def assert_refused(result: Result, reason: str) -> None:
    assert isinstance(result, PromptRefusal)
    assert reason in result.reason
    assert len(result.reason) < 600


def test_two_thousand_prompts_are_answered_once_though_a_fifth_of_the_answers_fail() -> None:
    count, given, ahead = 2_000, 0, 0

    def requests() -> Iterator[tuple[int, PromptRequest]]:
        nonlocal ahead
        for number in range(count):
            ahead = max(ahead, number - given)
            text = f"prompt {number}"
            yield number, PromptRequest(text, 16) if number % 2 else chat(text)

    with llm_server(faults=0.2, seed=11) as server:
        endpoint = Endpoint(server.url, MODEL, most=32, patience=QUICK)
        got: dict[int, Result] = {}
        for group in endpoint.stream(requests()):
            given += len(group)
            got.update(group)
        seen = server.stats()
    assert given == count
    assert got == {n: PromptAnswer(answer_to(f"prompt {n}"), "stop", 2, 2) for n in range(count)}
    assert set(seen["faults"]) == set(KINDS)
    assert sum(seen["faults"].values()) > 0.15 * count
    assert (seen["sound"], seen["sound_twice"], seen["early"]) == (count, 0, 0)
    assert ahead <= 3 * 32
    counts = endpoint.counts
    assert (counts.answers, counts.refusals, counts.tokens_in, counts.tokens_out) == (count, 0, 2 * count, 2 * count)
    assert counts.requests == count + counts.again.total()
    assert counts.again["busy"] == seen["faults"]["429"] + seen["faults"]["503"]
    assert seen["connections"] < 0.2 * count


def test_more_requests_are_sent_at_once_where_that_helps() -> None:
    with llm_server(latency=0.2) as server:
        endpoint = Endpoint(server.url, MODEL)
        assert len(collect(endpoint, ((n, chat(f"{n}")) for n in range(60)))) == 60
        assert server.stats()["peak"] > START
        assert endpoint.counts.peak > START


@pytest.mark.parametrize("kind", ["429", "429 date"])
def test_nothing_is_sent_before_the_server_allows_it(kind: str) -> None:
    with llm_server(faults=0.4, kinds=kind, seed=25) as server:
        count = 30 if kind == "429" else 2
        endpoint = Endpoint(server.url, MODEL, most=1, patience=QUICK)
        assert all(isinstance(r, PromptAnswer) for r in ask(endpoint, *(f"prompt {n}" for n in range(count))))
        seen = server.stats()
    assert seen["faults"][kind] > 0
    assert (seen["early"], seen["early_any"]) == (0, 0)
    assert endpoint.counts.held_s > 0


def test_a_limit_per_second_is_kept() -> None:
    with llm_server(per_s=80) as server:
        endpoint = Endpoint(server.url, MODEL, patience=QUICK)
        assert all(isinstance(r, PromptAnswer) for r in ask(endpoint, *(f"{n}" for n in range(120))))
        assert server.stats()["faults"].get("rate", 0) < 120


def test_a_server_that_is_killed_and_comes_back_costs_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back as soon as it is missed."""
    missed = threading.Event()
    monkeypatch.setattr("shardmill.models.endpoints.sender.say", lambda text: missed.set())
    with llm_server(latency=0.02) as server:
        endpoint = Endpoint(server.url, MODEL, patience=QUICK)
        requests = ((n, chat(f"prompt {n}")) for n in range(120))
        stream = endpoint.stream(requests)
        got = dict(next(group for group in stream if group))
        server.kill()
        back = threading.Thread(target=lambda: missed.wait(PATIENCE_S) and server.start())
        back.start()
        for group in stream:
            got.update(group)
        back.join()
    assert got == {n: PromptAnswer(answer_to(f"prompt {n}"), "stop", 2, 2) for n in range(120)}
    assert endpoint.counts.away_s > 0
    assert "the server was away" in " ".join(endpoint.notes) or endpoint.counts.away_s < 1


def test_a_server_that_stays_away_is_an_error_to_try_again_after_all_answers(capsys: Any) -> None:
    with llm_server() as server:
        endpoint = Endpoint(server.url, MODEL, patience=Patience(pause_s=0.02, away_s=0.3))
        stream = endpoint.stream((n, chat(f"prompt {n}")) for n in range(1_000))
        answered = len(next(group for group in stream if group))
        server.kill()
        groups = list_until_error(stream)
        silent = groups.pop()
    assert isinstance(silent, EndpointSilent)
    assert "cannot be reached, for" in silent.message
    assert answered + sum(map(len, groups)) == endpoint.counts.answers
    assert (silent.retryable, silent.exit_status) == (True, 74)
    assert "waiting for it" in capsys.readouterr().err


def test_a_prompt_that_breaks_the_server_is_set_aside_and_the_others_are_not(server: LlmServer) -> None:
    endpoint = Endpoint(server.url, MODEL, patience=QUICK)
    first, bad, last = ask(endpoint, "a", "!500", "b")
    assert isinstance(first, PromptAnswer)
    assert isinstance(last, PromptAnswer)
    assert_refused(bad, "no answer in 8 tries; the last time it failed (500 CUDA error")


def test_an_answer_that_never_ends_is_cut_tried_again_and_set_aside(server: LlmServer) -> None:
    endpoint = Endpoint(server.url, MODEL, patience=Patience(pause_s=0.02, answer_s=0.2))
    assert_refused(ask(endpoint, "!hang")[0], "no answer in 3 tries; the last time it does not answer in time")
    assert endpoint.counts.again["slow"] == 3


def test_refused_prompts_have_the_words_of_the_server(server: LlmServer) -> None:
    endpoint = Endpoint(server.url, MODEL, patience=QUICK)
    long, large, filtered, good = ask(endpoint, "!long", "!large", "!filter", "good")
    assert_refused(long, "400 This model's maximum context length is 4096 tokens.")
    assert_refused(large, "413 Payload Too Large")
    assert_refused(filtered, "content filter")
    assert isinstance(good, PromptAnswer)
    assert endpoint.counts.requests == 4


@pytest.mark.parametrize(
    ("model", "path", "prompt", "kind", "said"),
    [
        ("tiny-lm", "/v1", "a", EndpointRefused, r"does not exist[^\n]*\nAvailable: tiny-llm. Did you mean 'tiny-llm'"),
        (MODEL, "", "a", EndpointRefused, r"404 Not Found[^\n]*\nGive the URL up to /v1"),
        (MODEL, "/v1", "!quota", EndpointRefused, r"may spend no more"),
        (MODEL, "/v1", "!later", EndpointSilent, r"asks to wait for 24 h"),
    ],
)
def test_what_no_retry_mends_ends_with_a_line_that_helps(
    server: LlmServer, model: str, path: str, prompt: str, kind: type[ShardmillError], said: str
) -> None:
    endpoint = Endpoint(server.url.removesuffix("/v1") + path, model, patience=QUICK)
    with pytest.raises(kind, match=said) as ended:
        ask(endpoint, prompt)
    assert "\n" not in ended.value.message


def test_a_host_that_does_not_exist_is_not_waited_for() -> None:
    with pytest.raises(EndpointRefused, match="no host has this name"):
        ask(Endpoint("http://no-such-host.invalid/v1", MODEL), "a")


def test_a_model_is_checked_before_anything_is_sent(server: LlmServer) -> None:
    assert Endpoint(server.url + "/chat/completions", MODEL).check() == 4096
    with pytest.raises(EndpointRefused, match="has no model 'other'"):
        Endpoint(server.url, "other").check()
    assert Endpoint("http://127.0.0.1:1/v1", MODEL).check() is None


def test_a_server_with_another_name_for_the_largest_number_of_tokens() -> None:
    with llm_server(token_limit="max_completion_tokens") as server:
        endpoint = Endpoint(server.url, MODEL, most=1)
        assert all(isinstance(r, PromptAnswer) for r in ask(endpoint, "a", "b", "c"))
        assert endpoint.counts.requests == 4


def test_the_key_goes_to_the_server_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    key = 'sk-"planted\\1234567890'
    with llm_server(key=key) as server:
        endpoint = Endpoint(server.url, MODEL, key_variable="MY_KEY")
        with pytest.raises(EndpointRefused, match=r"denies access.*\nSet MY_KEY to a key"):
            ask(endpoint, "a")
        monkeypatch.setenv("MY_KEY", key)
        with pytest.raises(UsageError, match="MY_KEY is not sent without your permission"):
            ask(endpoint, "a")
        permission.allow([permission.key_name("MY_KEY", server.url)])
        assert isinstance(ask(endpoint, "a")[0], PromptAnswer)
        wrong = 'sk-"wrong\\0987654321'
        monkeypatch.setenv("MY_KEY", wrong)
        for act in (endpoint.check, lambda: ask(endpoint, "a")):
            with pytest.raises(EndpointRefused, match=r"denies access.*\nCheck the key in MY_KEY") as refused:
                act()
            assert "0987654321" not in repr(refused.value) + str(refused.value)
    said = "".join(capfd.readouterr()) + caplog.text + "".join(endpoint.notes) + repr(vars(endpoint))
    assert "1234567890" not in said
    assert "0987654321" not in said


def test_answers_that_do_not_fit_the_schema_have_two_more_tries(server: LlmServer) -> None:
    wanted = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name", "seed"]}
    tries = SecondTries(AnswerSchema(wanted))
    endpoint = Endpoint(server.url, MODEL)
    asked = [(prompt, chat(prompt, schema=wanted, seed=1)) for prompt in ("!fits a", "!fussy a", "!never a")]
    got = {key: result for group in endpoint.stream(iter(asked), fit_schema(tries)) for key, result in group}
    fits, fussy = got["!fits a"], got["!fussy a"]
    assert isinstance(fits, PromptAnswer)
    assert isinstance(fussy, PromptAnswer)
    assert tries.schema.why_invalid(fussy.text) is None
    assert (fits.tokens_in, fussy.tokens_in, got["!never a"].tokens_in) == (2, 4, 6)
    assert_refused(got["!never a"], 'a required property. The answer: {"name": 7}')
    assert endpoint.counts.again["invalid"] == 3


def test_requests_may_depend_on_answers_and_need_not_be_ready(server: LlmServer) -> None:
    ready: deque[tuple[int, PromptRequest]] = deque([(0, chat("0"))])
    left = 5

    def requests() -> Iterator[tuple[int, PromptRequest] | None]:
        while left:
            yield ready.popleft() if ready else None

    for group in Endpoint(server.url, MODEL).stream(requests()):
        for key, _ in group:
            left -= 1
            ready.append((key + 1, chat(f"{key + 1}")))
    assert list(ready) == [(5, chat("5"))]


def test_a_stream_that_is_given_up_leaves_no_thread(server: LlmServer) -> None:
    stream = Endpoint(server.url, MODEL).stream(iter([("a", chat("a")), ("b", chat("!hang"))]))
    assert [key for key, _ in next(group for group in stream if group)] == ["a"]
    # Whoever waits can be told to stop.
    assert next(stream) == []
    stream.close()  # type: ignore[attr-defined]
    wait_for(lambda: all(thread.name != "endpoint" for thread in threading.enumerate()))
