"""Embed short texts with static embeddings, some thousands a second on one core, and find near ones.

python examples/embed_static.py reviews.jsonl MODEL runs/short

MODEL is a folder or a hub name of model2vec, such as minishlab/potion-base-8M, or of sentence-transformers'
StaticEmbedding. Neither torch nor OpenVINO is needed.
"""

from __future__ import annotations

import sys

import shardmill


def main(source: str, model: str, out: str) -> None:
    run = shardmill.embed(source, text="reviewText", id="reviewerID,asin", model=model, device="cpu", out=out)
    print(f"{len(run):,} rows, {'verified' if run.verify().verified else 'not verified'}")
    for hit in run.search("the battery dies after an hour", k=3):
        print(f"{hit.score:.3f}  {hit.values['reviewerID']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
