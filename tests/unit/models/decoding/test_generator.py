"""A model opened from its folder: prompts, paths, reasons, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import needed, qwen3, write_model

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import DeviceOutOfMemory, ModelError, UsageError  # noqa: E402
from shardmill.models.answer_schema import AnswerSchema  # noqa: E402
from shardmill.models.decoding.generative import check_size, read_generative  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from shardmill.models.decoding.prompt import Completion  # noqa: E402
from tests.support.generative_models import CHAT, generate_one_by_one, write_generative  # noqa: E402

CPU = Device("cpu", "a CPU")
TEXTS = [
    "The battery died.",
    "A train left Lyon at 08:14 and reached Turin late; nobody on board had been told why.",
    "x",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }",
    "What is the colour of the water, and which birds did they see over eleven summers in a small boat? " * 2,
]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("generative")
    rules = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_length": 30}
    return {
        "llama": write_generative(root / "llama"),
        "chat": write_generative(root / "chat", chat=CHAT),
        "ruled": write_generative(root / "ruled", generation=rules),
        "gemma2": write_generative(root / "gemma2", "Gemma2"),
        "bart": write_generative(root / "bart", "Bart", generation={"min_length": 6, "forced_bos_token_id": 40}),
        "biased": write_generative(root / "biased", "Bart", generation={"bad_words_ids": [[50], [60]]}),
    }


def answers(generator: Generator, texts: list[Any], **more: Any) -> dict[int, Completion]:
    encoded = generator.encode(texts, **more)
    assert not encoded.bad
    made = dict(one for group in generator.stream(iter(enumerate(encoded.prompts))) for one in group)  # type: ignore[arg-type]
    assert all(isinstance(one, Completion) for one in made.values())
    return made  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "path"),
    [("llama", "pages"), ("ruled", "pages"), ("bart", "pages"), ("gemma2", "softcap"), ("biased", "bad_words_ids")],
)
def test_greedy_answers_are_those_of_generate(folders: dict[str, Path], name: str, path: str) -> None:
    """With the rules of generation_config.json; where pages do not implement something, by transformers' own path."""
    generator = Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=24))
    assert path in generator.name
    assert ("transformers' generate" in generator.name) == (path != "pages")
    expected = generate_one_by_one(folders[name], TEXTS, 24)
    made = answers(generator, TEXTS)
    assert [made[i].ids.tolist() for i in range(len(TEXTS))] == expected
    assert all(one.reason == ("stop" if len(one.ids) < 24 else "length") for one in made.values())
    assert made[0].text == generator.decode(expected[0])


@pytest.mark.parametrize("name", ["llama", "ruled", "bart", "gemma2"])
def test_a_repetition_penalty_is_that_of_generate(folders: dict[str, Path], name: str) -> None:
    """In place of the model's own, over pages and by transformers' own path."""
    generator = Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=16, repetition_penalty=1.7))
    made = answers(generator, TEXTS)
    found = [made[i].ids.tolist() for i in range(len(TEXTS))]
    assert found == generate_one_by_one(folders[name], TEXTS, 16, repetition_penalty=1.7)
    assert found != generate_one_by_one(folders[name], TEXTS, 16)


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_beams_are_those_of_generate(folders: dict[str, Path], name: str) -> None:
    generator = Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=8, beams=3))
    made = answers(generator, TEXTS)
    assert "rows of 3 beams" in generator.name
    assert [made[i].ids.tolist() for i in range(len(TEXTS))] == generate_one_by_one(
        folders[name], TEXTS, 8, num_beams=3
    )


