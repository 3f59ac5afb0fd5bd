"""Generation in a running batch gives what transformers' `generate` gives one by one, token for token."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")


from shardmill.core.errors import ModelError  # noqa: E402
from shardmill.models.decoding.choice import Rules  # noqa: E402
from shardmill.models.decoding.model import CausalDecoder, CrossDecoder, Decoder  # noqa: E402
from shardmill.models.decoding.prompt import Prompt  # noqa: E402
from shardmill.models.decoding.seats import Seats  # noqa: E402
from shardmill.models.decoding.stream import PagedStream  # noqa: E402

WORDS, END = 60, 3
CAUSAL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
SHARED = {**CAUSAL, "num_key_value_heads": 2}
BART = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "eos_token_id": END,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}
GPT2 = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
OPT = {**CAUSAL, "ffn_dim": 64, "word_embed_proj_dim": 32}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SHARED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SHARED, "head_dim": 8}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SHARED, "sliding_window": 7}),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**SHARED, "head_dim": 8, "sliding_window": 16}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", SHARED),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**SHARED, "logits_scaling": 2.0}),
    "cohere": ("CohereForCausalLM", "CohereConfig", {**SHARED, "logit_scale": 0.5}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", CAUSAL),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", BART),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", BART),
    "marian": ("MarianMTModel", "MarianConfig", BART),
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5),
}
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(5, WORDS, n).astype(np.int32) for n in (1, 90, 7, 64, 33, 65, 2, 20, 50)]
LIMITS = [12, 3, 20, 1, 9, 14, 20, 5, 8]


def make(family: str) -> Any:
    kind, config, settings = FAMILIES[family]
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


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_rows_are_those_of_generate(family: str) -> None:
    """More rows than seats and than pages, texts of a page and of more, windows shorter than the texts."""
    model = make(family)
    expected = by_transformers(copy.deepcopy(model))
    assert len({tuple(row) for row in expected.values()}) > 5
    assert run(model, Rules(ends=(END,)), PROMPTS) == expected


@pytest.mark.parametrize("family", ["llama", "bart"])
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
    if family == "bart":
        options |= {"forced_bos_token_id": 11, "forced_eos_token_id": END}
        rules = Rules(ends=(END,), repetition=1.3, no_repeat=2, never=(7,), never_first=(9,), first=11, last=END)
    prompts = [Prompt(p.ids, p.limit, least=4) for p in PROMPTS]
    assert run(make(family), rules, prompts) == by_transformers(model, **options)


def test_a_draw_depends_on_the_item_alone() -> None:
    """Not on the rows beside it or on the seat it gets; and another draw gives another row."""
    rules = Rules(ends=(END,), temperature=0.9, top_k=20, top_p=0.9)
    draws = np.random.default_rng(1).random((len(TEXTS), 20), np.float32)
    prompts = [Prompt(p.ids, p.limit, d) for p, d in zip(PROMPTS, draws, strict=True)]
    together = run(make("llama"), rules, prompts)
    for i in (1, 4):
        assert run(make("llama"), rules, [prompts[i]], seats=1)[0] == together[i]
    other = run(make("llama"), rules, [Prompt(p.ids, p.limit, 1 - p.draws) for p in prompts])  # type: ignore[operator]
    assert other != together


def test_attention_that_pages_do_not_implement_is_refused() -> None:
    settings = {**SHARED, "head_dim": 8, "sliding_window": 16}
    model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**settings)).eval()
    with pytest.raises(ModelError, match="softcap"):
        run(model, Rules(), PROMPTS)


def test_a_prompt_that_never_fits_is_said_and_the_others_go_on() -> None:
    decoder = CausalDecoder(make("llama"))
    seats = Seats(decoder, Rules(ends=(END,)), count=2, pages=2, longest=400, most_new=20)
    stream: PagedStream[int] = PagedStream(seats, read_tokens=100)
    prompts = [PROMPTS[0], Prompt(np.full(200, 9, np.int32), 20), PROMPTS[2]]
    made = {key: row for group in stream.run(iter(enumerate(prompts))) for key, _, row in group}
    assert "200 tokens" in str(made[1])
    assert run(make("llama"), Rules(ends=(END,)), [PROMPTS[2]])[0] == made[2].ids.tolist()  # type: ignore[union-attr]
