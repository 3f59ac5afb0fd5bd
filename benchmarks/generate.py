"""Generation from a JSONL file to a JSONL file, with transformers' `generate` in the same run.

python -m benchmarks.generate --out FOLDER                    # four cases on a GPU, with the peer: 6 to 8 minutes
python -m benchmarks.generate qwen3-0.6b/mixed --peer-s 0     # one case alone
python -m benchmarks.generate tiny-qwen3/mixed tiny-bart/equal --device cpu

Random weights of a model's shape are fine for speed. "equal" has 600 tokens in and 60 out for each document, "mixed"
has lengths drawn around 520 and 52. Loading, the trial, compiling and a warm-up are not counted; tokenizing, reading
and writing are. The peer runs in the same precision, sorted by length, in memory, tokenized before: batches of 8, and
the best of some larger ones, in a seeded order until its seconds are over. The limit is what the chip needs at least:
the arithmetic of reading the prompts, and the keys and values that each new token reads, at the rates that a large
matrix product and a large copy reach on it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks.generation_cases import (
    SHAPES,
    WHOLE,
    Rates,
    Shape,
    Texts,
    find_limit,
    measure_rates,
    wait_for_device,
    write_folder,
    write_texts,
)
from benchmarks.machine import describe_machine, print_table
from shardmill.bench import machine
from shardmill.core.devices import Device
from shardmill.models.decoding.generator import Generator
from shardmill.models.decoding.options import GenerationOptions
from shardmill.models.decoding.prompt import Completion, Prompt

BLOCK, AHEAD = 256, 16
SMALL_BATCH = 8
HEAD = [
    *("model, lengths", "docs/s", "tokens in/s", "tokens out/s", "limit, docs/s", "of the limit"),
    *("`generate`, batch 8", "`generate`, best batch", "ratio to the best"),
]


@dataclass(frozen=True, slots=True)
class PeerRate:
    """What `generate` did in batches of one size: `documents` of them in `seconds`, or why not."""

    batch: int
    documents: int = 0
    seconds: float = 0.0
    refused: str = ""

    @property
    def docs_per_s(self) -> float:
        return self.documents / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return self.refused or f"{_figure(self.docs_per_s)} (batch {self.batch:,}, {self.documents:,} documents)"


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One line of the table. `reading_s` and `stepping_s` are the least that the chip needs for all documents."""

    case: str
    path: str
    documents: int
    seconds: float
    tokens_in: int
    tokens_out: int
    open_s: float
    reading_s: float
    stepping_s: float
    peers: tuple[PeerRate, ...]

    @property
    def docs_per_s(self) -> float:
        return self.documents / self.seconds

    @property
    def best(self) -> PeerRate | None:
        return max(self.peers, key=lambda peer: peer.docs_per_s, default=None)

    def line(self) -> list[str]:
        least = self.reading_s + self.stepping_s
        small = next((str(peer) for peer in self.peers if peer.batch == SMALL_BATCH), "")
        ratio = f"{self.docs_per_s / self.best.docs_per_s:.1f}x" if self.best and self.best.docs_per_s else ""
        return [
            self.case.replace("/", ", "), _figure(self.docs_per_s),
            f"{self.tokens_in / self.seconds:,.0f}", f"{self.tokens_out / self.seconds:,.0f}",
            f"{self.documents / least:,.0f}", f"{100 * least / self.seconds:.0f} %",
            small, str(self.best or ""), ratio,
        ]  # fmt: skip


def feed(texts: Texts, generator: Generator, out: NDArray[np.int64]) -> Iterator[tuple[int, Prompt]]:
    """The prompts of a file, tokenized by another thread."""
    made: queue.Queue[list[tuple[int, Prompt]] | None] = queue.Queue(AHEAD)

    def read() -> None:
        rows = [json.loads(line) for line in texts.path.open()]
        for first in range(0, len(rows), BLOCK):
            block = rows[first : first + BLOCK]
            prompts = generator.encode([row["text"] for row in block]).prompts
            made.put([
                (row["id"], replace(p, limit=int(out[row["id"]]))) for row, p in zip(block, prompts, strict=True) if p
            ])  # fmt: skip
        made.put(None)

    threading.Thread(target=read, daemon=True).start()
    while (block := made.get()) is not None:
        yield from block


def run(generator: Generator, texts: Texts, out: NDArray[np.int64], to: Path) -> float:
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