def test_a_text_is_a_conversation_where_the_model_has_a_chat_template(folders: dict[str, Path]) -> None:
    generator = Generator.open(folders["chat"], CPU, GenerationOptions(max_new_tokens=4, system="Be brief."))
    hello = [{"role": "user", "content": "{{ hello }}"}]
    asked = ["{{ hello }}", hello, [{"role": "system", "content": "Sing."}, *hello], None, [], [{"role": "user"}]]
    encoded = generator.encode(asked)
    told = [generator.decode(p.ids) for p in encoded.prompts if p is not None]
    assert told[:2] == ["<|system|>Be brief.\n<|user|>{{ hello }}\n<|assistant|>"] * 2
    assert told[2].startswith("<|system|>Sing.")
    assert encoded.prompts[3] is None
    assert sorted(encoded.bad) == [4, 5]


def test_what_cannot_be_read_is_said(folders: dict[str, Path]) -> None:
    generator = Generator.open(folders["llama"], CPU, GenerationOptions(max_new_tokens=12))
    assert generator.limit == 500
    encoded = generator.encode(["", "x " * 600, "\ud800", [{"role": "user", "content": "x"}], "fine"])
    assert [i for i, p in enumerate(encoded.prompts) if p is not None] == [4]
    assert "no tokens" in encoded.bad[0]
    assert "500" in encoded.bad[1]
    assert "Unicode" in encoded.bad[2]
    assert "chat template" in encoded.bad[3]


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_draw_depends_on_the_item_alone(folders: dict[str, Path], name: str) -> None:
    options = GenerationOptions(max_new_tokens=8, temperature=1.0, top_k=40, seed=1)
    generator = Generator.open(folders[name], CPU, options)
    whole = answers(generator, TEXTS, items=[7, 8, 9, 10, 11])
    assert answers(generator, TEXTS[3:4], items=[10])[0].ids.tolist() == whole[3].ids.tolist()
    assert answers(generator, TEXTS[3:4], items=[11])[0].ids.tolist() != whole[3].ids.tolist()
    other = Generator.open(folders[name], CPU, replace(options, seed=2))
    assert answers(other, TEXTS[3:4], items=[10])[0].ids.tolist() != whole[3].ids.tolist()


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_text_ends_before_a_stop_string(folders: dict[str, Path], name: str) -> None:
    plain = answers(Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=20)), TEXTS)
    stop = plain[1].text[7:10]
    cut = answers(Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=20, stops=(stop,))), TEXTS)
    for i, one in cut.items():
        assert one.text == plain[i].text.partition(stop)[0]
        assert one.ids.tolist() == plain[i].ids[: len(one.ids)].tolist()
    assert cut[1].reason == "stop"
    assert len(cut[1].ids) < len(plain[1].ids)


def test_a_common_beginning_is_read_once(folders: dict[str, Path]) -> None:
    """Pages of a long system prompt are shared, by a prompt that begins with some of them too."""
    system = "Answer in one short sentence, in the words of the text, and say so if it does not answer. " * 4
    options = GenerationOptions(max_new_tokens=6, system=system)
    texts = [*TEXTS * 2, *TEXTS]
    generator = Generator.open(folders["chat"], CPU, options)
    prompts: list[Any] = list(generator.encode(texts).prompts)
    other = Generator.open(folders["chat"], CPU, GenerationOptions(max_new_tokens=6, system=system[:130]))
    prompts.append(other.encode(TEXTS[:1]).prompts[0])
    made = dict(one for group in generator.stream(iter(enumerate(prompts))) for one in group)
    seats = generator._stream.seats  # type: ignore[union-attr]
    whole = sum(len(p.ids) for p in prompts)
    shared = len(seats._shared_pages) * 64
    assert shared >= 64
    assert seats.read_tokens < whole - 14 * shared + 64
    for i in (0, 4, 15):
        alone = dict(one for group in other.stream(iter([(i, prompts[i])])) for one in group)
        assert made[i].ids.tolist() == alone[i].ids.tolist()  # type: ignore[union-attr]


def test_what_is_not_ready_does_not_hold_up_the_rest(folders: dict[str, Path]) -> None:
    generator = Generator.open(folders["llama"], CPU, GenerationOptions(max_new_tokens=8))
    first, second = (p for p in generator.encode(TEXTS[:2]).prompts if p is not None)
    done: list[str] = []

    def feed() -> Iterator[Any]:
        yield "first", first
        while not done:
            yield None
        yield "second", second

    for group in generator.stream(feed()):
        done.extend(key for key, _ in group)
    assert done == ["first", "second"]


