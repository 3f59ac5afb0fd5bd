"""File to file: shardmill against sentence-transformers on the same texts and the same device.

Texts are words of the model's own vocabulary, their lengths log-normal (mean about 110 tokens, up to 512). Random
weights are fine for speed. shardmill reads JSONL and writes committed Parquet; its start-up (processes, loading,
checking) is given apart, as sentence-transformers' loading is not counted either. Both tokenize.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, print_table

PEAK_TFLOPS = {"NVIDIA H200": 989.0, "NVIDIA H100 80GB HBM3": 989.0}


def write_texts(path: Path, tokenizer: Path, count: int) -> np.ndarray[Any, Any]:
    """Texts as JSONL; their lengths in tokens, special ones included."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    words = np.array([w for w in vocabulary if w.isascii() and w.isalpha() and len(w) > 2])
    choose = np.random.default_rng(0)
    lengths = np.clip(choose.lognormal(4.4, 0.8, count), 4, 512).astype(np.int64)
    with open(path, "w") as file:
        for i, length in enumerate(lengths):
            file.write(json.dumps({"id": i, "text": " ".join(choose.choice(words, length - 2))}) + "\n")
    return lengths


def model_flops(config: Any, lengths: np.ndarray[Any, Any]) -> float:
    """Matrix products of a forward pass over these lengths, without padding."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    width = getattr(config, "head_dim", None) or hidden // heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    gated = config.model_type.startswith(("qwen", "llama", "mistral"))
    projections = 2 * hidden * width * (heads + keys)
    layer = 2 * (projections + (3 if gated else 2) * hidden * config.intermediate_size)
    attention = 4 * heads * width * (0.5 if gated else 1.0)
    return config.num_hidden_layers * (layer * float(lengths.sum()) + attention * float((lengths**2.0).sum()))


def run_shardmill(
    source: Path, model: Path, folder: Path, device: str, workers: int | None
) -> tuple[float, float, dict[str, float], str]:
    """Seconds of work, seconds of start-up, seconds by stage, and the kernel."""
    import shardmill

    asked = time.time()
    settings: dict[str, Any] = {"model": str(model), "device": device, "workers": workers}
    run = shardmill.embed(str(source), text="text", id="id", out=folder / "run", **settings)
    commits, placed = list(run.ledger.commits().values()), run.ledger.workers()
    began, ended = min(w["began"] for w in placed), max(c.finished_at for c in commits)
    stages = {name: sum(c.timings[name] for c in commits) / len(placed) for name in commits[0].timings}
    stages["idle_s"] = sum(w["idle_s"] for w in placed) / len(placed)
    return ended - began, began - asked, stages, placed[0]["notes"][0]


def run_peer(source: Path, model: Path, device: str, batch_size: int, limit: int) -> float:
    """Seconds a text of `SentenceTransformer.encode` in half precision, over at most `limit` texts."""
    from sentence_transformers import SentenceTransformer

    with open(source) as file:
        texts = [json.loads(line)["text"] for _, line in zip(range(limit), file, strict=False)]
    peer = SentenceTransformer(str(model), device=device)
    if device == "cuda":
        peer.half()
    peer.encode(texts[: 4 * batch_size], batch_size=batch_size)
    began = time.perf_counter()
    peer.encode(texts, batch_size=batch_size)
    return (time.perf_counter() - began) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="FOLDER=COUNT[@WORKERS]: a model folder and how many texts.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--peer-batch", type=int, default=256)
    parser.add_argument("--peer-texts", type=int, default=10_000)
    args = parser.parse_args()
    describe_machine()
    from transformers import AutoConfig

    from shardmill.devices import gpus

    peak = PEAK_TFLOPS.get(gpus()[0].name) if gpus() else None
    rows = []
    peers: dict[str, float] = {}
    for entry in args.models:
        name, _, rest = entry.partition("=")
        count, _, workers = rest.partition("@")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "texts.jsonl"
            lengths = write_texts(source, Path(name), int(count))
            seconds, start_s, stages, kernel = run_shardmill(
                source, Path(name), Path(folder), args.device, int(workers or 0) or None
            )
            if name not in peers:
                peers[name] = run_peer(source, Path(name), args.device, args.peer_batch, args.peer_texts)
            peer = peers[name]
        tflops = model_flops(AutoConfig.from_pretrained(name), lengths) / 1e12
        share = f"{100 * tflops / seconds / peak:.0f} %" if peak else "?"
        ours = len(lengths) / seconds
        rows.append(
            [
                f"{Path(name).name}{f', {workers} workers' if workers else ''}",
                f"{ours:,.0f}",
                f"{lengths.sum() / seconds:,.0f}",
                share,
                f"{1 / peer:,.0f}",
                f"{ours * peer:.1f}x",
                ", ".join(f"{stage[:-2]} {spent:.1f}" for stage, spent in stages.items()),
                f"{seconds:.1f} + {start_s:.0f}",
            ]
        )
        print(f"{name}: {kernel}", flush=True)
    head = [
        "model",
        "docs/s",
        "tokens/s",
        "of peak, end to end",
        "peer docs/s",
        "ratio",
        "stages, s",
        "work, s",
        "start, s",
    ]
    print_table(head, rows)


if __name__ == "__main__":
    main()
