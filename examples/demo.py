"""Demo: embed the docstrings of the standard library, verify and search them, summarize the longest, ask a question."""

from __future__ import annotations

import ast
import json
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import shardmill
from shardmill.core.console import Bar, say

HOME = Path("demo")
QUESTIONS = ("read a compressed file", "run a function every few seconds", "find the differences between two texts")
ASKED = "How do I call a function after some seconds?"
PARAGRAPHS = 2
LONG, SHOWN = 24, 3
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def docstrings(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield every docstring under a folder of modules, with the dotted name of its owner."""
    files = [f for f in sorted(folder.rglob("*.py")) if not SKIPPED.intersection(f.relative_to(folder).parts)]
    with Bar("extracting docstrings") as bar:
        for done, file in enumerate(files, 1):
            bar.count(done, len(files), "modules")
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError):
                continue
            parts = file.relative_to(folder).with_suffix("").parts
            name = ".".join(p for p in parts if p != "__init__")
            yield from walk(tree, name)


def walk(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documented) and (text := ast.get_docstring(node)):
        yield name, text
    for child in ast.iter_child_nodes(node):
        own = f"{name}.{child.name}" if isinstance(child, documented) and not isinstance(child, ast.Module) else name
        yield from walk(child, own)


def write_corpus(path: Path, long: Path) -> int:
    """Write the first paragraphs of each docstring as JSONL, without duplicates, and the longest ones whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seen: dict[str, tuple[str, str]] = {}
    for name, text in docstrings(Path(sysconfig.get_paths()["stdlib"])):
        seen.setdefault("\n\n".join(text.split("\n\n")[:PARAGRAPHS]), (name, text))
    write(path, ((name, opening) for opening, (name, _) in seen.items()))
    write(long, sorted(seen.values(), key=lambda each: len(each[1]), reverse=True)[:LONG])
    return len(seen)


def write(path: Path, named: Iterable[tuple[str, str]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for name, text in named:
            file.write(json.dumps({"name": name, "doc": text}, ensure_ascii=False) + "\n")


def main() -> None:
    began = time.monotonic()
    corpus, long, out, short = HOME / "docstrings.jsonl", HOME / "long.jsonl", HOME / "run", HOME / "summaries"
    if not long.exists():
        say(f"{write_corpus(corpus, long):,} docstrings of the standard library: {corpus}")
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
