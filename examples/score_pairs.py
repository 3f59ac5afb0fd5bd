"""Score pairs of a query and a passage with a cross-encoder, and show the best ones.

python examples/score_pairs.py pairs.jsonl MODEL runs/scores

MODEL is a folder or a hub name, such as cross-encoder/ms-marco-MiniLM-L6-v2, or a causal re-ranker such as
Qwen/Qwen3-Reranker-0.6B.
"""

from __future__ import annotations

import sys

import shardmill


def main(source: str, model: str, out: str) -> None:
    run = shardmill.score(source, query_text="query", text="passage", id="id", model=model, out=out)
    print(f"{len(run):,} rows, {'verified' if run.verify().verified else 'not verified'}")
    for row in run.table().sort_by([("score", "descending")]).slice(0, 3).to_pylist():
        print(f"{row['score']:.3f}  {row['id']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
