"""Generation on a GPU: float32 as one by one, half precision close to it, with graphs and compiled layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import needed

needed("torch"), needed("transformers")

from shardmill.devices import Device  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from tests.support.generative_models import CHAT, generate_one_by_one, write_generative  # noqa: E402
from tests.unit.models.decoding.test_generator import SCHEMA, TEXTS, answers  # noqa: E402

pytestmark = pytest.mark.gpu

MANY = [f"{text} {i}" for i in range(8) for text in TEXTS]
SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {"head_dim": 16},
    "Mistral": {"head_dim": 16, "sliding_window": 33},
    "Bart": {"d_model": 64},
}


@pytest.mark.parametrize("kind", SHAPES)
def test_float32_is_that_of_generate(kind: str, tmp_path: Path) -> None:
    folder = write_generative(tmp_path / kind, kind, **SHAPES[kind])
    generator = Generator.open(folder, Device("cuda", "a GPU", precise=True), GenerationOptions(max_new_tokens=24))
    assert "float32, pages" in generator.name
    made = answers(generator, MANY)
    assert [made[i].ids.tolist() for i in range(len(MANY))] == generate_one_by_one(folder, MANY, 24)


@pytest.mark.parametrize("kind", SHAPES)
def test_half_precision_and_compiled_layers_are_close(kind: str, tmp_path: Path) -> None:
    """Most first tokens are those of float32; a random model's later ones follow from small differences."""
    folder = write_generative(tmp_path / kind, kind, **SHAPES[kind])
    expected = generate_one_by_one(folder, MANY, 4)
    for work_bytes, said in ((0, "pages, "), (1 << 30, "compiled")):
        device = Device("cuda", "a GPU", work_bytes=work_bytes)
        generator = Generator.open(folder, device, GenerationOptions(max_new_tokens=4))
        assert said in generator.name
        made = answers(generator, MANY)
        same = sum(made[i].ids[0] == expected[i][0] for i in range(len(MANY)))
        assert same > 0.9 * len(MANY), generator.name


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


def test_a_draw_is_the_same_in_any_batch_on_a_gpu(tmp_path: Path) -> None:
    folder = write_generative(tmp_path / "llama", head_dim=16)
    options = GenerationOptions(max_new_tokens=12, temperature=0.8, top_k=40, top_p=0.9)
    generator = Generator.open(folder, Device("cuda", "a GPU", precise=True), options)
    whole = answers(generator, MANY)
    assert answers(generator, MANY[9:10])[0].ids.tolist() == whole[9].ids.tolist()
