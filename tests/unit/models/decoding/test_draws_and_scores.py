"""Min-p, several answers, log-probabilities and arguments of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import ModelError, SpecError, UsageError  # noqa: E402
from shardmill.models.decoding.choice import Rules, draw  # noqa: E402
from shardmill.models.decoding.generative import read_generative  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from shardmill.models.decoding.texts import TextCodec  # noqa: E402
from shardmill.models.endpoints.request import PromptRequest, read_answer  # noqa: E402
from shardmill.models.replies import LocalModel, RemoteModel  # noqa: E402
from shardmill.models.reply import Reply, stream_answers  # noqa: E402
from tests.support.generative_models import CHAT, write_generative  # noqa: E402
from tests.unit.models.decoding.test_generator import TEXTS, answers  # noqa: E402

CPU = Device("cpu", "a CPU")
THINKING = CHAT + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.1), (0, 1.0, 1.0), (20, 0.7, 0.05), (5, 1.0, 0.3)])
def test_min_p_leaves_the_tokens_that_transformers_leaves(top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(3).normal(0, 2, (1, 60)).astype(np.float32))
    due = logits.clone()
    if top_k:
        due = transformers.TopKLogitsWarper(top_k)(None, due)
    if top_p < 1:
        due = transformers.TopPLogitsWarper(top_p)(None, due)
    due = transformers.MinPLogitsWarper(min_p)(None, due)
    numbers = (torch.arange(4000) + 0.5) / 4000
    rules = Rules(temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p)
    drawn = draw(rules, logits.expand(len(numbers), -1).clone(), numbers)
    assert set(drawn.tolist()) == set(torch.isfinite(due[0]).nonzero()[:, 0].tolist())
    shares = torch.bincount(drawn, minlength=60) / len(numbers)
    torch.testing.assert_close(shares, due[0].softmax(-1), atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Llama", {}),
        ("Llama", {"temperature": 0.8}),
        ("Gemma2", {}),
        ("Bart", {}),
        ("Bart", {"beams": 2}),
        ("Llama", {"beams": 2}),
        ("Llama", {"repetition_penalty": 1.5}),
    ],
)
def test_log_probabilities_are_those_of_the_model(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    """Of its own logits, before rules and temperature; of one text at a time, by its own forward pass."""
    folder = write_generative(tmp_path / "model", kind, generation={"no_repeat_ngram_size": 2})
    asked = GenerationOptions(max_new_tokens=9, log_probabilities=True, **options)
    generator = Generator.open(folder, CPU, asked)
    made = answers(generator, TEXTS)
    auto = transformers.AutoModelForSeq2SeqLM if kind == "Bart" else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(str(folder), dtype=torch.float32, attn_implementation="eager").eval()
    for i, prompt in enumerate(generator.encode(TEXTS).prompts):
        assert prompt is not None
        read, new = torch.tensor(prompt.ids.astype(np.int64))[None], torch.tensor(made[i].ids)[None]
        with torch.inference_mode():
            if kind == "Bart":
                start = torch.full((1, 1), model.generation_config.decoder_start_token_id)
                logits = model(input_ids=read, decoder_input_ids=torch.cat([start, new[:, :-1]], 1)).logits[0]
            else:
                logits = model(input_ids=torch.cat([read, new], 1)).logits[0, read.shape[1] - 1 : -1]
        due = logits.log_softmax(-1).gather(1, new[0][:, None])[:, 0].numpy()
        scores = made[i].scores
        assert scores is not None
        np.testing.assert_allclose(scores, due, atol=1e-3)
    plain = answers(Generator.open(folder, CPU, GenerationOptions(max_new_tokens=9, **options)), TEXTS)
    assert [made[i].ids.tolist() for i in made] == [plain[i].ids.tolist() for i in made]
    assert all(one.scores is None for one in plain.values())


def test_scores_end_where_an_answer_does(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "model")
    plain = answers(Generator.open(folder, CPU, GenerationOptions(max_new_tokens=20)), TEXTS)
    stop = plain[1].text[7:10]
    asked = GenerationOptions(max_new_tokens=20, stops=(stop,), log_probabilities=True)
    for one in answers(Generator.open(folder, CPU, asked), TEXTS).values():
        assert one.scores is not None
        assert len(one.scores) == len(one.ids)


def _replies(model: LocalModel, texts: list[str]) -> list[Reply]:
    encoded = model.encode(texts)
    made = dict(one for group in model.stream(iter(enumerate(encoded.prompts))) for one in group)
    return [made[i] for i in range(len(texts))]


@pytest.mark.parametrize("kind", ["Llama", "Gemma2", "Bart"])
def test_the_first_of_several_answers_is_the_only_one(tmp_path: Path, kind: str) -> None:
    folder = write_generative(tmp_path / "model", kind)
    found = []
    for count in (1, 3):
        model = LocalModel(str(folder), GenerationOptions(max_new_tokens=8, temperature=1.0, seed=5, answers=count))
        model.open(CPU)
        found.append(_replies(model, TEXTS))
        encoded = model.encode(["x", None])
        assert encoded.prompts[1] is None
        assert encoded.costs[0] == count * (encoded.tokens + 8)
    alone, several = found
    assert [each.text for each in several] == [each.text for each in alone]
    for each in several:
        assert len({each.text, *(other.text for other in each.others)}) == 3
    # And each by its prompt alone.
    assert [other.text for other in _replies(model, TEXTS[2:3])[0].others] == [o.text for o in several[2].others]


def test_a_fault_of_one_answer_is_that_of_its_prompt() -> None:
    def stream(prompts: Iterator[Any]) -> Iterator[list[tuple[Any, Reply]]]:
        given = [each for each in prompts if each is not None]
        for key, prompt in reversed(given):
            yield [(key, Reply(prompt, "stop", 1, 1, fault="too long" if prompt == "b2" else ""))]

    made = dict(
        one for group in stream_answers(stream, iter([(7, ["a1", "a2"]), None, (9, ["b1", "b2"])])) for one in group
    )
    assert (made[7].text, [each.text for each in made[7].others], made[7].fault) == ("a1", ["a2"], "")
    assert made[9].fault == "answer 2 of 2: too long"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"answers": 2}, "Without a temperature, all 2 answers to a prompt would be the same"),
        ({"answers": 2, "beams": 3}, "Without a temperature"),
        ({"answers": 0}, "at least 1"),
        ({"min_p": 1.5, "temperature": 1.0}, "min_p must be between 0 and 1"),
        ({"template_arguments": {"tokenize": True}}, "gets tokenize already"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        GenerationOptions(**options)


def test_a_chat_template_gets_its_arguments(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "chat", chat=THINKING)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    for given in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        codec = TextCodec(read_generative(folder), GenerationOptions(max_new_tokens=4, template_arguments=given))
        [prompt] = codec.encode(["hello"]).prompts
        assert prompt is not None
        due = tokenizer.apply_chat_template(
            [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True, **given
        )
        assert codec.decode(prompt.ids) == due
        assert ("<think>" in due) == (given == {"enable_thinking": False})


def test_arguments_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    chat, plain = write_generative(tmp_path / "chat", chat=THINKING), write_generative(tmp_path / "plain")
    with pytest.raises(ModelError, match="chat reads no 'enable_thought'"):
        TextCodec(read_generative(chat), GenerationOptions(template_arguments={"enable_thought": False}))
    with pytest.raises(ModelError, match="plain has no chat template"):
        TextCodec(read_generative(plain), GenerationOptions(template_arguments={"enable_thinking": False}))


def test_a_server_is_asked_for_the_same() -> None:
    options = GenerationOptions(
        20, temperature=0.7, seed=4, answers=2, log_probabilities=True, template_arguments={"enable_thinking": False}
    )
    encoded = RemoteModel("qwen", "http://server/v1", "KEY", options, None).encode(["hello", None])
    assert (encoded.costs, encoded.prompts[1]) == ([2, 0], None)
    bodies = [json.loads(request.body("qwen")) for request in encoded.prompts[0]]
    assert [body.pop("seed") for body in bodies] == [4, 5]
    assert bodies[0] == bodies[1]
    assert bodies[0]["logprobs"] is True
    assert bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert not {"logprobs", "chat_template_kwargs"} & json.loads(PromptRequest("x", 5).body("m")).keys()
    with pytest.raises(SpecError, match="min_p are not part of the protocol"):
        RemoteModel("qwen", "http://server/v1", "KEY", GenerationOptions(temperature=1.0, min_p=0.1), None)


def test_the_log_probabilities_of_a_server() -> None:
    message = {"message": {"content": "ab"}, "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1}]}}
    text = {"text": "ab", "logprobs": {"token_logprobs": [-0.5, -1.0]}}
    for choice in (message, text):
        answer = read_answer(json.dumps({"choices": [choice], "usage": {"completion_tokens": 2}}).encode())
        assert answer.scores == (-0.5, -1.0)  # type: ignore[union-attr]
