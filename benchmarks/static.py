"""Static embeddings end to end, file to Parquet, beside the loops that users of model2vec and of sentence-transformers
write, each in its own environment and process.

python -m benchmarks.static --texts reviews.jsonl --field reviewText --model2vec PYTHON [--sentence-transformers PYTHON]

The model has MiniLM's token vectors, turned to their first 256 principal axes. The texts are sentences of the file's
texts, each with one word from another place, so that none is twice there. Runs are interleaved; the median counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
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
from shardmill.models.networks.stored import read_weights

_LOOP = """
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
model, source, out = sys.argv[1:4]
ids, texts = [], []
for line in open(source):
    row = json.loads(line)
    ids.append(row["id"])
    texts.append(row["text"])
{embed}
column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
pq.write_table(pa.table({"id": ids, "embedding": column}), out)
"""
_MODEL2VEC = "from model2vec import StaticModel\nvectors = StaticModel.from_pretrained(model).encode(texts)"
_SENTENCES = (
    "from sentence_transformers import SentenceTransformer\n"
    "vectors = SentenceTransformer(model, device='cpu').encode(texts, batch_size=1024)"
)


@dataclass
class Way:
    """A program that embeds, by its name, its interpreter and its loop; shardmill has none."""

    name: str
    python: str = ""
    loop: str = ""
    took: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    vectors: NDArray[np.float32] | None = None


def write_model(folder: Path, dims: int) -> Path:
    """A folder as model2vec writes it."""
    from safetensors.numpy import save_file

    source = find_model(MINILM).path
    stored = read_weights(source)
    table = stored[next(name for name in stored if name.endswith("word_embeddings.weight"))]
    table = table - table.mean(axis=0)
    axes = np.linalg.svd(table, full_matrices=False)[2][:dims]
    folder.mkdir()
    save_file({"embeddings": np.ascontiguousarray(table @ axes.T)}, folder / "model.safetensors")
    shutil.copy(source / "tokenizer.json", folder / "tokenizer.json")
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True, "max_length": 512}
    (folder / "config.json").write_text(json.dumps(config))
    listed = [("0", ".", "StaticEmbedding"), ("1", "1_Normalize", "Normalize")]
    modules = [{"idx": int(n), "name": n, "path": p, "type": f"sentence_transformers.models.{t}"} for n, p, t in listed]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def write_texts(source: str, name: str, rows: int, out: Path) -> None:
    """Sentences in a random order, varied by a word."""
    texts = [json.loads(line)[name] for line in Path(source).read_text().splitlines()]
    sentences = [s.strip() for text in texts for s in re.split("[.!?]", text) if 8 < len(s.strip()) < 160]
    words, draw = [word for text in texts for word in text.split()], random.Random(0)
    with out.open("w") as file:
        for number in range(rows):
            made = draw.choice(sentences).split()
            made.insert(draw.randrange(len(made)), draw.choice(words))
            file.write(json.dumps({"id": number, "text": " ".join(made)}) + "\n")


def measure(way: Way, model: Path, texts: Path, out: Path) -> None:
    command = [way.python, "-c", way.loop, str(model), str(texts), str(out)]
    if not way.python:
        command = [sys.executable, "-m", "shardmill", "embed", str(texts), "--text", "text", "--id", "id"]
        command += ["--model", str(model), "--out", str(out), "--device", "cpu"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    way.took.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    way.busy.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    if way.vectors is None:
        way.vectors = _read(out, not way.python)
    shutil.rmtree(out) if out.is_dir() else out.unlink()


def _read(out: Path, is_run: bool) -> NDArray[np.float32]:
    from shardmill.run import Run

    column = (
        Run(str(out)).table(["embedding"]).column("embedding") if is_run else pq.read_table(out).column("embedding")
    )
    vectors: NDArray[np.float32] = column.combine_chunks().flatten().to_numpy().reshape(len(column), -1)
    return vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="a JSONL file")
    parser.add_argument("--field", default="text")
    parser.add_argument("--rows", type=int, default=240_000)
    parser.add_argument("--dims", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model2vec", required=True, help="a Python that has it")
    parser.add_argument("--sentence-transformers", default="")
    asked = parser.parse_args()
    describe_machine()
    tried = [Way("shardmill embed"), Way("model2vec", asked.model2vec, _LOOP.replace("{embed}", _MODEL2VEC))]
    if asked.sentence_transformers:
        loop = _LOOP.replace("{embed}", _SENTENCES)
        tried.append(Way("sentence-transformers", asked.sentence_transformers, loop))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model, texts = write_model(folder / "static", asked.dims), folder / "texts.jsonl"
        write_texts(asked.texts, asked.field, asked.rows, texts)
        for _ in range(asked.repeats):
            for way in tried:
                print(f"load {os.getloadavg()[0]:.1f}, {way.name}", file=sys.stderr)
                measure(way, model, texts, folder / "out")
    ours, table = tried[0].vectors, []
    for way in tried:
        assert ours is not None
        assert way.vectors is not None
        seconds = statistics.median(way.took)
        furthest = float(np.abs(way.vectors - ours).max())
        figures = [f"{seconds:.1f}", f"{asked.rows / seconds:,.0f}", f"{statistics.median(way.busy):.1f}"]
        table.append([way.name, *figures, f"{seconds / statistics.median(tried[0].took):.2f}x", f"{furthest:.1e}"])
    print_table(["program", "seconds", "texts/s", "processor s", "of ours", "largest difference"], table)


if __name__ == "__main__":
    main()
