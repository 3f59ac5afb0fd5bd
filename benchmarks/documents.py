"""Documents per second by kind beside markitdown and docling, and what broken, hanging and bombing PDFs cost a run.

    python -m benchmarks.documents [--files 400] [--markitdown VENV/bin/python] [--docling VENV/bin/python]
    python -m benchmarks.documents --run 2000

The first reads generated documents of each kind from a folder, by the source on all cores. A peer is given as a Python
that has it, and converts the same files in as many processes; what it cannot read without a model hub is not read. The
second is a run of a worker with a fake task over so many PDFs, of which 5 % are cut off; one unpacks to 4 GiB, and one
has a full page 100,000 times.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from shardmill.core.devices import cores
from tests.support.documents import as_bomb_pdf, as_docx, as_pdf, as_slow_pdf

WORDS = (
    *("the", "tea", "leaves", "of", "a", "mountain", "garden", "are", "picked", "by", "hand", "and", "dried"),
    *("in", "shade", "before", "water", "is", "poured"),
)
KINDS = ("md", "html", "pdf", "docx")
_PEERS = {
    "markitdown": """
from markitdown import MarkItDown as Converter

def read(found):
    return found.text_content
""",
    "docling": """
from docling.document_converter import DocumentConverter as Converter

def read(found):
    return found.document.export_to_markdown()
""",
}
_PEER = """
import sys, time
from multiprocessing import Pool

def start():
    global converter
    converter = Converter()

def convert(path):
    return len(read(converter.convert(path)))

if __name__ == "__main__":
    with Pool(int(sys.argv[1]), start) as pool:
        pool.map(convert, sys.argv[2:8], chunksize=1)
        began = time.monotonic()
        made = pool.map(convert, sys.argv[2:], chunksize=4)
        print(time.monotonic() - began, sum(made))
"""


def prose(draw: random.Random, words: int) -> str:
    """Lines of ten words."""
    said = draw.choices(WORDS, k=words)
    return "\n".join(" ".join(said[at : at + 10]) for at in range(0, words, 10))


def make(kind: str, number: int) -> bytes:
    """A document of about 1,200 words."""
    draw = random.Random(f"{kind} {number}")
    parts = [prose(draw, 300) for _ in range(4)]
    if kind == "pdf":
        return as_pdf(parts, f"Paper {number}")
    if kind == "docx":
        return as_docx([("x", line) for part in parts for line in part.split("\n")], f"Letter {number}")
    page = "".join(f"<h2>Part {i}</h2>{''.join(f'<p>{x}</p>' for x in p.split(chr(10)))}" for i, p in enumerate(parts))
    return (
        f"<html><title>Page {number}</title>{page}</html>".encode() if kind == "html" else "\n\n".join(parts).encode()
    )


def read_folder(folder: Path) -> tuple[float, int, int]:
    """Seconds, characters and bad documents; processes that parse are started before the time begins."""
    from shardmill.sources import Fields, discover, open_source

    source = open_source(discover([str(folder)], Fields("text"), "files"), Fields("text"))
    shards = source.shards(1 << 40)
    for _ in source.read(source.shards(1)[0]):
        pass
    began = time.monotonic()
    batches = [batch for shard in shards for batch in source.read(shard)]
    seconds = time.monotonic() - began
    return seconds, sum(len(t or "") for b in batches for t in b.texts.to_pylist()), sum(len(b.bad) for b in batches)


def read_by(peer: str, python: str, paths: Sequence[Path]) -> tuple[str, str]:
    """Documents per second and characters of a peer in as many processes as there are cores."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "peer.py"
        script.write_text(_PEERS[peer] + _PEER)
        command = [python, str(script), str(cores()), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    if done.returncode:
        return "not read", "–"
    took, made = done.stdout.split()[-2:]
    return f"{len(paths) / float(took):,.0f}", f"{int(made):,}"


def compare(files: int, peers: Mapping[str, str]) -> None:
    rows = []
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / f"{n:05d}.{kind}" for n in range(files)]
            size = sum(path.write_bytes(make(kind, n)) for n, path in enumerate(paths))
            seconds, characters, bad = read_folder(Path(folder))
            assert not bad
            row = [kind, f"{size / files / 1000:.1f} kB", f"{files / seconds:,.0f}", f"{characters:,}"]
            for peer, python in peers.items():
                row += read_by(peer, python, paths)
            rows.append(row)
            print("…", *row, file=sys.stderr)
    head = ["kind", "size", "documents/s", "characters"]
    print_table([*head, *(name for peer in peers for name in (peer, "its characters"))], rows)


def run_over(count: int) -> None:
    from shardmill.core.devices import Device
    from shardmill.ledger import Ledger
    from shardmill.plan.spec import make_spec
    from shardmill.run import Run
    from shardmill.run.planner import make_plan

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "papers"
        place.mkdir()
        for number in range(count - 2):
            data = make("pdf", number)
            (place / f"{number:05d}.pdf").write_bytes(data[: len(data) // 2] if number % 20 == 7 else data)
        (place / "bomb.pdf").write_bytes(as_bomb_pdf())
        (place / "slow.pdf").write_bytes(as_slow_pdf())
        work = {"source": str(place), "text": "text", "id": "file", "keep": "title,pages"}
        spec = make_spec({**work, "task": "shardmill.testing:FakeTask"}, {"max_errors": "10%"})
        ledger = Ledger(Path(folder) / "run")
        began = time.monotonic()
        ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
        ledger.put_execution(spec.execution.model_dump(mode="json"))
        planned = time.monotonic() - began
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        subprocess.run([sys.executable, "-m", "shardmill.worker", ledger.url], check=True)
        seconds = time.monotonic() - began - planned
        most = max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024
        run = Run(ledger.url)
        reasons = Counter(error["reason"] for error in run.errors())
        began = time.monotonic()
        report = run.verify()
        head = ["PDFs", "planned in", "run in", "largest process", "rows", "set aside", "verified in"]
        verdict = f"{time.monotonic() - began:.1f} s" if report.verified else "NOT VERIFIED"
        rows = f"{len(run.table(['file'])):,}"
        shown = [f"{count:,}", f"{planned:.2f} s", f"{seconds:.1f} s", f"{most:,.0f} MiB", rows]
        print_table(head, [[*shown, f"{sum(reasons.values()):,}", verdict]])
        print()
        print_table(["set aside", "because"], [[f"{n:,}", reason] for reason, n in reasons.most_common()])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=400)
    for peer in _PEERS:
        parser.add_argument(f"--{peer}", default="", metavar="PYTHON")
    parser.add_argument("--run", type=int, default=0)
    args = parser.parse_args()
    describe_machine()
    peers = {peer: python for peer in _PEERS if (python := getattr(args, peer))}
    run_over(args.run) if args.run else compare(args.files, peers)


if __name__ == "__main__":
    main()
