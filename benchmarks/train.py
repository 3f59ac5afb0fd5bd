"""Fine-tuning on SQuAD 2.0: questions and their passages, split by title, beside sentence-transformers' trainer.

    python -m benchmarks.train FOLDER [--model MODEL] [--splits 0,1,2,3] [--epochs N] [--only NAME] …

FOLDER has squad_v2_dev_passages.jsonl and squad_v2_dev_questions.jsonl. The titles are dealt into four parts. A split
holds one of them out, so that no question is held out twice, and trains on all questions with an answer of the others.
Each held-out question is ranked against all passages. Three models are trained on the same items with the same batch,
rate and schedule: by `shardmill train`, by the same with a Matryoshka loss, and by sentence-transformers. Differences
are over the same questions, with 95 % intervals of a seeded bootstrap. Seconds are of the clock and, as others may use
the machine, of the processor. Runs and ranks are in .out/train: a later call goes on from there. The peer's trainer
needs `pip install datasets accelerate` beside shardmill[bench].
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shardmill
from benchmarks.machine import describe_machine, print_table
from shardmill.core.devices import Device, cores, gpus
from shardmill.models.folder import read_folder
from shardmill.models.location import find_model

OUT = Path(".out/train")
PARTS, SHORT = 4, 64
WARMUP = 0.1
BEFORE, OURS, NESTED, THEIRS = "before", "shardmill", "shardmill, Matryoshka", "sentence-transformers"
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


def split(items: Items, part: int) -> tuple[Items, Items]:
    """The items to train on, and those of the titles that are held out."""
    titles = sorted({item["title"] for item in items})
    random.Random(0).shuffle(titles)
    held = set(titles[part::PARTS])
    return [item for item in items if item["title"] not in held], [item for item in items if item["title"] in held]


def rank(model: str, held: Items, passages: list[str], given: argparse.Namespace) -> dict[str, list[float]]:
    """Reciprocal ranks of the held-out questions over all passages, with whole vectors and with short ones."""
    from shardmill.verbs.train.data import Ranking
    from shardmill.verbs.train.group import Alone
    from shardmill.verbs.train.measure import reciprocal_ranks
    from shardmill.verbs.train.network import Network

    device = Device("cpu", "cpu", cores()) if given.device == "cpu" else replace(gpus()[0], precise=True)
    network = Network(read_folder(find_model(model).path), device, max_tokens=given.max_tokens)
    ranking = Ranking(
        tuple(("", item["question"]) for item in held),
        tuple(("", text) for text in passages),
        tuple((item["passage"],) for item in held),
    )
    whole, short = reciprocal_ranks(ranking, network, Alone(), (None, SHORT))
    return {"whole": whole, "short": short}


def by_us(items: Items, out: Path, given: argparse.Namespace, **more: Any) -> None:
    source = out / "pairs.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    run = shardmill.train(
        str(source), columns="question,passage", model=given.model, out=out / "run", held_out=0.0, batch=given.batch,
        learning_rate=given.rate, warmup=WARMUP, epochs=given.epochs, max_tokens=given.max_tokens,
        temperature=given.temperature, device=given.device, **more,
    )  # fmt: skip
    (out / "model").symlink_to(Path(run.ledger.url).resolve() / "model")


def by_them(items: Items, out: Path, given: argparse.Namespace) -> None:
    """sentence-transformers' trainer with the same batch, rate, warm-up and schedule; the rest is its default."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer import losses

    model = SentenceTransformer(str(find_model(given.model).path), device=given.device)
    if given.max_tokens:
        model.max_seq_length = given.max_tokens
    data = Dataset.from_list([{"anchor": item["question"], "positive": item["passage"]} for item in items])
    steps = -(-len(items) // given.batch) * given.epochs
    arguments = Arguments(
        str(out / "trainer"), num_train_epochs=given.epochs, per_device_train_batch_size=given.batch,
        learning_rate=given.rate, warmup_steps=round(WARMUP * steps), lr_scheduler_type="linear", weight_decay=0.01,
        save_strategy="no", report_to=[], use_cpu=given.device == "cpu", bf16=given.device == "cuda", disable_tqdm=True,
        logging_strategy="no",
    )  # fmt: skip
    scale = 1 / given.temperature
    loss = losses.MultipleNegativesRankingLoss(model, scale=scale)
    if given.mini_batch:
        loss = losses.CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=given.mini_batch)
    SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss).train()
    model.save_pretrained(str(out / "model"))


