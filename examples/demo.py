"""Demo: embed the docstrings of Python's standard library, verify the result and search it three times."""

from __future__ import annotations

import ast
import json
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import shardmill
from shardmill.console import Bar, say

HOME = Path("demo")
QUESTIONS = ("read a compressed file", "run a function every few seconds", "find the differences between two texts")
PARAGRAPHS = 2
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


def write_corpus(path: Path) -> int:
    """Write the first paragraphs of each docstring as JSONL, without duplicates; return their number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    with open(path, "w", encoding="utf-8") as file:
        for name, text in docstrings(Path(sysconfig.get_paths()["stdlib"])):
            opening = "\n\n".join(text.split("\n\n")[:PARAGRAPHS])
            if opening not in seen:
                seen.add(opening)
                file.write(json.dumps({"name": name, "doc": opening}, ensure_ascii=False) + "\n")
    return len(seen)


def main() -> None:
    began = time.monotonic()
    corpus, out = HOME / "docstrings.jsonl", HOME / "run"
    if not corpus.exists():
        say(f"{write_corpus(corpus):,} docstrings of the standard library: {corpus}")
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

    verdict = "verified" if report.verified else "NOT verified"
    print(
        f"\n{report.rows:,} texts embedded and {verdict} in {time.monotonic() - began:.0f} s. The run folder is {out}."
    )
    print("Try next:")
    for command in (
        f'.venv/bin/shardmill search {out} "your own question" -k 10',
        f".venv/bin/shardmill status {out}",
        f".venv/bin/shardmill merge {out} --out docstrings.parquet",
        ".venv/bin/shardmill embed YOUR.jsonl --text FIELD --out runs/yours",
    ):
        print(f"  {command}")
    if not report.verified:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
