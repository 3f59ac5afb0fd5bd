"""Prompts in, replies out: by a model of this process, or by a server. Tasks that need a text written use these."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, SpecError
from shardmill.core.extras import missing_package
from shardmill.core.permission import KEY_VARIABLE
from shardmill.core.startup import IMPORTING, doing
from shardmill.models.answer_schema import AnswerSchema, SecondTries
from shardmill.models.code import names_of_code
from shardmill.models.decoding.generation_config import answer_numerics, check_generation, own_beams, own_most_new
from shardmill.models.decoding.generative import GenerativeFolder, read_generative
from shardmill.models.decoding.languages import (
    Languages,
    check_languages,
    read_languages,
    say_languages,
    settle_target,
)
from shardmill.models.decoding.options import Asked, GenerationOptions
from shardmill.models.installed import check_torch
from shardmill.models.location import Location, find_model
from shardmill.models.reply import Key, Reply, join_answers, stream_answers

if TYPE_CHECKING:
    from shardmill.models.decoding.generator import Generator
    from shardmill.models.decoding.prompt import Completion, Prompt
    from shardmill.models.endpoints import Endpoint, PromptAnswer

# The seats of a model limit its rows by themselves; the worker's budget takes effect once memory has run out.
_NO_LIMIT = 1 << 31
# Requests that a server may be asked at once.
_MOST_REQUESTS = 4096
# Operations per second that a usual device spends on reading and on writing one token after another, and the bytes
# and tokens of a usual prompt; only for the size of shards.
_READING, _WRITING = {"cpu": 1e11, "cuda": 1e14}, {"cpu": 2e10, "cuda": 1e13}
_PROMPT_BYTES, _PROMPT_TOKENS = 2_000, 500
_SERVER_BYTES_PER_S = 50_000.0


@dataclass(frozen=True, slots=True)
class EncodedPrompts:
    """A prompt for each text with its cost, why a text is refused, and how many tokens they have, where it is known."""

    prompts: list[Any]
    costs: list[int]
    bad: dict[int, str]
    tokens: int = 0


class Replies(Protocol):
    """A model that replies. `counts_tokens` says whether the tokens of a prompt are known when it is encoded.

    `settles` names the parameters that planning has to settle, by `settle`; `follow_model` gives the beams and the
    limit of new tokens that the model's own settings ask for.
    """

    counts_tokens: bool
    most_cost: int

    @property
    def plan_notes(self) -> Sequence[str]: ...
    @property
    def settles(self) -> tuple[str, ...]: ...
    def settle(self) -> dict[str, str]: ...
    @property
    def model_code(self) -> tuple[str, ...]: ...
    def fingerprint(self) -> dict[str, str]: ...
    def follow_model(self) -> dict[str, Any]: ...
    def check_installed(self) -> None: ...
    def open(self, device: Device) -> None: ...
    def close(self) -> None: ...
    def encode(self, asked: Sequence[Asked | None]) -> EncodedPrompts: ...
    def stream(self, prompts: Iterator[tuple[Key, Any] | None]) -> Iterator[list[tuple[Key, Reply]]]: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def numerics(self) -> dict[str, str]: ...
    def gpu_bytes(self, precise: bool) -> int | None: ...
    def bytes_per_s(self, kind: str, max_tokens: int) -> float: ...


def open_replies(
    model: str,
    options: GenerationOptions,
    schema: AnswerSchema | None = None,
    *,
    endpoint: str = "",
    key_variable: str = KEY_VARIABLE,
    adapter: str | None = None,
) -> Replies:
    """The model that replies: a folder, or with an endpoint a server's, whose key is in an environment variable."""
    if endpoint and adapter:
        raise SpecError(
            "An adapter is given with an endpoint, whose server has its own models.",
            hint="Load the adapter there, and pass the name it has there as --model.",
        )
    if endpoint:
        # A server is asked again with another seed, not with more tokens.
        return RemoteModel(model, endpoint, key_variable, options, schema)
    options = replace(options, max_new_tokens=most_new_tokens(options.max_new_tokens, schema))
    return LocalModel(model, options, schema, adapter)


def most_new_tokens(asked: int, schema: AnswerSchema | None) -> int:
    """The tokens that a reply of a folder has at most: one that does not fit the schema is tried with twice as many."""
    return asked if schema is None else 2 * asked


