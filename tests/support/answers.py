"""A small corpus with questions on it, and tiny models to answer them with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support import tiny_models
from tests.support.tiny_models import pooling, transformers

TOWNS = ["Arden", "Belmont", "Corvale", "Dunmere", "Eastholm", "Farwick", "Glenrock", "Harrowby"]
THINGS = ["harbour", "library", "windmill", "castle", "museum", "railway"]


def passages() -> list[dict[str, str]]:
    found = []
    for i, town in enumerate(TOWNS):
        for j, thing in enumerate(THINGS):
            text = f"{town} lies on a river. Its {thing} was built in {1500 + 31 * i + 7 * j}. Many people visit it."
            found.append({"id": f"{town}-{thing}", "text": text})
    return found


def questions(count: int = 24) -> list[dict[str, Any]]:
    found = []
    for n in range(count):
        i, j = n % len(TOWNS), n % len(THINGS)
        found.append(
            {
                "id": f"q{n}",
                "question": f"When was the {THINGS[j]} of {TOWNS[i]} built?",
                "passage_id": f"{TOWNS[i]}-{THINGS[j]}",
                "answers": [str(1500 + 31 * i + 7 * j)],
                "is_impossible": False,
            }
        )
    return found


def write_embedder(folder: Path) -> Path:
    return tiny_models.write_model(folder, tiny_models.bert(vocab_size=30522), [pooling("mean")])


def write_reader(folder: Path) -> Path:
    config = tiny_models.bert(vocab_size=30522, max_position_embeddings=128)
    return tiny_models.write_model(folder, config, kind=transformers.AutoModelForQuestionAnswering, scale=8)


def write_reranker(folder: Path, labels: int = 1) -> Path:
    config = tiny_models.bert(vocab_size=30522, max_position_embeddings=128, num_labels=labels)
    return tiny_models.write_model(folder, config, kind=transformers.AutoModelForSequenceClassification)


def write_models(root: Path) -> Path:
    """An embedder, a reader and a re-ranker, each in a folder of that name."""
    write_embedder(root / "embedder")
    write_reader(root / "reader")
    write_reranker(root / "reranker")
    return root


def searchable(folder: Path, model: Path) -> Run:
    """All passages, embedded and ready to be searched."""
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages()))
    made = embed_passages(folder / "passages.jsonl", model, folder / "run")
    made.index(graph=False)
    return made


def embed_passages(source: Path, model: Path, out: Path, **work: Any) -> Run:
    params = {"model": str(model), **work.pop("params", {})}
    given = {"source": str(source), "text": "text", "id": "id", "params": params, **work}
    return start(make_spec(given, {"shard_bytes": 1_500, "precision": "float32"}), out, engine=InProcessEngine())


def answer_spec(source: Path, over: Path | str, **params: Any) -> Spec:
    work = {"source": str(source), "text": "question", "id": "id", "task": "answer"}
    limits = {"shard_bytes": 500, "lease_s": 5.0, "max_errors": "100%", "max_restarts": 100, "precision": "float32"}
    return make_spec({**work, "params": {"over": str(over), **params}}, limits)
