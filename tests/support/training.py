"""Small training runs: pairs whose partners share words, a tiny model, and a context in memory."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.models.folder import read_folder
from shardmill.testing import FakeContext
from tests.support.libraries import needed
from tests.support.tiny_models import bert, fast, pooling, word_piece, write_model

needed("torch")

CPU = Device("cpu", "cpu", threads=1)
GPU = Device("cuda", "a GPU", threads=1, precise=True)
# What a worker imports before its first step: seconds for each process, once for all that a server forks.
TRAINING = [
    "pytest",
    "psutil",
    "shardmill.testing",
    "shardmill.verbs.train.card",
    "shardmill.verbs.train.loop",
    "shardmill.verbs.train.network",
    "shardmill.verbs.train.result",
    "shardmill.verbs.train.task",
    "torch.distributed",
    "transformers.models.bert.modeling_bert",
    "tests.support.training",
]
WORDS = [
    "river",
    "castle",
    "battery",
    "theorem",
    "lemon",
    "violin",
    "harbour",
    "engine",
    "poem",
    "glacier",
    "market",
    "saddle",
]


def share_gpu(name: str) -> None:
    """Let NCCL take this process for one on a machine of its own: it refuses two processes of a machine on one GPU."""
    os.environ["NCCL_HOSTID"] = name


def a_model(folder: Path) -> Path:
    """A tiny model with few words, pooling and normalization, as sentence-transformers writes it."""
    words = [*WORDS, *"what is the of number and so on".split(), *"0123456789"]  # noqa: SIM905
    backend = word_piece(words)
    names = {name: f"[{name[:3].upper()}]" for name in ("unk_token", "cls_token", "sep_token", "pad_token")}
    return write_model(
        folder,
        bert(vocab_size=backend.get_vocab_size()),
        [pooling("mean"), ("Normalize", {}, {})],
        tokenizer=fast(backend, **names),
        scale=1,
    )


def topic_pairs(count: int = 48, seed: int = 1) -> list[dict[str, Any]]:
    """Questions and passages with a word in common; some passages have several questions."""
    draw = random.Random(seed)
    passages = [
        f"{word} {draw.choice(WORDS)} " + "and so on " * draw.randrange(1, 6) + str(n)
        for n, word in enumerate(draw.choices(WORDS, k=count * 2 // 3))
    ]
    rows = []
    for n in range(count):
        passage = passages[n % len(passages)]
        words = passage.split()
        rows.append(
            {
                "question": f"what is the {words[0]} of number {n}?",
                "passage": passage,
                "negative": draw.choice([each for each in passages if each != passage]),
                "score": draw.random(),
                "title": words[0],
            }
        )
    return rows


def a_network(folder: Path, device: Device = CPU, **options: Any) -> Any:
    from shardmill.verbs.train.network import Network

    return Network(read_folder(folder), device, **options)


def pairs_of(rows: list[dict[str, Any]], model: Path | str, **options: Any) -> Any:
    from shardmill.verbs.train.data import Pairs
    from shardmill.verbs.train.params import TrainParams

    made = TrainParams(**{"model": str(model), "columns": ("question", "passage"), "batch": 8, **options})
    return Pairs(pa.Table.from_pylist(rows), made, tuple(made.prompts.get(name, "") for name in made.columns))


class MemoryContext(FakeContext):
    """Asks to stop before a step, counted from its first."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at, self.asked = stop_at, 0

    def should_stop(self) -> bool:
        self.asked += 1
        return self.stop_at is not None and self.asked > self.stop_at