class LocalModel:
    """A model folder. With a schema, an answer that was cut off is tried again with twice the tokens."""

    counts_tokens = True
    most_cost = _NO_LIMIT

    def __init__(
        self, model: str, options: GenerationOptions, schema: AnswerSchema | None = None, adapter: str | None = None
    ) -> None:
        self._name, self._options, self._schema, self._adapter = model, options, schema, adapter
        self._generator: Generator | None = None

    @cached_property
    def _location(self) -> Location:
        return find_model(self._name, self._adapter)

    @cached_property
    def folder(self) -> GenerativeFolder:
        return read_generative(self._location.path)

    @cached_property
    def _languages(self) -> Languages | None:
        return read_languages(self.folder)

    @property
    def generator(self) -> Generator:
        assert self._generator is not None, "open comes first"
        return self._generator

    @property
    def model_code(self) -> tuple[str, ...]:
        return names_of_code(self.folder.root)

    @property
    def plan_notes(self) -> list[str]:
        return say_languages(self._languages, self._options)

    @property
    def settles(self) -> tuple[str, ...]:
        return ("target_language",) if self._languages is not None else ()

    def settle(self) -> dict[str, str]:
        return {"target_language": settle_target(self.folder.root.name, self._languages)}

    def fingerprint(self) -> dict[str, str]:
        check_languages(self.folder.root.name, self._languages, self._options)
        check_generation(self._location.name, self.folder.generation, self._options)
        return {
            "model": self._location.name,
            **self._location.digests(),
            **answer_numerics(self.folder.generation),
        }

    def follow_model(self) -> dict[str, Any]:
        own, said = self._options, self.folder.generation
        found: dict[str, Any] = {}
        if own.temperature is None and own.schema is None and (beams := own_beams(said)) > 1:
            found["beams"] = beams
        if self.folder.crossed and own.schema is None and (most := own_most_new(said)):
            positions = self.folder.config.get("max_position_embeddings")
            found["max_tokens"] = min(most, positions - 1) if isinstance(positions, int) else most
        return found

    def check_installed(self) -> None:
        check_torch("generate")

    def open(self, device: Device) -> None:
        try:
            with doing(IMPORTING):
                from shardmill.models.decoding.generator import Generator
        except ImportError as error:
            raise missing_package(error.name or "torch", "generate") from error
        self._generator = Generator.open(self.folder.root, device, self._options)

    def close(self) -> None:
        from shardmill.models.encoder import free_memory

        self._generator = None
        free_memory()

    def encode(self, asked: Sequence[Asked | None]) -> EncodedPrompts:
        encoded = self.generator.encode(asked)
        sizes = [0 if prompt is None else len(prompt.ids) for prompt in encoded.prompts]
        each = self._options.answers
        costs = [each * (size and size + self._options.max_new_tokens) for size in sizes]
        prompts: list[Any] = [self._first_try(prompt) for prompt in encoded.prompts]
        if each > 1:
            prompts = join_answers([prompts, *(self.generator.draw_again(prompts, n) for n in range(1, each))])
        return EncodedPrompts(prompts, costs, encoded.bad, sum(sizes))

    def _first_try(self, prompt: Prompt | None) -> Prompt | None:
        return prompt if prompt is None or self._schema is None else replace(prompt, limit=max(1, prompt.limit // 2))

    def stream(self, prompts: Iterator[tuple[Key, Any] | None]) -> Iterator[list[tuple[Key, Reply]]]:
        return stream_answers(self._stream, prompts) if self._options.answers > 1 else self._stream(prompts)

    def _stream(self, prompts: Iterator[tuple[Key, Any] | None]) -> Iterator[list[tuple[Key, Reply]]]:
        again: deque[tuple[Key, Prompt]] = deque()
        under_way: dict[Key, Prompt] = {}
        for group in self.generator.stream(_with_retries(prompts, again, under_way)):
            replies = []
            for key, made in group:
                prompt = under_way.pop(key)
                reply = self._judge(made)
                longer = replace(prompt, limit=self._options.max_new_tokens)
                if reply.fault and reply.finish_reason == "length" and longer.limit > prompt.limit:
                    again.append((key, longer))
                else:
                    replies.append((key, reply))
            if replies:
                yield replies

    def _judge(self, made: Completion | DeviceOutOfMemory) -> Reply:
        if isinstance(made, DeviceOutOfMemory):
            return Reply("", "", 0, 0, fault=f"it does not fit into the device's memory, even alone: {made.message}")
        why = self._schema.why_invalid(made.text) if self._schema is not None else None
        fault = SecondTries(self._schema).reason(why, made.text) if why and self._schema is not None else ""
        scores = () if made.scores is None else made.scores.tolist()
        return Reply(made.text, made.reason, made.tokens_in, made.tokens_out, fault, scores)

    @property
    def notes(self) -> list[str]:
        return [f"Kernel: {self._generator.name}."] if self._generator is not None else []

    @property
    def numerics(self) -> dict[str, str]:
        if self._generator is None:
            return {}
        return {"kernel": self._generator.name.partition(",")[0], "precision": self._generator.precision}

    def gpu_bytes(self, precise: bool) -> int:
        return self.folder.parameters * (6 if precise else 4)

    def bytes_per_s(self, kind: str, max_tokens: int) -> float:
        each = 2 * self.folder.parameters
        seconds = each * _PROMPT_TOKENS / _READING[kind] + each * max_tokens / 2 / _WRITING[kind]
        return _PROMPT_BYTES / max(seconds, 1e-6)


def _with_retries(
    prompts: Iterator[tuple[Key, Any] | None], again: deque[tuple[Key, Any]], under_way: dict[Key, Any]
) -> Iterator[tuple[Key, Any] | None]:
    """Prompts and those to try again; it ends only when none is under way."""
    more = True
    while more or under_way or again:
        if again:
            key, prompt = again.popleft()
        else:
            given = None
            if more:
                try:
                    given = next(prompts)
                except StopIteration:
                    more = False
                    continue
            if given is None:
                yield None
                continue
            key, prompt = given
        under_way[key] = prompt
        yield key, prompt


class RemoteModel:
    """A model behind an OpenAI-compatible server."""

    counts_tokens = False
    most_cost = _MOST_REQUESTS
    model_code = ()
    plan_notes = ()
    settles = ()

    def settle(self) -> dict[str, str]:
        return {}

    def __init__(
        self, model: str, endpoint: str, key_variable: str, options: GenerationOptions, schema: AnswerSchema | None
    ) -> None:
        if options.source_language or options.target_language:
            raise SpecError(
                "Languages are not part of the protocol of an endpoint.", hint="Say them in the prompt, or in --system."
            )
        if options.beams > 1 or options.top_k or options.min_p:
            raise SpecError(
                "Beams, top_k and min_p are not part of the protocol of an endpoint.",
                hint="Leave out --beams, --top-k and --min-p.",
            )
        self._model, self._url, self._key_variable = model, endpoint, key_variable
        self._options, self._schema = options, schema

    @cached_property
    def _endpoint(self) -> Endpoint:
        from shardmill.models.endpoints import Endpoint

        return Endpoint(self._url, self._model, key_variable=self._key_variable)

    def fingerprint(self) -> dict[str, str]:
        return {"model": self._model}

    def follow_model(self) -> dict[str, Any]:
        return {}

    def check_installed(self) -> None:
        if find_spec("httpx2") is None:
            raise missing_package("httpx2")

    def open(self, device: Device) -> None:
        self._endpoint.check()

    def close(self) -> None:
        pass

    def encode(self, asked: Sequence[Asked | None]) -> EncodedPrompts:
        count = self._options.answers
        requests: list[Any] = [self._request(each) for each in asked]
        if count > 1:
            requests = join_answers([[self._request(each, n) for each in asked] for n in range(count)])
        return EncodedPrompts(requests, [count * (each is not None) for each in asked], {})

    def _request(self, asked: Asked | None, answer: int = 0) -> Any:
        from shardmill.models.endpoints import PromptRequest

        if asked is None:
            return None
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        if self._options.system and messages[0].get("role") != "system":
            messages.insert(0, {"role": "system", "content": self._options.system})
        return PromptRequest(
            messages,
            max_tokens=self._options.max_new_tokens,
            temperature=self._options.temperature or 0.0,
            top_p=self._options.top_p,
            repetition_penalty=self._options.repetition_penalty,
            seed=self._options.seed + answer,
            stop=self._options.stops,
            schema=self._schema.value if self._schema is not None else None,
            log_probabilities=self._options.log_probabilities,
            template_arguments=self._options.template_arguments,
        )

    def stream(self, prompts: Iterator[tuple[Key, Any] | None]) -> Iterator[list[tuple[Key, Reply]]]:
        return stream_answers(self._stream, prompts) if self._options.answers > 1 else self._stream(prompts)

    def _stream(self, prompts: Iterator[tuple[Key, Any] | None]) -> Iterator[list[tuple[Key, Reply]]]:
        from shardmill.models.endpoints import PromptRefusal, fit_schema

        revise = fit_schema(SecondTries(self._schema)) if self._schema is not None else None
        for group in self._endpoint.stream(prompts, revise):
            yield [
                (
                    key,
                    Reply("", "", got.tokens_in, got.tokens_out, fault=got.reason)
                    if isinstance(got, PromptRefusal)
                    else self._read(got),
                )
                for key, got in group
            ]

    def _read(self, got: PromptAnswer) -> Reply:
        lacks = self._options.log_probabilities and got.tokens_out and not got.scores
        fault = "the server gave no log-probabilities" if lacks else ""
        return Reply(got.text, got.finish_reason, got.tokens_in, got.tokens_out, fault, got.scores)

    @property
    def notes(self) -> list[str]:
        return self._endpoint.notes

    @property
    def numerics(self) -> dict[str, str]:
        return {"kernel": "endpoint"}

    def gpu_bytes(self, precise: bool) -> None:
        return None

    def bytes_per_s(self, kind: str, max_tokens: int) -> float:
        return _SERVER_BYTES_PER_S
