"""Retrieval figures on SQuAD 2.0: by meaning, by words, by both, and ranked again by a cross-encoder.

    python -m benchmarks.answers FOLDER [--rerank MODEL] [--sample N] [--device cuda]

FOLDER has squad_v2_dev_passages.jsonl and squad_v2_dev_questions.jsonl. Runs are kept in .out/answers, so that the same
command resumes. With --sample, a seeded sample of the questions is answered. The last table has the differences between
the ways on the same questions, with 95 % intervals of a seeded bootstrap over the questions.
"""

from __future__ import annotations

import argparse
import json
import random
from itertools import combinations
from pathlib import Path

import numpy as np

import shardmill
from shardmill.core.evaluation.ranking import reciprocal_rank
from shardmill.verbs.summarize.rouge import Means

OUT = Path(".out/answers")
FIGURES = ("MRR@10", "nDCG@10", "recall@1", "recall@5", "recall@10")


def sample_lines(path: Path, count: int | None) -> Path:
    """A file with `count` lines of another, drawn by a seed; the file itself without a count."""
    if count is None:
        return path
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    made = OUT / f"{count}.jsonl"
    made.write_text("".join(random.Random(16).sample(lines, count)), encoding="utf-8")
    return made


def reciprocal_ranks(run: shardmill.Run, questions: Path) -> dict[str, float]:
    """Of each question that has a right passage."""
    right = {row["id"]: row["passage_id"] for row in map(json.loads, questions.open(encoding="utf-8"))}
    found = run.table(["id", "passages"]).to_pylist()
    return {row["id"]: reciprocal_rank(row["passages"] or [], {right[row["id"]]: 1}, 10) for row in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rerank")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    passages = given.folder / "squad_v2_dev_passages.jsonl"
    questions = sample_lines(given.folder / "squad_v2_dev_questions.jsonl", given.sample)
    over = OUT / "passages"
    shardmill.embed(str(passages), text="text", id="id", device=given.device, out=over, quiet=False)
    print(f"| passages by | questions | {' | '.join(FIGURES)} |")
    ways = [("meaning", None), ("words", None), ("both", None), *([("both", given.rerank)] if given.rerank else [])]
    ranks: dict[str, dict[str, float]] = {}
    for by, rerank in ways:
        name = by if rerank is None else f"{by}, ranked again"
        run = shardmill.answer(
            str(questions),
            over=over,
            text="question",
            id="id",
            by=by,
            rerank=rerank,
            device=given.device,
            out=OUT / f"{questions.stem}-{name.replace(', ranked again', '-rerank')}",
            quiet=False,
        )
        seen = run.evaluate(questions)
        print(f"| {name} | {seen.ranked:,} | {' | '.join(f'{seen.figures[f]:.3f}' for f in FIGURES)} |", flush=True)
        ranks[name] = reciprocal_ranks(run, questions)
    pairs = [(b, a) for a, b in combinations(ranks, 2)]
    means = Means([f"{a} - {b}" for a, b in pairs])
    means.add(np.array([[ranks[a][name] - ranks[b][name] for a, b in pairs] for name in ranks["words"]]))
    print("\n| MRR@10 of | minus that of | difference | 95 % interval |\n| --- | --- | --- | --- |")
    for (a, b), seen in zip(pairs, means.report().values(), strict=False):
        print(f"| {a} | {b} | {seen['mean']:+.3f} | {seen['low']:+.3f} to {seen['high']:+.3f} |")


if __name__ == "__main__":
    main()
