"""Generation from a JSONL file to a JSONL file, with transformers' `generate` in the same run.

python -m benchmarks.generate qwen3-0.6b/equal qwen3-0.6b/mixed bart-large/equal --peer

Random weights of a model's shape are fine for speed. "equal" has 600 tokens in and 60 out for each document, "mixed"
has lengths drawn around 520 and 52. Loading, the trial, compiling and a warm-up are not counted; tokenizing, reading
and writing are. The limit is what the chip needs at least: the arithmetic of reading the prompts, and the keys and
values that each new token reads, at the rates that a large matrix product and a large copy reach on it.
"""

from __future__ import annotations

import argparse
import json
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.machine import describe_machine, print_table
from shardmill.devices import Device
from shardmill.models.decoding.generator import Generator
from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.decoding.prompt import Completion, Prompt

BLOCK, AHEAD = 256, 16
MOST_NEW = 120
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
# The shape, the number of documents, and the best batch of `generate`.
SHAPES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "qwen3-0.6b": ("Qwen3", QWEN, 4096, 512),
    "bart-large": ("Bart", {"forced_eos_token_id": None}, 8192, 2048),
}
HEAD = [
    *("model, lengths", "docs/s", "tokens in/s", "tokens out/s", "of the limit", "least reading", "least steps"),
    *("limit, docs/s", "`generate`, docs/s", "ratio", "open, s"),
]


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


