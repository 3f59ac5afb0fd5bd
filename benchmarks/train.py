"""Fine-tuning on SQuAD 2.0: questions and their passages, split by title, beside sentence-transformers' trainer.

    python -m benchmarks.train FOLDER [--model MODEL] [--splits N] [--items N] [--max-tokens N] [--epochs N]

FOLDER has squad_v2_dev_passages.jsonl and squad_v2_dev_questions.jsonl. A split holds out a quarter of the titles. Each
of their questions is ranked against all passages. Three models are trained on the same items with the same batches,
rate and schedule: by `shardmill train`, by the same with a Matryoshka loss, and by sentence-transformers. Differences
are over the same questions, with 95 % intervals of a seeded bootstrap over the questions of all splits. Runs are in
.out/train. The peer's trainer needs `pip install datasets accelerate` beside shardmill[bench].
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardmill
from shardmill.devices import Device, cores
from shardmill.models.folder import read_folder
from shardmill.models.location import find_model

OUT = Path(".out/train")
SHORT = 64
BATCH, RATE, WARMUP = 64, 5e-5, 0.1
Items = list[dict[str, str]]
Ranks = NDArray[np.float64]


def read_items(folder: Path) -> tuple[Items, list[str]]:
    """Questions that have an answer, with passage and title; and all passages."""
    lines = (folder / "squad_v2_dev_passages.jsonl").read_text(encoding="utf-8").splitlines()
    passages = {row["id"]: row for row in map(json.loads, lines)}
    items = []
    for line in (folder / "squad_v2_dev_questions.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if not row["is_impossible"]:
            passage = passages[row["passage_id"]]
            items.append({"question": row["question"], "passage": passage["text"], "title": passage["title"]})
    return items, [row["text"] for row in passages.values()]


def split(
    items: list[dict[str, str]], seed: int, most: int | None
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """The items to train on, at most so many, and those of a quarter of the titles."""
    draw = random.Random(seed)
    titles = sorted({item["title"] for item in items})
    held = set(draw.sample(titles, len(titles) // 4))
    learnt = [item for item in items if item["title"] not in held]
    draw.shuffle(learnt)
    return learnt[:most], [item for item in items if item["title"] in held]


def rank(
    model: str, held: list[dict[str, str]], passages: list[str], max_tokens: int | None
) -> dict[int | None, Ranks]:
    """Reciprocal ranks of the held-out questions over all passages, with whole vectors and with short ones."""
    from shardmill.training.data import Ranking
    from shardmill.training.group import Alone
    from shardmill.training.measure import reciprocal_ranks
    from shardmill.training.network import Network

    network = Network(read_folder(find_model(model).path), Device("cpu", "cpu", cores()), max_tokens=max_tokens)
    ranking = Ranking(
        tuple(("", item["question"]) for item in held),
        tuple(("", text) for text in passages),
        tuple((item["passage"],) for item in held),
    )
    return {dims: np.array(reciprocal_ranks(ranking, network, Alone(), dims)) for dims in (None, SHORT)}


def by_us(source: Path, out: Path, given: argparse.Namespace, **more: Any) -> tuple[str, float]:
    began = time.perf_counter()
    shardmill.train(
        str(source), columns="question,passage", model=given.model, out=out, held_out=0.0, batch=BATCH,
        learning_rate=RATE, warmup=WARMUP, epochs=given.epochs, max_tokens=given.max_tokens, device="cpu", **more,
    )  # fmt: skip
    return str(out / "model"), time.perf_counter() - began


def by_them(items: Items, out: Path, given: argparse.Namespace) -> tuple[str, float]:
    """sentence-transformers' trainer with the same batch, rate, warm-up and schedule; the rest is its default."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    began = time.perf_counter()
    model = SentenceTransformer(str(find_model(given.model).path), device="cpu")
    if given.max_tokens:
        model.max_seq_length = given.max_tokens
    data = Dataset.from_list([{"anchor": item["question"], "positive": item["passage"]} for item in items])
    steps = -(-len(items) // BATCH) * given.epochs
    arguments = Arguments(
        str(out / "trainer"), num_train_epochs=given.epochs, per_device_train_batch_size=BATCH, learning_rate=RATE,
        warmup_steps=round(WARMUP * steps), lr_scheduler_type="linear", weight_decay=0.01, save_strategy="no",
        report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    ).train()
    model.save_pretrained(str(out / "model"))
    return str(out / "model"), time.perf_counter() - began


def interval(differences: Ranks, seed: int = 19) -> str:
    """The mean and its 95 % interval, by a bootstrap."""
    draw = np.random.default_rng(seed)
    means = [differences[draw.integers(len(differences), size=len(differences))].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{differences.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--items", type=int, help="Items to train on, at most.")
    parser.add_argument("--max-tokens", type=int, help="Tokens of a text, at most.")
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    items, passages = read_items(given.folder)
    ranks: dict[tuple[str, int | None], list[Ranks]] = {}
    seconds: dict[str, list[float]] = {}
    for seed in range(given.splits):
        learnt, held = split(items, seed, given.items)
        place = OUT / f"{seed}-{len(learnt)}-{given.max_tokens}-{given.epochs}"
        place.mkdir(exist_ok=True)
        source = place / "pairs.jsonl"
        if not source.exists():
            source.write_text("".join(json.dumps(item) + "\n" for item in learnt), encoding="utf-8")
        width = read_folder(find_model(given.model).path).width
        made = {
            "before": (given.model, 0.0),
            "shardmill": by_us(source, place / "ours", given),
            "shardmill, Matryoshka": by_us(source, place / "matryoshka", given, dims=[width, SHORT]),
            "sentence-transformers": by_them(learnt, place / "theirs", given),
        }
        for name, (model, took) in made.items():
            seconds.setdefault(name, []).append(took)
            for dims, found in rank(model, held, passages, given.max_tokens).items():
                ranks.setdefault((name, dims), []).append(found)
        print(
            f"split {seed}: {len(learnt)} items, {len(held)} held-out questions, {len(passages)} passages", flush=True
        )
    whole = {key: np.concatenate(parts) for key, parts in ranks.items()}
    print(f"\n| model | MRR@10 | at {SHORT} dimensions | seconds |\n| --- | --- | --- | --- |")
    for name, took in seconds.items():
        figures = " | ".join(f"{whole[name, dims].mean():.4f}" for dims in (None, SHORT))
        print(f"| {name} | {figures} | {sum(took):.0f} |")
    print("\n| difference of MRR@10 | mean (95 % interval) |\n| --- | --- |")
    for what, a, b, dims in (
        ("shardmill over before", "shardmill", "before", None),
        ("shardmill over sentence-transformers", "shardmill", "sentence-transformers", None),
        (f"Matryoshka over plain truncation at {SHORT}", "shardmill, Matryoshka", "shardmill", SHORT),
    ):
        print(f"| {what} | {interval(whole[a, dims] - whole[b, dims])} |")


if __name__ == "__main__":
    main()
