"""Beam search over pages gives what transformers' own gives one text at a time, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.models.decoding.generator import Generator  # noqa: E402
from shardmill.models.decoding.options import GenerationOptions  # noqa: E402
from shardmill.models.decoding.stream import PagedStream  # noqa: E402
from tests.support.generative_models import generate_one_by_one, write_generative  # noqa: E402
from tests.unit.models.decoding.test_generator import TEXTS, answers  # noqa: E402

CPU = Device("cpu", "a CPU")
# Longer than a page, of exactly one, and many, so that rows leave and others join.
MANY = [*TEXTS, "word " * 60, "x" * 64, *(f"Number {i} of a list of texts." for i in range(8))]
# A third of all tokens end an answer, so that answers of many lengths compete.
ENDING = {"eos_token_id": [0, *range(20, 480, 3)]}
RULES = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_length": 12}
CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "llama": ("Llama", {}, 3, 70),
    "its end": ("Llama", ENDING, 4, 24),
    "its rules": ("Llama", RULES, 2, 24),
    "end early": ("Llama", {**ENDING, "early_stopping": True}, 4, 24),
    "end never": ("Llama", {**ENDING, "early_stopping": "never"}, 4, 24),
    "long answers": ("Llama", {**ENDING, "length_penalty": 3.0, "early_stopping": "never"}, 3, 24),
    "short answers": ("Llama", {**ENDING, "length_penalty": -1.0}, 3, 24),
    "no penalty": ("Llama", {**ENDING, "length_penalty": 0.0}, 3, 24),
    "a single token": ("Llama", ENDING, 4, 1),
    "a window": ("Mistral", {**ENDING, "min_new_tokens": 9}, 3, 80),
    "bart": ("Bart", {"forced_bos_token_id": 40}, 3, 70),
    "bart for summaries": (
        "Bart",
        {**ENDING, "min_length": 9, "no_repeat_ngram_size": 3, "length_penalty": 2.0, "early_stopping": True},
        4,
        24,
    ),
    "bart with a forced end": ("Bart", {**ENDING, "forced_eos_token_id": 0, "early_stopping": "never"}, 4, 6),
}

# Cases whose answers are of several lengths.
VARIED = {"its end", "end early", "end never", "short answers", "no penalty", "bart for summaries"}


@pytest.mark.parametrize("name", CASES)
def test_beams_are_those_of_generate(tmp_path: Path, name: str) -> None:
    kind, said, beams, most = CASES[name]
    more = {"sliding_window": 16} if kind == "Mistral" else {}
    folder = write_generative(tmp_path / "model", kind, generation=said, **more)
    generator = Generator.open(folder, CPU, GenerationOptions(max_new_tokens=most, beams=beams))
    assert f", pages, {16 // beams} rows of {beams} beams side by side" in generator.name
    made = answers(generator, MANY)
    due = generate_one_by_one(folder, MANY, most, num_beams=beams)
    assert [made[i].ids.tolist() for i in range(len(MANY))] == due
    assert due != generate_one_by_one(folder, MANY, most) or most == 1
    assert {made[i].reason for i in made} <= {"stop", "length"}
    if name in VARIED:
        assert len({len(ids) for ids in due}) > 1


@pytest.mark.parametrize(
    ("kind", "said", "options", "why"),
    [
        ("Llama", {"renormalize_logits": True}, {}, "renormalize_logits"),
        ("Bart", {}, {"stops": ("q",)}, "stop strings"),
        ("Bart", {}, {"log_probabilities": True}, "log-probabilities"),
    ],
)
def test_what_beams_over_pages_do_not_implement_runs_padded(
    tmp_path: Path, kind: str, said: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    folder = write_generative(tmp_path / "model", kind, generation=said)
    generator = Generator.open(folder, CPU, GenerationOptions(max_new_tokens=9, beams=3, **options))
    assert f"transformers' generate, batches of 8 (3 beams with {why})" in generator.name
    made, due = answers(generator, TEXTS), generate_one_by_one(folder, TEXTS, 9, num_beams=3)
    assert "stops" in options or [made[i].ids.tolist() for i in range(len(TEXTS))] == due


@pytest.mark.parametrize("kind", ["Llama", "Bart"])
def test_no_page_is_lost(tmp_path: Path, kind: str) -> None:
    folder = write_generative(tmp_path / "model", kind, generation=ENDING)
    generator = Generator.open(folder, CPU, GenerationOptions(max_new_tokens=12, beams=4))
    stream = generator._stream
    assert isinstance(stream, PagedStream)
    pages, seats = stream.seats._pages, stream.seats.count
    free = pages.free
    first = answers(generator, MANY)
    assert (pages.free, len(stream.seats._empty)) == (free, seats)
    again = answers(generator, MANY[::-1])
    assert [again[len(MANY) - 1 - i].ids.tolist() for i in first] == [first[i].ids.tolist() for i in first]
