"""Split reviews into sentences with a function of your own, and prove the result.

python examples/apply_function.py reviews.jsonl runs/sentences
"""

from __future__ import annotations

import sys
from typing import TypedDict

import shardmill


class Sentence(TypedDict):
    sentence: str
    words: int


@shardmill.task
def sentences(rows: list[dict]) -> list[list[Sentence]]:
    """A row per sentence of at least three words; a review without one falls away."""
    made = []
    for row in rows:
        parts = [part.strip() for part in row["reviewText"].split(".")]
        made.append([{"sentence": part, "words": n} for part in parts if (n := len(part.split())) >= 3])
    return made


def main(source: str, out: str) -> None:
    run = shardmill.apply(source, sentences, id="reviewerID,asin", column="reviewText", out=out)
    status = run.status()
    print(f"{status.rows:,} reviews gave {status.made:,} sentences; {status.dropped:,} gave none.")
    print("verified" if run.verify().verified else "not verified")


if __name__ == "__main__":
    main(*sys.argv[1:])
