"""Generation on a GPU: float32 as one by one, half precision as close to it as `generate`, graphs, compiled layers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import needed

torch, _ = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from shardmill.models.decoding.prompt import Completion  # noqa: E402
from tests.support.generative_models import CHAT, generate_one_by_one, write_generative  # noqa: E402
from tests.unit.models.decoding.test_generator import SCHEMA, TEXTS, answers  # noqa: E402

on_a_gpu = pytest.mark.gpu
MANY = [f"{text} {i}" for i in range(8) for text in TEXTS]
SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {"head_dim": 16},
    "Mistral": {"head_dim": 16, "sliding_window": 33},
    "Bart": {"d_model": 64},
}


@on_a_gpu
@pytest.mark.parametrize("kind", SHAPES)
def test_float32_is_that_of_generate(kind: str, tmp_path: Path) -> None:
    folder = write_generative(tmp_path / kind, kind, **SHAPES[kind])
    generator = Generator.open(folder, Device("cuda", "a GPU", precise=True), GenerationOptions(max_new_tokens=24))
    assert "float32, pages" in generator.name
    made = answers(generator, MANY)
    assert [made[i].ids.tolist() for i in range(len(MANY))] == generate_one_by_one(folder, MANY, 24)


@on_a_gpu
@pytest.mark.parametrize("kind", SHAPES)
def test_beams_in_float32_are_those_of_generate(kind: str, tmp_path: Path) -> None:
    ends = {"eos_token_id": [0, *range(20, 480, 3)]}
    folder = write_generative(tmp_path / kind, kind, generation=ends, **SHAPES[kind])
    asked = GenerationOptions(max_new_tokens=70, beams=4)
    generator = Generator.open(folder, Device("cuda", "a GPU", precise=True), asked)
    assert "of 4 beams" in generator.name
    made = answers(generator, MANY)
    assert [made[i].ids.tolist() for i in range(len(MANY))] == generate_one_by_one(folder, MANY, 70, num_beams=4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("kind", SHAPES)
def test_half_precision_and_compiled_layers_are_as_close_as_generate(kind: str, device: str, tmp_path: Path) -> None:
    """First tokens equal those of float32 about as often as transformers' own do in the same precision.

    The weights are random, so some prompts have two tokens that are nearly as likely, and any rounding decides between
    them: which share of rows stays equal is a property of the model and the chip, not of the pages. So the bound is
    the peer's own count on the same prompts. Pages round elsewhere than `generate` does. If each of the rows that are
    near a tie falls either way, the difference of two counts of n such rows has a standard deviation of sqrt(n / 2);
    the margin is three of these, with n from how many rows of the peer differ, and at least two rows.
    """
    folder = write_generative(tmp_path / kind, kind, **SHAPES[kind])
    expected = [row[0] for row in generate_one_by_one(folder, MANY, 1)]
    ways = ((0, "pages, "), (1 << 60, "compiled")) if device == "cuda" else ((0, "pages, "),)
    for work_bytes, said in ways:
        opened = Device(device, "a device", work_bytes=work_bytes)
        generator = Generator.open(folder, opened, GenerationOptions(max_new_tokens=1))
        assert said in generator.name
        made = answers(generator, MANY)
        dtype = getattr(torch, generator.precision)
        peer = [row[0] for row in generate_one_by_one(folder, MANY, 1, dtype=dtype, device=device)]
        ours, theirs = (sum(a == b for a, b in zip(rows, expected, strict=True)) for rows in (firsts(made), peer))
        near_ties = max(1, len(MANY) - theirs)
        assert ours >= theirs - max(2, 3 * math.sqrt(near_ties / 2)), (generator.name, ours, theirs)


def firsts(made: dict[int, Completion]) -> list[int]:
    return [int(made[i].ids[0]) for i in range(len(made))]


@on_a_gpu
def test_what_is_shared_and_guided_on_a_gpu(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "chat", chat=CHAT, head_dim=16)
    device = Device("cuda", "a GPU", precise=True)
    system = "Answer in one short sentence, in the words of the text, and say so if it does not answer. " * 4
    shared = Generator.open(folder, device, GenerationOptions(max_new_tokens=12, system=system))
    whole = answers(shared, MANY)
    assert shared._stream.seats._shared_pages  # type: ignore[union-attr]
    for i in (0, 17):
        alone = Generator.open(folder, device, GenerationOptions(max_new_tokens=12, system=system))
        assert answers(alone, MANY[i : i + 1])[0].ids.tolist() == whole[i].ids.tolist()
    needed("llguidance")
    guided = answers(Generator.open(folder, device, GenerationOptions(max_new_tokens=64, schema=SCHEMA)), MANY)
    assert {one.text[:9] for one in guided.values()} == {'{"name": '}
    assert {one.reason for one in guided.values()} == {"stop"}


@on_a_gpu
def test_a_draw_is_the_same_in_any_batch_on_a_gpu(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "llama", head_dim=16)
    options = GenerationOptions(max_new_tokens=12, temperature=0.8, top_k=40, top_p=0.9)
    generator = Generator.open(folder, Device("cuda", "a GPU", precise=True), options)
    whole = answers(generator, MANY)
    assert answers(generator, MANY[9:10])[0].ids.tolist() == whole[9].ids.tolist()
