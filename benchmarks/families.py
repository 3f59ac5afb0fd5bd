"""Families with a position bias on a GPU, beside sentence-transformers, and how long a small job takes to start.

python -m benchmarks.families              # MPNet-base and T5-base, then 200 rows three times; about four minutes
python -m benchmarks.families --tiny --device cpu

Random weights of each shape, and MiniLM's tokenizer. Both tokenize. Start times are those of whole commands: until
the first batch, and until the end, the first time and again; then `verify`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.embed import HEAD, row
from benchmarks.machine import describe_machine, print_table
from shardmill.bench.embed import EmbedBench, EmbedResult, bench_embed
from shardmill.bench.texts import mixed_texts
from shardmill.ledger import Ledger
from shardmill.models.location import find_model
from shardmill.models.names import MINILM

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_WORDS = 30522
_ENDS = {"pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNet", {"vocab_size": _WORDS, "max_position_embeddings": 514}),
    "t5": ("T5", {"vocab_size": _WORDS, "d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12}),
    "bert": ("Bert", {"vocab_size": _WORDS}),
    "minilm": ("Bert", {"vocab_size": _WORDS, "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
    "xlmr": ("XLMRoberta", {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}),
    "modernbert": ("ModernBert", {**_ENDS, "vocab_size": 50368, "cls_token_id": 101, "sep_token_id": 102}),
    "qwen3": (
        "Qwen3",
        {
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "dtype": "bfloat16",
        },
    ),
}
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TINY = {
    "T5": {"d_model": 32, "d_ff": 32, "d_kv": 16, "num_layers": 2, "num_heads": 2},
    "Qwen3": {**_SMALL, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": _WORDS},
}
# The model of the start times: its goal is in whole commands.
_STARTED = "bert"
_ROWS = 200
START_HEAD = ["command", "first batch after, s", "whole command, s", "kernel"]


@dataclass(frozen=True, slots=True)
class Start:
    """One command of a small job; `first_batch_s` is None for `verify`."""

    command: str
    first_batch_s: float | None
    whole_s: float
    kernel: str


def write_shape(folder: Path, name: str, *, tiny: bool) -> Path:
    """A model of a shape with random weights, as sentence-transformers reads it."""
    import torch
    import transformers

    family, options = SHAPES[name]
    config = getattr(transformers, f"{family}Config")(**{**options, **(_TINY.get(family, _SMALL) if tiny else {})})
    torch.manual_seed(0)
    kind = transformers.T5EncoderModel if family == "T5" else transformers.AutoModel
    model = kind(config) if family == "T5" else kind.from_config(config)
    if config.dtype is not None:
        model = model.to(config.dtype)
    model.save_pretrained(folder)
    for file in _TOKENIZER:
        if (path := find_model(MINILM).path / file).exists():
            shutil.copy(path, folder / file)
    width = config.d_model if family == "T5" else config.hidden_size
    parts = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    parts.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    said = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    return folder


def measure_starts(model: Path, folder: Path, device: str, rows: int) -> list[Start]:
    """A small job as a command, twice, and `verify` of the second."""
    texts = folder / "few.jsonl"
    with texts.open("w") as file:
        for text in mixed_texts(rows, count_words):
            file.write(json.dumps({"text": text}) + "\n")
    found = []
    for name in ("first", "again"):
        out = folder / name
        asked = ["embed", str(texts), "--model", str(model), "--out", str(out), "--device", device]
        began, whole_s = _run([*asked, "--text", "text"])
        beats = Ledger(str(out)).workers.read()
        kernel = "; ".join(sorted({note for beat in beats for note in beat["notes"] if note.startswith("Kernel")}))
        found.append(Start(f"embed, {name}", min(beat["began"] for beat in beats) - began, whole_s, kernel))
    found.append(Start("verify", None, _run(["verify", str(folder / "again")])[1], ""))
    return found


def count_words(texts: Sequence[str]) -> NDArray[np.int64]:
    """Tokens of texts, about: one a word, and two that frame a text."""
    return np.array([len(text.split()) + 2 for text in texts])


def _run(asked: list[str]) -> tuple[float, float]:
    """When a command began, and how long it took."""
    began = time.time()
    subprocess.run([sys.executable, "-m", "shardmill", *asked], check=True, stdout=subprocess.DEVNULL)
    return began, time.time() - began


def main(argv: list[str] | None = None) -> tuple[list[EmbedResult], list[Start]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="As for `shardmill bench embed`.")
    parser.add_argument("--texts", type=int, default=60_000)
    parser.add_argument("--tiny", action="store_true", help="Tiny shapes, to try the benchmark itself.")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--out", type=Path, help="Also write families.json here.")
    asked = parser.parse_args(argv)
    describe_machine()
    results, rows = [], []
    with tempfile.TemporaryDirectory() as place:
        folders = {name: write_shape(Path(place) / name, name, tiny=asked.tiny) for name in (_STARTED, "mpnet", "t5")}
        starts = measure_starts(folders[_STARTED], Path(place), asked.device, _ROWS)
        print_table(START_HEAD, [_line(start) for start in starts])
        print(flush=True)
        for name in ("mpnet", "t5"):
            bench = EmbedBench(
                model=str(folders[name]), device=asked.device, texts=asked.texts, peers=not asked.no_peers
            )
            results.append(result := bench_embed(bench))
            if not result.verified:
                raise SystemExit(f"{name}: not verified: {result.verify_checks}")
            rows.append(row(name, result, result.best_peer))
            print(f"{name}: {result.kernel}", flush=True)
    print()
    print_table(HEAD, rows)
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        report = {"embed": [r.to_json() for r in results], "starts": [asdict(start) for start in starts]}
        (asked.out / "families.json").write_text(json.dumps(report, indent=1))
    return results, starts


def _line(start: Start) -> list[str]:
    first = "" if start.first_batch_s is None else f"{start.first_batch_s:.1f}"
    return [start.command, first, f"{start.whole_s:.1f}", start.kernel]


if __name__ == "__main__":
    main()
