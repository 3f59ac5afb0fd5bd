"""The speed of each kernel with MiniLM on this CPU. For peers, see `shardmill bench embed --device cpu --peers`."""

from __future__ import annotations

import argparse
import statistics
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, print_table
from shardmill.bench.peers import lowest_cosine
from shardmill.core.batching import plan_batches
from shardmill.core.devices import cores
from shardmill.verbs.sample.docstrings import read_docstrings

BUDGETS_TOKENS = (1024, 2048, 4096)
Vectors = NDArray[np.float32]


def opening_texts(count: int) -> list[str]:
    found = read_docstrings(Path(sysconfig.get_paths()["stdlib"]), lambda done, total: None)
    return [each.text for each in found[:count]]


def embed(kernel: Any, rows: list[NDArray[np.int32]], budget: int) -> Vectors:
    lengths = np.array([len(row) for row in rows])
    batches = plan_batches(lengths, budget)
    vectors = np.concatenate([kernel.encode([rows[i] for i in batch]) for batch in batches])
    return vectors[np.argsort(np.concatenate(batches))]


@dataclass
class Way:
    """A kernel with a budget of tokens, what its passes took, and what it gave."""

    name: str
    kernel: Any
    budget: int
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def measure(self, rows: list[NDArray[np.int32]], *, warm_up: bool) -> Vectors:
        began, busy = time.perf_counter(), time.process_time()
        vectors = embed(self.kernel, rows, self.budget)
        if not warm_up:
            self.seconds.append(time.perf_counter() - began)
            self.busy.append(time.process_time() - busy)
        return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()

    import torch

    from shardmill.models.encoder import Encoder
    from shardmill.models.folder import read_folder
    from shardmill.models.location import find_model
    from shardmill.models.names import MINILM
    from shardmill.models.openvino import OpenVinoEncoder, precisions
    from shardmill.models.tokenizer import load_tokenizer
    from shardmill.models.torch_kernels import cpu_has_bf16

    torch.set_num_threads(args.threads)
    folder = read_folder(find_model(MINILM).path)
    tokenizer = load_tokenizer(folder, None)
    texts = opening_texts(args.texts)
    rows = [row for row in tokenizer.encode(texts).rows if len(row)]
    tokens = sum(map(len, rows))
    plain = Encoder(folder, device="cpu", pad_id=tokenizer.pad_id)
    kernels: list[tuple[str, Any]] = [("torch f32, padded", plain)]
    if cpu_has_bf16():
        half, compiled = (Encoder(folder, device="cpu", pad_id=tokenizer.pad_id) for _ in range(2))
        half.cast(torch.bfloat16)
        compiled.cast(torch.bfloat16)
        compiled.compile()
        kernels += [("torch bf16, padded", half), ("torch bf16, compiled", compiled)]
    for precision in precisions():
        for streams in sorted({1, args.threads}):
            options = {"threads": args.threads, "precision": precision, "streams": streams}
            kernel = OpenVinoEncoder(folder, pad_id=tokenizer.pad_id, **options)
            kernels.append((kernel.name, kernel))
    expected = embed(plain, rows, BUDGETS_TOKENS[0])
    ways = [Way(name, kernel, budget) for name, kernel in kernels for budget in BUDGETS_TOKENS]
    cosines = [lowest_cosine(way.measure(rows, warm_up=True), expected) for way in ways]
    # In turns, so that all of them meet the same moods of a shared machine.
    for _ in range(args.repeats):
        for way in ways:
            way.measure(rows, warm_up=False)
    table = []
    for way, cosine in zip(ways, cosines, strict=True):
        took = statistics.median(way.seconds)
        speed = [f"{len(rows) / took:.1f}", f"{tokens / took:,.0f}", f"{statistics.median(way.busy):.2f}"]
        table.append([way.name, f"{way.budget} tokens", *speed, f"{cosine:.6f}"])
    describe_machine()
    print(f"{len(rows)} texts, {tokens:,} tokens, {args.threads} threads; medians of {args.repeats} after a warm-up\n")
    print_table(["kernel", "batch", "docs/s", "tokens/s", "processor s", "lowest cosine"], table)


if __name__ == "__main__":
    main()
