"""Models that a task cannot run, or only up to a length: told before the first batch, with the cause and what to do."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models.decoding.generator import Generator
from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.embedder import TextEmbedder
from shardmill.models.kinds import RERANKER, note_kind
from shardmill.models.pairs import PairModel
from shardmill.plan.spec import make_spec
from shardmill.run.planner import make_plan
from shardmill.verbs.embed.task import EmbedTask
from tests.support.cli import Cli, assert_told
from tests.support.tiny_models import SMALL, bert, fast, minilm_backend, pooling, qwen3, transformers, write_model

CPU = Device("cpu", "cpu", threads=1)
LONG = "a phone that works " * 200
WORDS = 30522
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
Write = Callable[..., Path]


def gpt2(**options: Any) -> Any:
    ends = {"bos_token_id": 101, "eos_token_id": 102}
    return transformers.GPT2Config(vocab_size=WORDS, n_positions=64, n_embd=32, n_layer=2, n_head=4, **ends, **options)


def opt() -> Any:
    sizes = {
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return transformers.OPTConfig(vocab_size=WORDS, max_position_embeddings=60, **sizes)


def mamba() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    return transformers.MambaConfig(vocab_size=WORDS, eos_token_id=102, pad_token_id=0, **sizes)


def prophet_net() -> Any:
    half = {"ffn_dim": 48, "layers": 2, "attention_heads": 4}
    sizes = {
        (f"num_{part}_{name}" if name != "ffn_dim" else f"{part}_ffn_dim"): size
        for part in ("encoder", "decoder")
        for name, size in half.items()
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102, "decoder_start_token_id": 101}
    return transformers.ProphetNetConfig(
        vocab_size=WORDS, hidden_size=32, max_position_embeddings=128, **tokens, **sizes
    )


def tokenizer() -> Any:
    return fast(minilm_backend(), pad_token="[PAD]", unk_token="[UNK]", eos_token="[SEP]")


def opened(folder: Path) -> TextEmbedder:
    embedder = TextEmbedder(str(folder))
    embedder.open(CPU)
    return embedder


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        (gpt2(), 64),
        (transformers.MPNetConfig(**SMALL, vocab_size=WORDS + 5, max_position_embeddings=66, pad_token_id=0), 64),
        (transformers.BigBirdConfig(**SMALL, vocab_size=WORDS, max_position_embeddings=70), 70),
        (opt(), 60),
    ],
    ids=["n_positions", "a position short", "another kind", "unused rows"],
)
def test_a_long_text_is_cut_where_the_table_of_positions_ends(config: Any, tokens: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", config, scale=1)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 512}))
    embedder = opened(folder)
    assert embedder.tokenizer.limit == tokens
    assert len(embedder.encode([LONG]).rows[0]) == tokens
    assert np.isfinite(embedder.embed_texts(["short", LONG])).all()


@pytest.mark.parametrize("make", [mamba, prophet_net])
def test_a_family_that_counts_no_heads_generates_as_transformers_does(make: Any, tmp_path: Path) -> None:
    crossed = make is prophet_net
    kind = transformers.AutoModelForSeq2SeqLM if crossed else transformers.AutoModelForCausalLM
    folder = write_model(tmp_path / "model", make(), kind=kind, tokenizer=tokenizer(), scale=1)
    generator = Generator.open(folder, CPU, GenerationOptions(max_new_tokens=6))
    prompts = generator.encode(["The battery died.", "A train left Lyon at 08:14 and reached Turin late."]).prompts
    made = {key: done for group in generator.stream(iter(list(enumerate(prompts)))) for key, done in group}  # type: ignore[arg-type]
    model = kind.from_pretrained(folder)
    for i, prompt in enumerate(prompts):
        assert prompt is not None
        ids = transformers.BatchEncoding({"input_ids": prompt.ids[None].astype(np.int64)}, tensor_type="pt")
        told = model.generate(**ids, max_new_tokens=6, do_sample=False, num_beams=1)[0].numpy()
        expected = told[1 if crossed else len(prompt.ids) :]
        assert made[i].ids.tolist() == expected[: len(made[i].ids)].tolist()  # type: ignore[union-attr]


def test_a_table_of_images_is_no_limit_for_texts(tmp_path: Path) -> None:
    parts = {"text_config": {**SMALL, "vocab_size": WORDS}, "vision_config": VISION}
    folder = write_model(tmp_path / "clip", transformers.CLIPConfig(**parts))
    assert (TextEmbedder(str(folder)).tokenizer.limit or 1000) > 64


def test_a_model_that_fails_on_any_text_is_a_model_error_with_its_cause(tmp_path: Path) -> None:
    parts = {"text_config": {**SMALL, "vocab_size": WORDS}, "vision_config": VISION}
    folder = write_model(tmp_path / "clip", transformers.CLIPConfig(**parts))
    with pytest.raises(ModelError, match=r"clip cannot be run on texts: \w+Error: .* \(\w+\.py, line \d+\)\.\n"):
        opened(folder)


def test_models_of_images_and_of_sound_are_refused_before_a_run(
    write_jsonl: Write, tmp_path: Path, shardmill: Cli
) -> None:
    source = write_jsonl([{"text": "a phone"}] * 5)
    images = write_model(tmp_path / "vit", transformers.ViTConfig(**VISION))
    sound = tmp_path / "whisper"
    sound.mkdir()
    (sound / "config.json").write_text(json.dumps(transformers.WhisperConfig(d_model=32).to_dict()))
    for verb, *text in (("embed", "--text", "text"), ("generate", "--template", "{text}")):
        for folder, takes in ((images, "images"), (sound, "sound")):
            said = shardmill(verb, source, *text, "--model", folder, "--out", tmp_path / "run")
            assert_told(said, 2, f"takes {takes}, not texts", "Choose a model of texts")


METHODS = {
    "gptq": {"quant_method": "gptq", "bits": 4},
    "awq": {"quant_method": "awq", "bits": 4},
    "bitsandbytes": {"load_in_4bit": True, "quant_method": "bitsandbytes"},
    "fp8": {"quant_method": "fp8"},
    "mxfp4": {"quant_method": "mxfp4"},
}
NEEDED = {
    "gptq": "gptqmodel",
    "awq": "gptqmodel",
    "bitsandbytes": "bitsandbytes",
    "fp8": "accelerate",
    "mxfp4": "accelerate",
}


@pytest.mark.parametrize("method", METHODS)
def test_the_package_of_quantised_weights_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(NEEDED[method]) is not None:
        pytest.skip(f"{NEEDED[method]} is installed")
    causal = write_model(tmp_path / "causal", qwen3(), kind=transformers.AutoModelForCausalLM, tokenizer=tokenizer())
    plain = write_model(tmp_path / "plain", bert())
    for folder in (causal, plain):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": METHODS[method]}))
    with pytest.raises(MissingExtra, match=rf"(?s)not installed.*pip install [\w ]*{NEEDED[method]}"):
        Generator.open(causal, CPU, GenerationOptions(max_new_tokens=4))
    with pytest.raises(MissingExtra, match=rf"(?s)not installed.*pip install [\w ]*{NEEDED[method]}"):
        opened(plain)


def test_a_reranker_with_code_of_its_own_is_told_so(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "ranker", bert(), kind=transformers.AutoModelForSequenceClassification)
    config = json.loads((folder / "config.json").read_text())
    own = {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModelForSequenceClassification": "mine.M"},
    }
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    (folder / "mine.py").write_text("raise SystemExit('this was run')\n")
    with pytest.raises(ModelError, match=r"(?s)ranker comes with code of its own.*architecture transformers has"):
        PairModel(folder, RERANKER, CPU)


def test_a_classifier_embeds_and_the_user_is_told(
    write_jsonl: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path / "stars", bert(), kind=transformers.AutoModelForSequenceClassification)
    assert note_kind(write_model(tmp_path / "plain", bert())) == ""
    source = write_jsonl([{"text": "a phone"}] * 5)
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": str(folder)}})
    make_plan(spec, [CPU], quiet=False)
    said = capsys.readouterr().err
    assert "stars is no embedding model: its architecture is BertForSequenceClassification" in said


def test_a_pooling_that_was_chosen_for_a_model_is_told(write_jsonl: Write, tmp_path: Path) -> None:
    """A converted folder often lacks modules.json; means of tokens are wrong for a model such as BGE, without error."""
    plain = EmbedTask(model=str(write_model(tmp_path / "plain", bert())))
    assert plain.plan_notes[0].startswith("plain has no modules.json, so each vector is the mean over the tokens.")
    said = EmbedTask(model=str(write_model(tmp_path / "said", bert(), [pooling("mean")])))
    assert said.plan_notes == []
