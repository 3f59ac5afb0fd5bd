"""Filter pages as corpora are filtered: those in one language, by a classifier of languages, that another one likes.

python examples/filter_pages.py pages.jsonl LANGUAGES QUALITY en 0.5 kept.jsonl

LANGUAGES is a folder or a hub name of a model whose labels are languages, such as papluca/xlm-roberta-base-language-
detection; QUALITY gives a score: a number, such as HuggingFaceFW/fineweb-edu-classifier, or the probability of a label.
A page has `url` and `text`. Both runs stay in the folder `filtered`: other limits need no model again.
"""

from __future__ import annotations

import sys

import shardmill


def main(pages: str, languages: str, quality: str, language: str, least: str, out: str) -> None:
    spoken = shardmill.classify(
        pages, text="text", model=languages, id="url", keep="text", max_tokens=128, out="filtered/languages"
    )
    chosen = f"label = '{language}' AND score >= 0.65"
    judged = shardmill.classify(
        "run:filtered/languages",
        text="text",
        where=chosen,
        model=quality,
        id="url",
        keep="text",
        out="filtered/quality",
    )
    if not (spoken.verify().verified and judged.verify().verified):
        raise SystemExit("A run is not as it should be: see shardmill verify filtered/languages, filtered/quality")
    judged.merge(out, where=f"score >= {float(least)}", columns=["url", "text", "score"])
    kept = sum(score >= float(least) for score in judged.table(["score"]).column("score").to_pylist())
    print(f"{len(spoken):,} pages, {len(judged):,} in {language}, {kept:,} kept in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 7:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
