"""ROUGE of extractive summaries beside lead-3, TextRank and random sentences, with 95 % intervals.

python -m benchmarks.summaries FILE --text article --reference highlights

The weights of the choice were tuned on rows 0, 2, 4 …; the table is of rows 1, 3, 5 … of the same file.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.machine import describe_machine, print_table
from shardmill.core.batching import plan_batches
from shardmill.core.console import Bar
from shardmill.core.sentences import split_sentences
from shardmill.tasks import open_here
from shardmill.tasks.base import Prepared
from shardmill.verbs.summarize.rouge import ALL_NAMES, Rouge, measure_rouge
from shardmill.verbs.summarize.task import SummarizeTask

_DAMPING, _ROUNDS = 0.85, 50
_SEED = 11


def split(text: str) -> list[str]:
    return [text[start:stop] for start, stop in split_sentences(text)]


def take_lead(sentences: Sequence[str], count: int) -> list[int]:
    return list(range(min(count, len(sentences))))


def take_random(sentences: Sequence[str], count: int) -> list[int]:
    return random.Random(f"{_SEED} {sentences[:1]}").sample(range(len(sentences)), min(count, len(sentences)))


def take_textrank(sentences: Sequence[str], count: int) -> list[int]:
    """TextRank as published: PageRank over common words, by the logarithms of the lengths."""
    words = [set(re.findall(r"\w+", sentence.lower())) for sentence in sentences]
    logs = np.log([max(2, len(own)) for own in words])
    common = np.array([[len(a & b) for b in words] for a in words], float)
    weights = common / (logs[:, None] + logs[None, :])
    np.fill_diagonal(weights, 0)
    steps = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    ranks = np.ones(len(words)) / max(1, len(words))
    for _ in range(_ROUNDS):
        ranks = (1 - _DAMPING) / len(words) + _DAMPING * ranks @ steps
    return np.argsort(-ranks, kind="stable")[:count].tolist()


PEERS: dict[str, Callable[[Sequence[str], int], list[int]]] = {
    "lead": take_lead,
    "TextRank": take_textrank,
    "random": take_random,
}


def extract(texts: Sequence[str], count: int) -> dict[str, list[str | None]]:
    """The summaries that the task makes, with and without its preference for the first sentences."""
    tasks = {
        f"extractive{' without lead' * (not lead)}": SummarizeTask(sentences=count, lead=lead) for lead in (True, False)
    }
    task = next(iter(tasks.values()))
    device = open_here(task, precise=False)
    prepared = task.prepare(texts)
    extracts = {name: each.combine(len(texts)) for name, each in tasks.items()}
    began, done = time.monotonic(), 0
    with Bar("embedding sentences") as bar:
        for places in plan_batches(prepared.costs, task.batch_budget, padded=task.padded):
            rows = task.run([prepared.inputs[i] for i in places]).rows
            for each in extracts.values():
                each.add(_owners(prepared)[places], rows)
            done += len(places)
            bar.count(done, len(prepared.inputs), "sentences")
    took = time.monotonic() - began
    print(f"{len(texts):,} texts of {done:,} sentences in {took:.0f} s on {device.name}: {' '.join(task.notes)}")
    return {name: each.finish().rows.column("summary").to_pylist() for name, each in extracts.items()}


def _owners(prepared: Prepared) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    assert prepared.owners is not None
    return prepared.owners


def measure(summaries: Sequence[str | None], references: Sequence[str]) -> list[str]:
    found = measure_rouge(iter([Rouge()(summaries, references)]))
    rows = [found[name] for name in ALL_NAMES]
    return [f"{100 * row['mean']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})" for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--text", default="article")
    parser.add_argument("--reference", default="highlights")
    parser.add_argument("--sentences", type=int, default=3)
    asked = parser.parse_args()
    with asked.file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][1::2]
    texts, references = [row[asked.text] for row in rows], [row[asked.reference] for row in rows]
    made = extract(texts, asked.sentences)
    for name, choose in PEERS.items():
        parts = [split(text) for text in texts]
        made[name] = [" ".join(each[i] for i in sorted(choose(each, asked.sentences))) for each in parts]
    describe_machine()
    print(f"{len(rows)} rows, {asked.sentences} sentences each, rouge-score {version('rouge-score')}\n")
    table = [[name, *measure(summaries, references)] for name, summaries in made.items()]
    print_table(["summary", "ROUGE-1", "ROUGE-2", "ROUGE-L"], table)


if __name__ == "__main__":
    main()
