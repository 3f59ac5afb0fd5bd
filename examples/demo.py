"""Demo: embed the docstrings of the standard library, verify and search them, summarize the longest, ask a question."""

from __future__ import annotations

import json
import time
from pathlib import Path

import shardmill
from shardmill.core.console import say
from shardmill.verbs.sample.start import write_sample

HOME = Path("demo")
QUESTIONS = ("read a compressed file", "run a function every few seconds", "find the differences between two texts")
ASKED = "How do I call a function after some seconds?"
LONG, SHOWN = 24, 3


def write_longest(corpus: Path, long: Path) -> None:
    """Write the longest texts of a corpus."""
    lines = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    lines.sort(key=lambda line: len(json.loads(line)["doc"]), reverse=True)
    long.write_text("".join(lines[:LONG]), encoding="utf-8")


def main() -> None:
    began = time.monotonic()
    corpus, long, out, short = HOME / "docstrings.jsonl", HOME / "long.jsonl", HOME / "run", HOME / "summaries"
    if not long.exists():
        say(f"$ shardmill sample {corpus}")
        write_sample(corpus)
        write_longest(corpus, long)
    say(f"\n$ shardmill embed {corpus} --text doc --keep name,doc --out {out}")
    run = shardmill.embed(str(corpus), text="doc", keep="name,doc", out=out, quiet=False)

    say(f"\n$ shardmill verify {out}")
    report = run.verify(quiet=False)
    for check in report.checks:
        print(f"  {'ok  ' if check.ok else 'FAIL'} {check.name:<10} {check.seen}")

    for question, hits in zip(QUESTIONS, run.search_many(QUESTIONS), strict=True):
        print(f'\n$ shardmill search {out} "{question}"')
        for hit in hits:
            first = hit.values["doc"].strip().splitlines()[0]
            print(f"  {hit.score:.3f}  {hit.values['name']}: {first[:90]}")

    say(f"\n$ shardmill summarize {long} --text doc --keep name --sentences 2 --out {short}")
    summaries = shardmill.summarize(str(long), text="doc", keep="name", sentences=2, out=short, quiet=False)
    for row in summaries.table().slice(0, SHOWN).to_pylist():
        print(f"  {row['name']}: {' '.join(row['summary'].split())[:200]}")

    print(f'\n$ shardmill ask {out} "{ASKED}"')
    answer = shardmill.ask(out, ASKED)
    print(f"  {' '.join((answer.text or 'no answer').split())}")

    verdict = "verified" if report.verified else "NOT verified"
    print(
        f"\n{report.rows:,} texts embedded and {verdict} in {time.monotonic() - began:.0f} s. The run folder is {out}."
    )
    print("Try next:")
    for command in (
        f'.venv/bin/shardmill ask {out} "your own question?"',
        f".venv/bin/shardmill status {out}",
        f".venv/bin/shardmill merge {out} --out docstrings.parquet",
        ".venv/bin/shardmill embed YOUR.jsonl --text FIELD --out runs/yours",
        f".venv/bin/shardmill monitor {HOME}    # opens the page of these runs: prints its address",
    ):
        print(f"  {command}")
    if not report.verified:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