def measure(name: str, part: int, given: argparse.Namespace, items: Items, passages: list[str]) -> dict[str, Any]:
    """Train and rank, or read what an earlier call found."""
    if name == BEFORE:
        return _before(part, given, items, passages)
    recipe = (given.batch, given.rate, given.epochs, given.temperature, given.max_tokens, given.device)
    said = "-".join(map(str, (part, *recipe)))
    out = OUT / said / name.replace(", ", "-")
    if (out / "found.json").exists():
        found: dict[str, Any] = json.loads((out / "found.json").read_text())
        return found
    out.mkdir(parents=True, exist_ok=True)
    learnt, held = split(items, part)
    width = read_folder(find_model(given.model).path).width
    ways: dict[str, Callable[[], None]] = {
        OURS: lambda: by_us(learnt, out, given),
        NESTED: lambda: by_us(learnt, out, given, dims=[width, SHORT]),
        THEIRS: lambda: by_them(learnt, out, given),
    }
    clock, processor = time.perf_counter(), _processor_s()
    ways[name]()
    took = {"clock_s": time.perf_counter() - clock, "processor_s": _processor_s() - processor}
    found = {**took, **rank(str(out / "model"), held, passages, given)}
    (out / "found.json").write_text(json.dumps(found))
    return found


def _before(part: int, given: argparse.Namespace, items: Items, passages: list[str]) -> dict[str, Any]:
    """The ranks of a split with the model as it is; those of all questions are computed once."""
    kept = OUT / f"before-{given.max_tokens}-{given.device}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(rank(given.model, items, passages, given)))
    held = {item["title"] for item in split(items, part)[1]}
    found = json.loads(kept.read_text())
    titles = [item["title"] for item in items]
    mine = {key: [x for x, title in zip(each, titles, strict=True) if title in held] for key, each in found.items()}
    return {"clock_s": 0.0, "processor_s": 0.0, **mine}


def _processor_s() -> float:
    """Seconds of the processor, of this process and of those that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def interval(differences: Ranks, seed: int = 19) -> str:
    """The mean and its 95 % interval, by a bootstrap."""
    draw = np.random.default_rng(seed)
    means = [differences[draw.integers(len(differences), size=len(differences))].mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{differences.mean():+.4f} ({low:+.4f} to {high:+.4f})"


def compare(found: dict[tuple[str, int], dict[str, Any]], title: str, a: str, b: str, key: str) -> list[list[str]]:
    """A row per split that has both models, and one over the questions of all of them."""
    parts = [part for name, part in found if name == a and (b, part) in found]
    gaps = [np.array(found[a, part][key]) - np.array(found[b, part][key]) for part in parts]
    rows = [[title, str(part), f"{len(gap):,}", interval(gap)] for part, gap in zip(parts, gaps, strict=True)]
    if len(gaps) > 1:
        whole = np.concatenate(gaps)
        rows.append([title, "all", f"{len(whole):,}", interval(whole)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="all-MiniLM-L6-v2")
    parser.add_argument("--splits", default=",".join(map(str, range(PARTS))), help="Numbers of splits.")
    parser.add_argument("--only", action="append", choices=[OURS, NESTED, THEIRS], help="One of the models.")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--max-tokens", type=int, help="Tokens of a text, at most.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--mini-batch", type=int, help="Of the peer's cached loss.")
    given = parser.parse_args()
    describe_machine()
    items, passages = read_items(given.folder)
    names = [BEFORE, *(given.only or [OURS, NESTED, THEIRS])]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    rows = []
    for part in map(int, given.splits.split(",")):
        for name in names:
            each = found[name, part] = measure(name, part, given, items, passages)
            figures = [f"{np.mean(each[key]):.4f}" for key in ("whole", "short")]
            rows.append([str(part), name, *figures, f"{each['clock_s']:.0f}", f"{each['processor_s']:.0f}"])
            print(rows[-1], flush=True)
    print()
    print_table(["split", "model", "MRR@10", f"at {SHORT} dimensions", "s", "processor s"], rows)
    print()
    gaps = [
        *compare(found, "shardmill over before", OURS, BEFORE, "whole"),
        *compare(found, "shardmill over sentence-transformers", OURS, THEIRS, "whole"),
        *compare(found, f"Matryoshka over plain truncation at {SHORT}", NESTED, OURS, "short"),
    ]
    print_table(["difference of MRR@10", "split", "questions", "mean (95 % interval)"], gaps)


if __name__ == "__main__":
    main()
