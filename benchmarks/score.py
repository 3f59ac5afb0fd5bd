"""Scores of pairs end to end, file to Parquet, beside the loop that users of sentence-transformers' CrossEncoder write.

python -m benchmarks.score [--device cuda] [--pairs 200000] [--layers 6 12] [--half] [--repeats 3]

The models have the shapes of MiniLM-L6 and L12 with random weights; pairs have 180 tokens on average, the passages of
80 to 260 words. CrossEncoder takes the fastest of several batch sizes, found on a part of the pairs. With --half it
computes in float16, too. Runs are interleaved; the median counts. Rates are without start-up: of CrossEncoder by its
clock around `predict` and writing, of shardmill by the seconds of work that `cost` counts.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, print_table
from shardmill.models.location import find_model
from shardmill.models.names import MINILM

_BATCHES = {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256, 512, 1024)}
_LOOP = """
import json, sys, time
import pyarrow as pa, pyarrow.parquet as pq, torch
from sentence_transformers import CrossEncoder
model, source, out, device, dtype, batches = sys.argv[1:7]
rows = [json.loads(line) for line in open(source)]
pairs = [(row["query"], row["passage"]) for row in rows]
cross = CrossEncoder(model, device=device, model_kwargs={"dtype": getattr(torch, dtype)})
some, took = pairs[: max(64, len(pairs) // 20)], {}
for batch in map(int, batches.split(",")):
    cross.predict(some[:batch], batch_size=batch)
    began = time.perf_counter()
    cross.predict(some, batch_size=batch)
    took[batch] = time.perf_counter() - began
best = min(took, key=took.get)
began = time.perf_counter()
scores = cross.predict(pairs, batch_size=best)
pq.write_table(pa.table({"id": [row["id"] for row in rows], "score": scores}), out)
print(json.dumps({"seconds": time.perf_counter() - began, "batch": best}))
"""


@dataclass
class Way:
    """A program that scores, by its name, and the type that CrossEncoder computes in; shardmill has none."""

    name: str
    dtype: str = ""
    took: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    said: str = ""
    scores: NDArray[np.float32] | None = None


def write_model(folder: Path, layers: int) -> Path:
    """A cross-encoder of MiniLM's shape."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12, "num_hidden_layers": layers}
    BertForSequenceClassification(BertConfig(**shape, num_labels=1)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(find_model(MINILM).path), model_max_length=512).save_pretrained(folder)
    return folder


def write_pairs(count: int, out: Path) -> None:
    """Pairs of words that are one token each."""
    vocabulary = (find_model(MINILM).path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words, draw = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2], random.Random(0)
    with out.open("w") as file:
        for number in range(count):
            query, passage = (" ".join(draw.choices(words, k=draw.randint(*sizes))) for sizes in ((4, 10), (80, 260)))
            file.write(json.dumps({"id": number, "query": query, "passage": passage}) + "\n")


def measure(way: Way, model: Path, pairs: Path, out: Path, device: str) -> None:
    batches = ",".join(map(str, _BATCHES[device]))
    command = [sys.executable, "-c", _LOOP, *map(str, (model, pairs, out)), device, way.dtype, batches]
    if not way.dtype:
        command = [sys.executable, "-m", "shardmill", "score", str(pairs), "--query-text", "query", "--text", "passage"]
        command += ["--id", "id", "--model", str(model), "--out", str(out), "--device", device]
    began = time.perf_counter()
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    way.whole.append(time.perf_counter() - began)
    if way.dtype:
        found = json.loads(said.splitlines()[-1])
        way.took.append(found["seconds"])
        way.said = f"batch {found['batch']}"
        scores = pq.read_table(out).column("score")
    else:
        from shardmill.run import Run

        run = Run(str(out))
        way.took.append(run.cost().times.work_s)
        way.said = next(iter(run.ledger.commits.read().values())).kernel
        scores = run.table(["score"]).column("score")
    way.scores = scores.to_numpy()
    shutil.rmtree(out) if out.is_dir() else out.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=2_000)
    parser.add_argument("--layers", type=int, nargs="+", default=[6, 12])
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    describe_machine()
    table = []
    for layers in asked.layers:
        tried = [Way("shardmill score"), Way("CrossEncoder, float32", "float32")]
        tried += [Way("CrossEncoder, float16", "float16")] if asked.half else []
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            model, pairs = write_model(folder / "model", layers), folder / "pairs.jsonl"
            write_pairs(asked.pairs, pairs)
            for _ in range(asked.repeats):
                for way in tried:
                    measure(way, model, pairs, folder / "out", asked.device)
        ours = tried[0]
        for way in tried:
            assert way.scores is not None
            assert ours.scores is not None
            seconds, furthest = statistics.median(way.took), float(np.abs(way.scores - ours.scores).max())
            rate = asked.pairs / seconds
            slower = seconds / statistics.median(ours.took)
            figures = [f"{rate:,.0f}", f"{statistics.median(way.whole):.1f}", f"{slower:.2f}x", f"{furthest:.1e}"]
            table.append([f"L{layers}", way.name, way.said, *figures])
    columns = ["shape", "program", "how", "pairs/s", "whole seconds", "of ours", "largest difference"]
    print_table(columns, table)


if __name__ == "__main__":
    main()
