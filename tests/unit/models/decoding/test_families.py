"""Generation in a running batch gives what transformers' `generate` gives one by one, token for token."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tests.support.families import END_OF_TEXT as END
from tests.support.families import LLAMA, PADDED_WRITERS, WORDS, WRITERS
from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")


from shardmill.core.errors import ModelError  # noqa: E402
from shardmill.models.decoding.choice import Rules  # noqa: E402
from shardmill.models.decoding.model import CausalDecoder, CrossDecoder, Decoder  # noqa: E402
from shardmill.models.decoding.plain import PlainStream  # noqa: E402
from shardmill.models.decoding.prompt import Prompt  # noqa: E402
from shardmill.models.decoding.seats import Seats  # noqa: E402
from shardmill.models.decoding.stream import PagedStream  # noqa: E402

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(5, WORDS, n).astype(np.int32) for n in (1, 90, 7, 64, 33, 65, 2, 20, 50)]
LIMITS = [12, 3, 20, 1, 9, 14, 20, 5, 8]


def make(family: str) -> Any:
    kind, config, settings = {**WRITERS, **PADDED_WRITERS}[family]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.25)
    return model


def run(model: Any, rules: Rules, prompts: list[Prompt], *, seats: int = 4, pages: int = 14) -> dict[int, list[int]]:
    decoder: Decoder = (CrossDecoder if model.config.is_encoder_decoder else CausalDecoder)(model)
    placed = Seats(decoder, rules, count=seats, pages=pages, longest=96, most_new=20)
    stream: PagedStream[int] = PagedStream(placed, read_tokens=100)
    made = [row for group in stream.run(iter(enumerate(prompts))) for row in group]
    assert not placed.taken
    return {i: row.ids.tolist() for i, _, row in made}  # type: ignore[union-attr]


def by_transformers(model: Any, **options: Any) -> dict[int, list[int]]:
    model.set_attn_implementation("eager")
    rows = {}
    for i, (text, limit) in enumerate(zip(TEXTS, LIMITS, strict=True)):
        ids = torch.from_numpy(text[None].astype(np.int64))
        fixed = {"do_sample": False, "num_beams": 1, "eos_token_id": END, "pad_token_id": 0, "max_new_tokens": limit}
        with torch.inference_mode():
            row = model.generate(ids, attention_mask=torch.ones_like(ids), **{**fixed, **options})[0].tolist()
        rows[i] = row[1:] if model.config.is_encoder_decoder else row[len(text) :]
    return rows


PROMPTS = [Prompt(text, limit) for text, limit in zip(TEXTS, LIMITS, strict=True)]


@pytest.mark.parametrize("family", WRITERS)
def test_greedy_rows_are_those_of_generate(family: str) -> None:
    """More rows than seats and than pages, texts of a page and of more, windows shorter than the texts."""
    model = make(family)
    expected = by_transformers(copy.deepcopy(model))
    assert len({tuple(row) for row in expected.values()}) > 5
    assert run(model, Rules(ends=(END,)), PROMPTS) == expected


@pytest.mark.parametrize("family", ["Llama", "BART"])
def test_the_rules_of_a_model_are_those_of_generate(family: str) -> None:
    model = make(family)
    options: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 4,
        "suppress_tokens": [7],
        "begin_suppress_tokens": [9],
    }
    rules = Rules(ends=(END,), repetition=1.3, no_repeat=2, never=(7,), never_first=(9,))
    if family == "BART":
        options |= {"forced_bos_token_id": 11, "forced_eos_token_id": END}
        rules = Rules(ends=(END,), repetition=1.3, no_repeat=2, never=(7,), never_first=(9,), first=11, last=END)
    prompts = [Prompt(p.ids, p.limit, least=4) for p in PROMPTS]
    assert run(make(family), rules, prompts) == by_transformers(model, **options)


def test_a_draw_depends_on_the_item_alone() -> None:
    """Not on the rows beside it or on the seat it gets; and another draw gives another row."""
    rules = Rules(ends=(END,), temperature=0.9, top_k=20, top_p=0.9)
    draws = np.random.default_rng(1).random((len(TEXTS), 20), np.float32)
    prompts = [Prompt(p.ids, p.limit, d) for p, d in zip(PROMPTS, draws, strict=True)]
    together = run(make("Llama"), rules, prompts)
    for i in (1, 4):
        assert run(make("Llama"), rules, [prompts[i]], seats=1)[0] == together[i]
    other = run(make("Llama"), rules, [Prompt(p.ids, p.limit, 1 - p.draws) for p in prompts])  # type: ignore[operator]
    assert other != together


@pytest.mark.parametrize("family", PADDED_WRITERS)
def test_a_family_that_pages_do_not_fit_is_refused(family: str) -> None:
    with pytest.raises((ModelError, TypeError)):
        run(make(family), Rules(), PROMPTS)


def test_attention_that_pages_do_not_implement_is_refused() -> None:
    settings = {**LLAMA, "head_dim": 8, "sliding_window": 16}
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**settings)).eval()
    with pytest.raises(ModelError, match="softcap"):
        run(model, Rules(), PROMPTS)


def test_a_prompt_that_never_fits_is_said_and_the_others_go_on() -> None:
    decoder = CausalDecoder(make("Llama"))
    seats = Seats(decoder, Rules(ends=(END,)), count=2, pages=2, longest=400, most_new=20)
    stream: PagedStream[int] = PagedStream(seats, read_tokens=100)
    prompts = [PROMPTS[0], Prompt(np.full(200, 9, np.int32), 20), PROMPTS[2]]
    made = {key: row for group in stream.run(iter(enumerate(prompts))) for key, _, row in group}
    assert "200 tokens" in str(made[1])
    assert run(make("Llama"), Rules(ends=(END,)), [PROMPTS[2]])[0] == made[2].ids.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("family", PADDED_WRITERS)
def test_padded_batches_are_those_of_generate(family: str) -> None:
    model = make(family)
    crossed, ends = bool(model.config.is_encoder_decoder), Rules(ends=(END,))
    model.generation_config.update(eos_token_id=END)
    stream: PlainStream[int] = PlainStream(model, ends, 0, crossed, beams=1, rows=4)
    made = {i: row for group in stream.run(iter(enumerate(PROMPTS))) for i, _, row in group}
    expected = by_transformers(copy.deepcopy(model))
    assert {i: row.ids.tolist() for i, row in made.items()} == expected  # type: ignore[union-attr]
