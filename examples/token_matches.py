"""The texts that answer a question best, by a vector per token (ColBERT), and how many bytes they take.

python examples/token_matches.py docs.jsonl text ./colbert "when did the battery die?"
"""

from __future__ import annotations

import sys

import shardmill

SHOWN = 4


def main(source: str, text: str, model: str, question: str) -> None:
    run = shardmill.embed_tokens(source, text=text, keep=text, model=model, out="runs/tokens")
    for hit in run.search(question, k=SHOWN):
        print(f"{hit.score:.2f}  {hit.values[text][:80]}")
    vectors = run.table().column("vectors").combine_chunks().flatten()
    print(f"{len(vectors):,} vectors of {vectors.type.byte_width} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
