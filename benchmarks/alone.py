"""Models on a GPU without reading, tokenizing and writing: texts a second, and the share of the chip's peak.

python -m benchmarks.alone [SHAPE …]       # all shapes: about two minutes on an H200
python -m benchmarks.alone qwen3 --precision fp8
python -m benchmarks.alone bert --tiny --device cpu

Random weights of each shape, mixed texts, already tokenized by MiniLM's tokenizer. The kernel and the batches are those
that a worker with much work left chooses, which compiles. Batches are started two ahead, as a worker does it; pooling
and the copies to and from the device count. The share is that of the matrix products in the time. Clocks and power are
read through NVML meanwhile.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.families import SHAPES, count_words, write_shape
from benchmarks.machine import describe_machine, print_table
from shardmill.bench.chips import peak_tflops
from shardmill.bench.texts import mixed_texts
from shardmill.core.devices import Device
from shardmill.models.arithmetic import count_arithmetic
from shardmill.models.embedder import TextEmbedder
from shardmill.models.heads import read_heads
from shardmill.models.ragged import token_batches

HEAD = ["model", "kernel", "docs/s", "tokens/s", "of the chip's peak", "clock, MHz", "most power, W"]
_AHEAD = 2
_LOOK_EVERY_S = 0.1


@dataclass
class Card:
    """The clocks and the power of the first GPU while it works; nothing without one."""

    clocks: list[int] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)

    def look(self, ended: threading.Event) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
            card = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not ended.wait(_LOOK_EVERY_S):
                self.clocks.append(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM))
                self.watts.append(pynvml.nvmlDeviceGetPowerUsage(card) / 1000)
        except pynvml.NVMLError:
            return


def measure(name: str, folder: Path, device: Device, texts: int, seconds: float, precision: str = "") -> list[str]:
    """One line of the table."""
    embedder = TextEmbedder(str(folder), precision=precision)
    embedder.open(device)
    rows = embedder.encode(list(mixed_texts(texts, count_words))).rows
    batches = [[rows[int(i)] for i in batch] for batch in token_batches(rows.lengths, embedder.batch_budget)]
    for batch in (batches[0], batches[len(batches) // 2], batches[-1]):
        embedder.begin(batch)()
    ended, card = threading.Event(), Card()
    looking = threading.Thread(target=card.look, args=(ended,), daemon=True)
    looking.start()
    begun: deque[Callable[[], Any]] = deque()
    docs = tokens = pairs = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for batch in batches:
            begun.append(embedder.begin(batch))
            docs, tokens = docs + len(batch), tokens + sum(map(len, batch))
            pairs += sum(len(row) ** 2 for row in batch)
            if len(begun) > _AHEAD:
                begun.popleft()()
    for fetch in begun:
        fetch()
    took = time.perf_counter() - began
    ended.set()
    looking.join()
    own = embedder.folder
    heads = ((tensor, said["shape"]) for tensor, said in read_heads(own.transformer))
    peak = peak_tflops(device.name)
    share = count_arithmetic(own.config, heads).flops(tokens, pairs) / took / (peak * 1e12) if peak else None
    kernel = embedder.numerics["kernel"]
    embedder.close()
    return [
        *(name, kernel, f"{docs / took:,.0f}", f"{tokens / took:,.0f}"),
        "?" if share is None else f"{100 * share:.1f} %",
        f"{min(card.clocks)} to {max(card.clocks)}" if card.clocks else "?",
        f"{max(card.watts):.0f}" if card.watts else "?",
    ]


def main(argv: list[str] | None = None) -> list[list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", help=f"Of {', '.join(SHAPES)}; default: all.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--precision", choices=("fp8",), default="", help="Default: the fastest of 16 bits.")
    parser.add_argument("--tiny", action="store_true", help="Tiny shapes, to try the benchmark itself.")
    asked = parser.parse_args(argv)
    describe_machine()
    name, work_bytes = "cpu", 0
    if asked.device == "cuda":
        import torch

        name, work_bytes = torch.cuda.get_device_name(), 1 << 40
    lines = []
    with tempfile.TemporaryDirectory() as place:
        for shape in asked.shapes or SHAPES:
            folder = write_shape(Path(place) / shape, shape, tiny=asked.tiny)
            device = Device(asked.device, name, work_bytes=work_bytes)
            lines.append(measure(shape, folder, device, asked.texts, asked.seconds, asked.precision))
            print(" | ".join(lines[-1]), flush=True)
    print()
    print_table(HEAD, lines)
    return lines


if __name__ == "__main__":
    main()
