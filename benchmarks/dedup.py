"""How many planted duplicates `dedup` finds among real texts, and what else it calls a duplicate.

    python -m benchmarks.dedup reviews.jsonl --text reviewText [--planted 1000]

Texts of at least 20 words get a copy at the end of the source, with no word changed, or 2, 5 or 10 % of them. A planted
pair is to be found if the share of equal shingles, counted, is at least the threshold; of every pair that was found,
also among the texts themselves, that share is counted.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.machine import describe_machine, print_table
from shardmill import dedup
from shardmill.verbs.dedup.functions import normalize, shingles

SHARES = (0.0, 0.02, 0.05, 0.10)


def change(text: str, share: float, draw: random.Random) -> str:
    words = text.split()
    for place in draw.sample(range(len(words)), round(share * len(words))):
        words[place] = f"planted{draw.randrange(10**6)}"
    return " ".join(words)


def jaccard(a: str, b: str) -> float:
    one, two = ({*shingles(normalize(text))} for text in (a, b))
    return len(one & two) / len(one | two)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--text", default="text")
    parser.add_argument("--planted", type=int, default=1000)
    parser.add_argument("--threshold", type=float, default=0.8)
    args = parser.parse_args()
    draw = random.Random(7)
    texts = [json.loads(line)[args.text] or "" for line in args.source.read_text().splitlines()]
    long = [i for i, text in enumerate(texts) if len(text.split()) >= 20]
    chosen = draw.sample(long, min(args.planted, len(long)))
    copies = [(i, SHARES[n % len(SHARES)]) for n, i in enumerate(chosen)]
    rows = texts + [change(texts[i], share, draw) for i, share in copies]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
        began = time.monotonic()
        done = dedup(str(source), text="text", out=f"{folder}/run", threshold=args.threshold, max_errors="100%")
        seconds = time.monotonic() - began
        pairs = pq.read_table(done.pairs).to_pylist()
    dropped = {pair["dropped"]: pair["kept"] for pair in pairs}
    describe_machine()
    print(f"{len(rows):,} texts, {len(copies):,} of them planted; threshold {args.threshold}; {seconds:.0f} s\n")
    lines = []
    for share in SHARES:
        own = [(len(texts) + n, i) for n, (i, s) in enumerate(copies) if s == share]
        alike = [(copy, i) for copy, i in own if jaccard(rows[copy], rows[i]) >= args.threshold]
        found = sum(copy in dropped for copy, _ in alike)
        below = [copy for copy, i in own if jaccard(rows[copy], rows[i]) < args.threshold]
        part = f"{100 * found / len(alike):.1f} %" if alike else ""
        lines.append([f"{share:.0%}", str(len(alike)), part, f"{sum(c in dropped for c in below)} of {len(below)}"])
    print_table(["words changed", "pairs at or above the threshold", "found", "found below it"], lines)
    right = sum(jaccard(rows[pair["kept"]], rows[pair["dropped"]]) >= args.threshold - 0.1 for pair in pairs)
    strict = sum(jaccard(rows[pair["kept"]], rows[pair["dropped"]]) >= args.threshold for pair in pairs)
    print(f"\n{len(pairs):,} fell away: {strict:,} at or above the threshold, {right:,} at most 0.1 below it")


if __name__ == "__main__":
    main()
