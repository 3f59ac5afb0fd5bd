"""The models, texts and limits of `benchmarks.generate`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


@dataclass(frozen=True, slots=True)
class Shape:
    """A model with random weights. `batches` are the sizes among which the best of `generate` is found."""

    kind: str
    config: dict[str, Any]
    documents: int
    batches: tuple[int, ...]
    tokens_in: int = 600
    tokens_out: int = 60

    @property
    def crossed(self) -> bool:
        return self.kind == "Bart"

    @property
    def most_new(self) -> int:
        return 2 * self.tokens_out


QWEN = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
BART = {"d_model": 1024, "encoder_ffn_dim": 4096, "encoder_layers": 12, "decoder_layers": 12}
# For trying the benchmark out on a CPU.
TINY_QWEN = QWEN | {
    "vocab_size": 30000,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
TINY_BART = {
    "vocab_size": 30000,
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
SHAPES = {
    "qwen3-0.6b": Shape("Qwen3", QWEN, 4096, (256, 512)),
    "bart-large": Shape("Bart", BART, 8192, (1024, 2048)),
    "tiny-qwen3": Shape("Qwen3", TINY_QWEN, 24, (12,), 60, 6),
    "tiny-bart": Shape("Bart", TINY_BART, 24, (12,), 60, 6),
}
WHOLE = tuple(f"{name}/{mix}" for name in ("qwen3-0.6b", "bart-large") for mix in ("equal", "mixed"))


@dataclass(frozen=True, slots=True)
class Texts:
    """The documents of one case: a file, the tokens of each, and how many it is to get."""

    path: Path
    into: NDArray[np.int64]
    out: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rates:
    """What this chip reaches: operations a second of a large product, bytes a second of a large copy."""

    operations: float
    bytes: float


def measure_rates(device: str) -> Rates:
    size = 8192 if device == "cuda" else 512
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in "ab")
    whole = torch.randn(1 << (30 if device == "cuda" else 22), device=device)
    to = torch.empty_like(whole)
    product, copied = _seconds(lambda: a @ b), _seconds(lambda: to.copy_(whole))
    return Rates(2 * size**3 / product, 2 * whole.numel() * 4 / copied)


def _seconds(run: Callable[[], Any], times: int = 10) -> float:
    """The time of one of some runs, after a first."""
    run()
    wait_for_device()
    began = time.perf_counter()
    for _ in range(times):
        run()
    wait_for_device()
    return (time.perf_counter() - began) / times


def wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@cache
def _train() -> tuple[Tokenizer, list[str]]:
    """A tokenizer, and the words that are one token each."""
    rng = np.random.default_rng(0)
    words = sorted({"".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(2, 8))) for _ in range(4000)})
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=30000, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    backend.train_from_iterator([" " + word for word in words], trainer)
    return backend, words


def write_folder(folder: Path, shape: Shape) -> list[str]:
    """A model of that shape with random weights and a tokenizer; the words that are one token each."""
    backend, words = _train()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    config = getattr(transformers, f"{shape.kind}Config")(
        **{"eos_token_id": None, "forced_eos_token_id": None, **shape.config}
    )
    torch.manual_seed(0)
    name = "BartForConditionalGeneration" if shape.crossed else f"{shape.kind}ForCausalLM"
    model = getattr(transformers, name)(config)
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    model.to(torch.float32 if shape.crossed else torch.bfloat16).save_pretrained(folder)
    return words


def write_texts(path: Path, words: list[str], shape: Shape, mix: str, count: int) -> Texts:
    """One document a line."""
    rng = np.random.default_rng(1)
    if mix == "equal":
        into, out = np.full(count, shape.tokens_in), np.full(count, shape.tokens_out)
    else:
        means = (shape.tokens_in * 13 / 15, shape.tokens_out * 13 / 15)
        into, out = (rng.lognormal(np.log(mean), 0.6, count).astype(int) for mean in means)
        into, out = np.clip(into, 8, shape.tokens_in * 5 // 3), np.clip(out, min(8, shape.tokens_out), shape.most_new)
    with path.open("w") as file:
        for i, n in enumerate(into):
            file.write(json.dumps({"id": i, "text": " ".join(rng.choice(words, n))}) + "\n")
    return Texts(path, into, out)


def find_limit(shape: Shape, rates: Rates, texts: Texts) -> tuple[float, float]:
    """The least seconds of reading and of the steps for all documents."""
    config, into, out = shape.config, texts.into.astype(float), texts.out.astype(float)
    if shape.crossed:
        h, inner, layers = config["d_model"], config["encoder_ffn_dim"], config["encoder_layers"]
        # The encoder reads all tokens; the decoder's keys and values of them are two products more.
        weights = layers * (4 * h * h + 2 * h * inner + 2 * h * h)
        pairs = layers * h * 4 * into**2
        kept = config["decoder_layers"] * h * 2 * 2
    else:
        h, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
        heads, shared, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        weights = layers * (h * width * (2 * heads + 2 * shared) + 3 * h * inner)
        pairs = layers * heads * width * 2 * into**2
        kept = layers * shared * width * 2 * 2
    seen = out * into + out * (out + 1) / 2
    reading = (2 * weights * into.sum() + pairs.sum()) / rates.operations
    return float(reading), float(kept * seen.sum() / rates.bytes)
