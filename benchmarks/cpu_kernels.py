"""The speed of each kernel with MiniLM on this CPU. For peers, see `shardmill bench embed --device cpu --peers`."""

from __future__ import annotations

import argparse
import sysconfig
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, print_table
from examples.demo import PARAGRAPHS, docstrings
from shardmill.bench.peers import lowest_cosine
from shardmill.core.batching import plan_batches
from shardmill.core.devices import cores

BUDGETS_TOKENS = (1024, 2048, 4096)
Vectors = NDArray[np.float32]


def opening_texts(count: int) -> list[str]:
    found = docstrings(Path(sysconfig.get_paths()["stdlib"]))
    openings = ("\n\n".join(text.split("\n\n")[:PARAGRAPHS]) for _, text in found)
    return list(islice(dict.fromkeys(islice(openings, 2 * count)), count))


def embed(kernel: Any, rows: list[NDArray[np.int32]], budget: int) -> Vectors:
    lengths = np.array([len(row) for row in rows])
    batches = plan_batches(lengths, budget)
    vectors = np.concatenate([kernel.encode([rows[i] for i in batch]) for batch in batches])
    return vectors[np.argsort(np.concatenate(batches))]


def measure(work: Callable[[], Vectors], repeats: int) -> tuple[float, Vectors]:
    """The best time in seconds after one warm-up pass, and the vectors."""
    vectors, best = work(), np.inf
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best, vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()

    import torch

    from shardmill.models.encoder import Encoder
    from shardmill.models.folder import read_folder
    from shardmill.models.location import MINILM, find_model
    from shardmill.models.openvino import OpenVinoEncoder, precisions
    from shardmill.models.tokenizer import load_tokenizer
    from shardmill.models.torch_kernels import cpu_has_bf16

    torch.set_num_threads(args.threads)
    folder = read_folder(find_model(MINILM).path)
    tokenizer = load_tokenizer(folder, None)
    texts = opening_texts(args.texts)
    rows = [row for row in tokenizer.encode(texts).rows if len(row)]
    tokens = sum(map(len, rows))
    table: list[list[str]] = []
    plain = Encoder(folder, device="cpu", pad_id=tokenizer.pad_id)
    expected = embed(plain, rows, BUDGETS_TOKENS[0])

    def add(name: str, batch: str, work: Callable[[], Vectors]) -> None:
        took, vectors = measure(work, args.repeats)
        cosine = lowest_cosine(vectors, expected)
        table.append([name, batch, f"{len(rows) / took:.1f}", f"{tokens / took:,.0f}", f"{cosine:.6f}"])

    for budget in BUDGETS_TOKENS:
        add("torch f32, padded", f"{budget} tokens", lambda budget=budget: embed(plain, rows, budget))
    if cpu_has_bf16():
        for name, compiled in (("torch bf16, padded", False), ("torch bf16, compiled", True)):
            half = Encoder(folder, device="cpu", pad_id=tokenizer.pad_id)
            half.cast(torch.bfloat16)
            if compiled:
                half.compile()
            for budget in BUDGETS_TOKENS:
                add(name, f"{budget} tokens", lambda budget=budget, half=half: embed(half, rows, budget))
    here = precisions()
    for precision in ("f32", "f16", "bf16"):
        if precision not in here:
            table.append([f"openvino {precision}", "not on this CPU", "", "", ""])
            continue
        for streams in sorted({1, args.threads}):
            options = {"threads": args.threads, "precision": precision, "streams": streams}
            kernel = OpenVinoEncoder(folder, pad_id=tokenizer.pad_id, **options)
            for budget in BUDGETS_TOKENS:
                add(kernel.name, f"{budget} tokens", lambda budget=budget, kernel=kernel: embed(kernel, rows, budget))
    describe_machine()
    print(f"{len(rows)} texts, {tokens:,} tokens, {args.threads} threads; best of {args.repeats} after a warm-up\n")
    print_table(["kernel", "batch", "docs/s", "tokens/s", "lowest cosine"], table)


if __name__ == "__main__":
    main()
