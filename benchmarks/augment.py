"""Augmentation on a GPU and on many ranks, its memory and collisions; for one core see `shardmill bench augment`.

python -m benchmarks.augment ranks memory collisions gpu [--samples 100000000] [--ranks 16]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, print_table
from shardmill.augment import augmentation_table, get_preset, stream_distributed_augmentation_chain
from shardmill.augment.params import augmentation_tensors
from shardmill.core.random import make_key

CONFIG = get_preset("moderate")
EPOCHS, VIEWS = 2, 2


def take(samples: int, rank: int = 0, world_size: int = 1) -> int:
    stream = stream_distributed_augmentation_chain(samples, rank, world_size, CONFIG, chunk_size=1 << 13)
    return sum(len(ids) for ids, _ in stream.tables())


def one_rank(samples: int, rank: int, world_size: int, ready: Barrier, out: Any) -> None:
    """Put a rank's samples, seconds and CPU-seconds into `out`; all ranks start together."""
    take(100_000)
    ready.wait()
    began, cpu = time.perf_counter(), time.process_time()
    made = take(samples, rank, world_size)
    out.put((made, time.perf_counter() - began, time.process_time() - cpu))


@dataclass(frozen=True)
class Together:
    """Parallel processes: all samples by the time of the slowest process, and by the CPU time of all."""

    per_s: float
    per_cpu_s: float
    waited: float


def side_by_side(work: list[tuple[int, int, int]]) -> Together:
    """Run one process per `samples, rank, world_size`; `waited` is the largest share of time that one did not run."""
    context = multiprocessing.get_context("spawn")
    ready, out = context.Barrier(len(work)), context.Queue()
    processes = [context.Process(target=one_rank, args=(*each, ready, out)) for each in work]
    for each in processes:
        each.start()
    found = [out.get() for _ in processes]
    for each in processes:
        each.join()
    made = sum(samples for samples, _, _ in found)
    return Together(
        made / max(seconds for _, seconds, _ in found),
        made / sum(cpu for _, _, cpu in found),
        max(1 - cpu / seconds for _, seconds, cpu in found),
    )


def ranks(samples: int, most: int) -> None:
    """Ranks of one stream, compared with as many independent processes, which show the machine's own limit.

    Every process has as much work as a single one, so the time should not grow. By CPU time, waiting for a core costs
    nothing, but extra work because of other ranks does.
    """
    table, each, count = [], samples // 4, 1
    alone: Together | None = None
    while count <= most:
        strangers = side_by_side([(each, 0, 1)] * count)
        together = side_by_side([(each * count, rank, count) for rank in range(count)])
        alone = alone or together
        shares = [
            f"{together.per_s / count / alone.per_s:.1%}",
            f"{strangers.per_s / count / alone.per_s:.1%}",
            f"{together.per_cpu_s / alone.per_cpu_s:.1%}",
            f"{strangers.per_cpu_s / alone.per_cpu_s:.1%}",
        ]
        table.append([str(count), f"{together.per_s / 10**6:.1f} M", *shares, f"{together.waited:.2%}"])
        count *= 2
    head = [
        "ranks",
        "samples/s",
        "vs N single ones",
        "independent",
        "by CPU time",
        "independent by CPU time",
        "longest wait of a rank",
    ]
    print_table(head, table)


def memory(samples: int, _most: int) -> None:
    table, done = [], 0
    for size in [10**5, 10**6, 10**7, 10**8, 10**9]:
        if size > samples * 10:
            break
        done = take(size)
        table.append([f"{done:,}", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f} MiB"])
    print_table(["samples", "peak memory so far"], table)


def collisions(samples: int, _most: int) -> None:
    """Count blocks of 128 bits with equal first 64 bits: if there are none, no two blocks are equal."""
    import torch

    from shardmill.core.random.tensors import _words

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: list[Any] = []
    for view in range(VIEWS):
        for epoch in range(EPOCHS):
            for start in range(0, samples, 1 << 24):
                ids = torch.arange(start, min(samples, start + (1 << 24)), device=device)
                w0, w1, _, _ = _words(ids, make_key(CONFIG.seed, "augment", view), epoch, 0)
                found.append(w0 << 32 | w1)
    first, _ = torch.sort(torch.cat(found))
    alike = int((first[1:] == first[:-1]).sum())
    by_chance = len(first) ** 2 / 2 / 2**64
    made = f"{samples:,} samples x {EPOCHS} epochs x {VIEWS} ranks"
    print(f"{made}: {alike} pairs agree in their first 64 bits; {by_chance:.4f} are expected by chance.")


def gpu(samples: int, _most: int) -> None:
    import torch

    ids = torch.arange(samples, device="cuda")
    seconds = []
    for _ in range(12):
        torch.cuda.synchronize()
        began = time.perf_counter()
        columns = augmentation_tensors(ids, CONFIG)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    rate = samples / sorted(seconds)[len(seconds) // 2]
    print(f"{torch.cuda.get_device_name()}: {rate / 10**9:.2f} billion samples/s, five float64 columns")
    step, equal = 1 << 22, True
    for start in range(0, samples, step):
        here = augmentation_table(np.arange(start, min(samples, start + step), dtype=np.uint64), CONFIG)
        equal &= all(columns[n][start : start + step].cpu().numpy().tobytes() == c.tobytes() for n, c in here.items())
    print(f"all {samples:,} samples bit-identical to those of the CPU: {equal}")


PARTS: dict[str, Callable[[int, int], None]] = {
    "ranks": ranks,
    "memory": memory,
    "collisions": collisions,
    "gpu": gpu,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--ranks", type=int, default=16)
    args = parser.parse_args()
    describe_machine()
    for part in args.parts:
        print(f"\n{part}\n")
        PARTS[part](args.samples, args.ranks)


if __name__ == "__main__":
    main()