def _seconds(run: Any, times: int = 10) -> float:
    """The time of one of some runs, after a first."""
    run()
    _wait()
    began = time.perf_counter()
    for _ in range(times):
        run()
    _wait()
    return (time.perf_counter() - began) / times


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def write_folder(folder: Path, name: str) -> list[str]:
    """A model of that shape with random weights and a tokenizer; the words that are one token each."""
    kind, shape, _, _ = SHAPES[name]
    rng = np.random.default_rng(0)
    words = sorted({"".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(2, 8))) for _ in range(4000)})
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=30000, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    backend.train_from_iterator([" " + word for word in words], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(folder)
    config = getattr(transformers, f"{kind}Config")(**{"eos_token_id": None, **shape})
    torch.manual_seed(0)
    model = getattr(transformers, "BartForConditionalGeneration" if kind == "Bart" else f"{kind}ForCausalLM")(config)
    model.generation_config.eos_token_id = model.generation_config.forced_eos_token_id = None
    model.to(torch.bfloat16 if kind == "Qwen3" else torch.float32).save_pretrained(folder)
    return words


def write_texts(path: Path, words: list[str], mix: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One document a line; the tokens of each, and how many it is to get."""
    rng = np.random.default_rng(1)
    if mix == "equal":
        into, out = np.full(count, 600), np.full(count, 60)
    else:
        into, out = (rng.lognormal(np.log(mean), 0.6, count).astype(int) for mean in (520, 52))
        into, out = np.clip(into, 8, 1000), np.clip(out, 8, MOST_NEW)
    with path.open("w") as file:
        for i, n in enumerate(into):
            file.write(json.dumps({"id": i, "text": " ".join(rng.choice(words, n))}) + "\n")
    return into, out


def feed(path: Path, generator: Generator, out: NDArray[np.int64]) -> Iterator[tuple[int, Prompt]]:
    """The prompts of a file, tokenized by another thread."""
    made: queue.Queue[list[tuple[int, Prompt]] | None] = queue.Queue(AHEAD)

    def read() -> None:
        rows = [json.loads(line) for line in path.open()]
        for first in range(0, len(rows), BLOCK):
            block = rows[first : first + BLOCK]
            prompts = generator.encode([row["text"] for row in block]).prompts
            made.put([(row["id"], replace(p, limit=int(out[row["id"]]))) for row, p in zip(block, prompts) if p])  # noqa: B905
        made.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (block := made.get()) is not None:
        yield from block


def run(generator: Generator, texts: Path, out: NDArray[np.int64], to: Path) -> float:
    """Seconds from file to file."""
    began = time.perf_counter()
    tokens = rows = 0
    with to.open("w") as file:
        for group in generator.stream(feed(texts, generator, out)):
            for key, made in group:
                if not isinstance(made, Completion):
                    raise SystemExit(f"row {key}: {made}")
                tokens, rows = tokens + made.tokens_out, rows + 1
                file.write(json.dumps({"id": key, "text": made.text, "reason": made.reason}) + "\n")
    took = time.perf_counter() - began
    if rows != len(out) or tokens != out.sum():
        raise SystemExit(f"{rows} rows and {tokens} tokens came out, not {len(out)} and {out.sum()}.")
    return took


def find_limit(name: str, rates: Rates, into: NDArray[np.int64], out: NDArray[np.int64]) -> tuple[float, float]:
    """The least seconds of reading and of the steps for all documents."""
    kind, shape, _, _ = SHAPES[name]
    if kind == "Qwen3":
        h, inner, layers, heads, shared, width = (
            shape[k]
            for k in (
                *("hidden_size", "intermediate_size", "num_hidden_layers"),
                *("num_attention_heads", "num_key_value_heads", "head_dim"),
            )
        )
        weights = layers * (h * width * (2 * heads + 2 * shared) + 3 * h * inner)
        pairs = layers * heads * width * 2 * into.astype(float) ** 2
        kept = layers * shared * width * 2 * 2
        seen = out * into + out * (out + 1) / 2
    else:
        h, inner, layers = 1024, 4096, 12
        # The encoder reads all tokens; the decoder's keys and values of them are two products more.
        weights = layers * (4 * h * h + 2 * h * inner + 2 * h * h)
        pairs = layers * h * 4 * into.astype(float) ** 2
        kept = layers * h * 2 * 2
        seen = out * into + out * (out + 1) / 2
    reading = (2 * weights * into.sum() + pairs.sum()) / rates.operations
    return float(reading), float(kept * seen.sum() / rates.bytes)


def run_peer(folder: Path, name: str, texts: Path, out: NDArray[np.int64], device: str, batches: int) -> float:
    """Documents a second of `generate`, sorted by length, in its best batch size; in memory, tokenized before."""
    kind, _, _, batch = SHAPES[name]
    auto = transformers.AutoModelForSeq2SeqLM if kind == "Bart" else transformers.AutoModelForCausalLM
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = auto.from_pretrained(str(folder), dtype=dtype).to(device).eval()
    side = "right" if kind == "Bart" else "left"
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), padding_side=side)
    tokenizer.pad_token_id = 1
    rows = [json.loads(line) for line in texts.open()]
    ids = tokenizer([row["text"] for row in rows])["input_ids"]
    # Rows leave a batch together: sorted by what comes out too, as a caller cannot, would flatter it.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
    step = max(1, len(order) // batch // batches) * batch
    chosen = [order[i : i + batch] for i in range(0, len(order), step)][:batches]

    def one(rows: list[int], most: int) -> None:
        sent = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt").to(device)
        with torch.inference_mode():
            model.generate(
                input_ids=sent["input_ids"], attention_mask=sent["attention_mask"], do_sample=False, num_beams=1,
                max_new_tokens=most, eos_token_id=None, pad_token_id=1,
            )  # fmt: skip

    one(chosen[0][:64], 4)
    _wait()
    began = time.perf_counter()
    for part in chosen:
        one(part, int(out[part].max()))
    _wait()
    return sum(map(len, chosen)) / (time.perf_counter() - began)


def run_model(
    name: str, mixes: list[str], scratch: Path, device: Device, rates: Rates, count: int, batches: int | None
) -> list[list[str]]:
    """A line of the table for each mix of lengths."""
    words = write_folder(scratch / name, name)
    files = {
        mix: (scratch / f"{mix}.jsonl", *write_texts(scratch / f"{mix}.jsonl", words, mix, count)) for mix in mixes
    }
    began = time.perf_counter()
    generator = Generator.open(scratch / name, device, GenerationOptions(max_new_tokens=MOST_NEW))
    open_s = time.perf_counter() - began
    print(name, generator.name, f"{open_s:.0f} s", flush=True)
    took: dict[str, float] = {}
    for mix, (texts, _, out) in files.items():
        run(generator, texts, np.minimum(out, 8), scratch / "warm.jsonl")
        took[mix] = run(generator, texts, out, scratch / "out.jsonl")
        print(name, mix, f"{count / took[mix]:,.0f} docs/s", flush=True)
    del generator
    torch.cuda.empty_cache()
    rows = []
    for mix, (texts, into, out) in files.items():
        reading, stepping = find_limit(name, rates, into, out)
        peer = run_peer(scratch / name, name, texts, out, device.kind, batches) if batches else 0.0
        rows.append([
            f"{name}, {mix}", f"{count / took[mix]:,.0f}",
            f"{into.sum() / took[mix]:,.0f}", f"{out.sum() / took[mix]:,.0f}",
            f"{100 * (reading + stepping) / took[mix]:.0f} %", f"{reading:.2f} s", f"{stepping:.2f} s",
            f"{count / (reading + stepping):,.0f}", f"{peer:,.0f}" if peer else "",
            f"{count / took[mix] / peer:.1f}x" if peer else "", f"{open_s:.0f}",
        ])  # fmt: skip
        print(*rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", help=f"MODEL/equal or MODEL/mixed; MODEL is {' or '.join(SHAPES)}.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--count", type=int, help="Documents; the default fills an H200 several times.")
    parser.add_argument("--peer", type=int, metavar="BATCHES", help="Run `generate` over this many batches as well.")
    args = parser.parse_args()
    describe_machine()
    rates = measure_rates(args.device)
    print(f"{rates.operations / 1e12:,.0f} TFLOP/s, {rates.bytes / 1e12:,.2f} TB/s", flush=True)
    device = Device(args.device, args.device, work_bytes=1 << 30)
    rows = []
    for name in dict.fromkeys(case.partition("/")[0] for case in args.cases):
        with tempfile.TemporaryDirectory() as scratch:
            mixes = [case.partition("/")[2] for case in args.cases if case.startswith(f"{name}/")]
            rows += run_model(name, mixes, Path(scratch), device, rates, args.count or SHAPES[name][2], args.peer)
    print()
    print_table(HEAD, rows)


if __name__ == "__main__":
    main()