class Peer:
    """transformers' `generate` over the same folder."""

    def __init__(self, folder: Path, shape: Shape, device: str) -> None:
        auto = transformers.AutoModelForSeq2SeqLM if shape.crossed else transformers.AutoModelForCausalLM
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.model = auto.from_pretrained(str(folder), dtype=dtype).to(device).eval()
        side = "right" if shape.crossed else "left"
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), padding_side=side)
        self.tokenizer.pad_token_id = 1
        self.device = device

    def measure(self, texts: Texts, batch: int, seconds: float) -> PeerRate:
        """Batches of documents of like length; a batch ends with its longest answer, which nobody knows before."""
        ids = self.tokenizer([json.loads(line)["text"] for line in texts.path.open()])["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
        batches = [order[i : i + batch] for i in range(0, len(order), batch)]
        done, took = 0, 0.0
        try:
            self._generate([ids[i] for i in batches[0][:64]], 4)
            for i in np.random.default_rng(2).permutation(len(batches)):
                wait_for_device()
                began = time.perf_counter()
                self._generate([ids[row] for row in batches[i]], int(texts.out[batches[i]].max()))
                wait_for_device()
                took, done = took + time.perf_counter() - began, done + len(batches[i])
                if took >= seconds:
                    break
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            return PeerRate(batch, refused="out of memory")
        return PeerRate(batch, done, took)

    def _generate(self, rows: list[list[int]], most: int) -> None:
        sent = self.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(self.device)
        with torch.inference_mode():
            self.model.generate(
                input_ids=sent["input_ids"], attention_mask=sent["attention_mask"], do_sample=False, num_beams=1,
                max_new_tokens=most, eos_token_id=None, pad_token_id=1,
            )  # fmt: skip


def run_model(
    name: str, mixes: list[str], scratch: Path, device: Device, rates: Rates, count: int | None, peer_s: float
) -> list[CaseResult]:
    """The cases of one model: ours first, then the peer on the same files."""
    shape = SHAPES[name]
    words = write_folder(scratch / name, shape)
    files = {mix: write_texts(scratch / f"{mix}.jsonl", words, shape, mix, count or shape.documents) for mix in mixes}
    began = time.perf_counter()
    generator = Generator.open(scratch / name, device, GenerationOptions(max_new_tokens=shape.most_new))
    open_s = time.perf_counter() - began
    print(f"{name}: {generator.name}, opened in {open_s:.0f} s", flush=True)
    found = []
    for mix, texts in files.items():
        run(generator, texts, np.minimum(texts.out, 8), scratch / "warm.jsonl")
        took = run(generator, texts, texts.out, scratch / "out.jsonl")
        print(f"{name}/{mix}: {_figure(len(texts.out) / took)} docs/s", flush=True)
        sums = int(texts.into.sum()), int(texts.out.sum())
        limit = find_limit(shape, rates, texts)
        found.append(CaseResult(f"{name}/{mix}", generator.name, len(texts.out), took, *sums, open_s, *limit, ()))
    del generator
    torch.cuda.empty_cache()
    if not peer_s:
        return found
    peer = Peer(scratch / name, shape, device.kind)
    for i, texts in enumerate(files.values()):
        rated = []
        for batch in (SMALL_BATCH, *shape.batches):
            rated.append(peer.measure(texts, batch, peer_s))
            print(f"{found[i].case}: `generate` {rated[-1]}", flush=True)
        found[i] = replace(found[i], peers=tuple(rated))
    return found


def write_report(folder: Path, results: list[CaseResult], rates: Rates) -> None:
    """generate.json: everything that was measured, and where; generate.md: the table."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "generate.md").open("w") as file, contextlib.redirect_stdout(file):
        print_table(HEAD, [result.line() for result in results])
    told = {"machine": asdict(machine.describe_machine()), "rates": asdict(rates), "cases": list(map(asdict, results))}
    (folder / "generate.json").write_text(json.dumps(told, indent=2) + "\n")


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def main(words: list[str] | None = None) -> list[CaseResult]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="MODEL/LENGTHS", help=f"{', '.join(SHAPES)}; equal or mixed.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--count", type=int, help="Documents; the default fills an H200 several times.")
    parser.add_argument("--peer-s", type=float, default=15, help="Seconds of `generate` per batch size; 0 for none.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="Write generate.json and generate.md there.")
    args = parser.parse_args(words)
    cases = args.cases or list(WHOLE)
    unknown = [c for c in cases if c.partition("/")[0] not in SHAPES or c.partition("/")[2] not in ("equal", "mixed")]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    began = time.perf_counter()
    describe_machine()
    rates = measure_rates(args.device)
    print(f"{rates.operations / 1e12:,.2f} TFLOP/s, {rates.bytes / 1e12:,.2f} TB/s", flush=True)
    device = Device(args.device, args.device, work_bytes=1 << 60)
    results: list[CaseResult] = []
    for name in dict.fromkeys(case.partition("/")[0] for case in cases):
        with tempfile.TemporaryDirectory() as scratch:
            mixes = [case.partition("/")[2] for case in cases if case.startswith(f"{name}/")]
            results += run_model(name, mixes, Path(scratch), device, rates, args.count, args.peer_s)
        if args.out:
            write_report(args.out, results, rates)
    print(f"\n{time.perf_counter() - began:.0f} s in all\n")
    print_table(HEAD, [result.line() for result in results])
    return results


if __name__ == "__main__":
    main()