def test_too_little_memory_for_all_rows_costs_none(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the middle: half of the rows begin anew, and the finished ones stay."""
    generator = Generator.open(folders["llama"], CPU, GenerationOptions(max_new_tokens=16))
    expected = answers(generator, TEXTS)
    seats = generator._stream.seats  # type: ignore[union-attr]
    step, steps = seats.step, [0]

    def fails() -> None:
        steps[0] += 1
        if steps[0] == 6 or (len(seats.taken) > 3 and steps[0] > 3):
            raise DeviceOutOfMemory("The batch does not fit in memory.")
        step()

    monkeypatch.setattr(seats, "step", fails)
    made = answers(generator, TEXTS)
    assert {i: one.ids.tolist() for i, one in made.items()} == {i: one.ids.tolist() for i, one in expected.items()}


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_answers_hold_to_a_schema(folders: dict[str, Path], name: str) -> None:
    needed("llguidance")
    schema = AnswerSchema(json.loads(SCHEMA))
    made = answers(Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=64, schema=SCHEMA)), TEXTS)
    assert {one.reason for one in made.values()} == {"stop"}
    assert [schema.why_invalid(one.text) for one in made.values()] == [None] * len(TEXTS)
    short = answers(Generator.open(folders[name], CPU, GenerationOptions(max_new_tokens=4, schema=SCHEMA)), TEXTS)
    assert {one.reason for one in short.values()} == {"length"}
    assert schema.why_invalid(short[0].text) is not None


def test_models_of_another_kind_are_refused_by_name(tmp_path: Path) -> None:
    small = {
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "vocab_size": 9,
    }
    for kind, said in (
        ("BertModel", "embed"),
        ("BertForQuestionAnswering", "answer"),
        ("BertForSequenceClassification", "--rerank"),
    ):
        getattr(transformers, kind)(transformers.BertConfig(**small)).save_pretrained(tmp_path / kind)
        with pytest.raises(ModelError, match=kind) as error:
            read_generative(tmp_path / kind)
        assert said in str(error.value.hint)
    write_model(tmp_path / "vectors", qwen3(), modules=[("Pooling", {}, {})])
    with pytest.raises(ModelError, match="makes vectors"):
        read_generative(tmp_path / "vectors")


def test_a_model_larger_than_the_device_is_refused_by_name(folders: dict[str, Path]) -> None:
    folder = read_generative(folders["llama"])
    assert folder.parameters == sum(
        w.numel() for w in transformers.AutoModelForCausalLM.from_pretrained(str(folders["llama"])).parameters()
    )
    with pytest.raises(ModelError, match=r"llama has .* billion parameters, .* a GPU has 0\.0 GB free"):
        check_size(folder, precision="bfloat16", free_bytes=1000, where="a GPU")


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": 0},
        {"beams": 2, "temperature": 1},
        {"stops": ("",)},
        {"schema": "{"},
        {"repetition_penalty": 0},
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        GenerationOptions(**wrong)


def test_more_new_tokens_than_the_model_holds_are_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="512"):
        Generator.open(folders["llama"], CPU, GenerationOptions(max_new_tokens=512))


def test_rows_are_numbered_by_their_prompt_where_nothing_else_is_said(folders: dict[str, Path]) -> None:
    generator = Generator.open(folders["llama"], CPU, GenerationOptions(max_new_tokens=7, temperature=1.0))
    a, b, c = generator.encode(["same", "same", "other"]).prompts
    assert a is not None
    assert b is not None
    assert c is not None
    assert np.array_equal(a.draws, b.draws)  # type: ignore[arg-type]
    assert not np.array_equal(a.draws, c.draws)  # type: ignore[arg-type]
