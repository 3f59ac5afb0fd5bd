"""Embedding on a CPU without torch, end to end, beside the peers that people use there, each in its own environment.

python -m benchmarks.light --texts reviews.jsonl --field reviewText --model FOLDER --onnx FOLDER \
    --fastembed PYTHON --sentence-transformers PYTHON --infinity PYTHON

Each run is a process of its own that reads the texts, loads the model and writes the vectors. Runs are interleaved, and
the median counts; what takes over 1.5 times as long as the fastest is run once. `--onnx` is a folder with the same
model as onnx/model.onnx, for those that need it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe_machine, print_table

_READ = """
import json, sys, time
import numpy as np
model, source, field, out, limit, batch = sys.argv[1:7]
limit, batch = int(limit), int(batch)
texts = [json.loads(line)[field] for line in open(source)]
"""
_SENTENCE_TRANSFORMERS = """
from sentence_transformers import SentenceTransformer
loaded = SentenceTransformer(model, device="cpu", backend="{backend}", model_kwargs={options})
loaded.max_seq_length = limit
vectors = loaded.encode(texts, batch_size=batch, show_progress_bar=False)
np.save(out, vectors)
"""
_FASTEMBED = """
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
TextEmbedding.add_custom_model(
    "measured", pooling=PoolingType.MEAN, normalization=True, sources=ModelSource(hf="measured"), dim=384,
    model_file="onnx/model.onnx",
)
loaded = TextEmbedding("measured", specific_model_path=model)
loaded.model.tokenizer.enable_truncation(limit)
order = sorted(range(len(texts)), key=lambda i: len(texts[i])) if {sorted} else list(range(len(texts)))
made = list(loaded.embed([texts[i] for i in order], batch_size=batch))
vectors = np.empty((len(texts), 384), np.float32)
vectors[order] = made
np.save(out, vectors)
"""
_INFINITY = """
import asyncio
from infinity_emb import AsyncEmbeddingEngine, EngineArgs
engine = AsyncEmbeddingEngine.from_args(EngineArgs(
    model_name_or_path=model, engine="{engine}", device="cpu", batch_size=batch, bettertransformer=False,
    model_warmup=False))
async def run():
    async with engine:
        return (await engine.embed(texts))[0]
np.save(out, np.array(asyncio.run(run()), np.float32))
"""


@dataclass
class Way:
    """A program that embeds, by its name, its interpreter and its code; shardmill has none."""

    name: str
    python: str = ""
    code: str = ""
    model: str = ""
    batch: int = 32
    took: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    failed: str = ""
    vectors: NDArray[np.float32] | None = None


def ways(asked: argparse.Namespace) -> Iterator[Way]:
    yield Way("shardmill", model=asked.model)
    if asked.sentence_transformers:
        python = asked.sentence_transformers
        for backend, options, model in (
            ("torch", "{}", asked.model),
            ("onnx", '{"provider": "CPUExecutionProvider", "file_name": "onnx/model.onnx"}', asked.onnx),
            ("openvino", '{"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}}', asked.model),
        ):
            code = _READ + _SENTENCE_TRANSFORMERS.replace("{backend}", backend).replace("{options}", options)
            for batch in asked.batches:
                yield Way(f"sentence-transformers, {backend}, batch {batch}", python, code, model, batch)
    if asked.fastembed:
        for name, by_length in (("as given", "False"), ("sorted by hand", "True")):
            code = _READ + _FASTEMBED.replace("{sorted}", by_length)
            for batch in asked.batches:
                yield Way(f"fastembed, {name}, batch {batch}", asked.fastembed, code, asked.onnx, batch)
    if asked.infinity:
        for engine, model in (("torch", asked.model), ("optimum", asked.onnx)):
            code = _READ + _INFINITY.replace("{engine}", engine)
            yield Way(f"infinity, {engine}", asked.infinity, code, model)


def measure(way: Way, asked: argparse.Namespace, folder: Path) -> None:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    made = folder / "vectors.npy"
    command = [way.python, "-c", way.code, way.model, asked.texts, asked.field, str(made)]
    command += [str(asked.limit), str(way.batch)]
    if not way.python:
        command = [sys.executable, "-m", "shardmill", "embed", asked.texts, "--text", asked.field, "--model", way.model]
        command += ["--out", str(out), "--max-tokens", str(asked.limit), "--precision", "float32", "--device", "cpu"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        way.failed = (done.stderr.strip().splitlines() or ["?"])[-1][:120]
        return
    way.took.append(took)
    way.busy.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    if way.vectors is None:
        way.vectors = np.load(made) if way.python else _merged(out)


def _merged(run: Path) -> NDArray[np.float32]:
    from shardmill.run import Run

    column = Run(str(run)).table(["embedding"]).column("embedding").combine_chunks()
    vectors: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
    return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="a JSONL file")
    parser.add_argument("--field", default="text")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--model", required=True, help="a folder with safetensors")
    parser.add_argument("--onnx", default="", help="a folder with onnx/model.onnx")
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--batches", type=int, nargs="+", default=[32])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sentence-transformers", default="")
    parser.add_argument("--fastembed", default="")
    parser.add_argument("--infinity", default="")
    asked = parser.parse_args()
    describe_machine()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lines = [line for line in Path(asked.texts).read_text().splitlines() if json.loads(line)[asked.field].strip()]
        asked.texts = str(folder / "texts.jsonl")
        Path(asked.texts).write_text("\n".join(lines[: asked.count]) + "\n")
        tried = list(ways(asked))
        for _ in range(asked.repeats):
            fastest = min((way.took[0] for way in tried if way.took), default=float("inf"))
            for way in tried:
                if not way.failed and (not way.took or way.took[0] <= 1.5 * fastest):
                    measure(way, asked, folder)
    rows = min(asked.count, len(lines))
    ours = tried[0].vectors
    table = []
    for way in tried:
        if way.failed or way.vectors is None or ours is None:
            table.append([way.name, "", "", "", "", way.failed])
            continue
        cosine = (way.vectors * ours).sum(axis=1) / np.linalg.norm(way.vectors, axis=1) / np.linalg.norm(ours, axis=1)
        seconds = statistics.median(way.took)
        figures = (
            str(len(way.took)),
            f"{seconds:.1f}",
            f"{rows / seconds:,.1f}",
            f"{statistics.median(way.busy):.1f}",
            f"{cosine.min():.6f}",
        )
        table.append([way.name, *figures])
    print_table(["program", "runs", "seconds", "texts/s", "processor s", "worst cosine with ours"], table)


if __name__ == "__main__":
    main()
