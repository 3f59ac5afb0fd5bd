"""Looks for files that a parser answers with a fault of its own instead of a refusal.

python -m campaigns.fuzz --seconds 120                      # every parser for two minutes
python -m campaigns.fuzz --seconds 60 --parser csv --seed 7
python -m campaigns.fuzz --parser csv --replay found/csv-1  # one file again

Files are damaged at random (campaigns/mutation.py). A file that gets an answer not seen before is damaged further, so
that the search goes where the parser has more to say. Each parser runs in a process of its own, which may crash. Files
that are answered by anything but rows or a ShardmillError are kept in the folder --found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from benchmarks.machine import print_table
from campaigns.fuzzed import PARSERS, Parser, seeking_everywhere
from campaigns.mutation import mutate
from shardmill.core.errors import ShardmillError

_LONGEST_S = 60
_LARGEST_BYTES = 1 << 17
_MEMORY_BYTES = 6 << 30


def answer_of(parser: Parser, path: Path) -> tuple[str, str]:
    """How a parser answers a file: ("rows" | "refused" | "fault", what it says). One that hangs is a fault."""
    _limit()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_LONGEST_S)
    try:
        parser.use(path)
    except ShardmillError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return "fault", f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
    return "rows", ""


def _kind_of(said: str) -> str:
    """What an answer says without the numbers and names in it."""
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\d.,]+|/\S+", "#", said)[:160]


def search(parser: Parser, seconds: float, seed: int, found: Path) -> dict[str, int]:
    """Damage files for a while and keep those that a fault answers, one per kind of fault."""
    choose = random.Random(f"{parser.name} {seed}")
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        seeds = parser.seeds(folder)
        corpus = list(seeds)
        path, known = folder / parser.file, set[str]()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            data = mutate(choose.choice(corpus if choose.random() < 0.4 else seeds), choose)[:_LARGEST_BYTES]
            path.write_bytes(data)
            # What this process leaves behind if it crashes.
            (found / f"{parser.name}-crashed").write_bytes(data)
            kind, said = answer_of(parser, path)
            counts[kind] += 1
            what = _kind_of(said)
            if what not in known:
                known.add(what)
                corpus.append(data)
                if kind == "fault":
                    number = sum(1 for _ in found.glob(f"{parser.name}-[0-9]*"))
                    (found / f"{parser.name}-{number}").write_bytes(data)
                    print(f"{parser.name}-{number}: {said}", file=sys.stderr, flush=True)
            for left in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.gzidx"):
                left.unlink()
        (found / f"{parser.name}-crashed").unlink()
    return {**counts, "answers": len(known)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--seconds", type=float, default=60.0, help="per parser")
    asked.add_argument("--parser", choices=PARSERS, action="append", default=[])
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--found", type=Path, default=Path("found"))
    asked.add_argument("--replay", type=Path)
    asked.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.replay:
        _replay(PARSERS[given.parser[0]], given.replay)
        return
    given.found.mkdir(parents=True, exist_ok=True)
    if given.here:
        with seeking_everywhere():
            print(json.dumps(search(PARSERS[given.parser[0]], given.seconds, given.seed, given.found)))
        return
    rows = [_in_a_process(name, given) for name in given.parser or PARSERS]
    print_table(["parser", "files", "read", "refused", "faults", "kinds of answers"], rows)
    sys.exit(any(row[4] != "0" for row in rows))


def _in_a_process(name: str, given: argparse.Namespace) -> list[str]:
    command = [sys.executable, "-m", "campaigns.fuzz", "--here", "--parser", name, "--found", str(given.found)]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [*command, "--seconds", str(given.seconds), "--seed", str(given.seed)],
            # By default malloc reserves 64 MiB of addresses for each thread, up to eight times the cores.
            env={**os.environ, "XDG_CACHE_HOME": cache, "MALLOC_ARENA_MAX": "2"},
            stdout=subprocess.PIPE,
        )
    if done.returncode:
        print(f"{name}: ended with status {done.returncode}: {given.found}/{name}-crashed", file=sys.stderr)
        return [name, "?", "?", "?", "crashed", "?"]
    counts = json.loads(done.stdout)
    files = sum(counts.get(kind, 0) for kind in ("rows", "refused", "fault"))
    shown = (files, *(counts.get(kind, 0) for kind in ("rows", "refused", "fault", "answers")))
    return [name, *(f"{count:,}" for count in shown)]


def _replay(parser: Parser, file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, seeking_everywhere():
        parser.seeds(Path(folder))
        shutil.copy(file, Path(folder) / parser.file)
        print(*answer_of(parser, Path(folder) / parser.file), sep=": ")


def _limit() -> None:
    """Make a file that fills the memory a fault like others. pyarrow loses some at each file that zstd refuses."""
    held_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + _MEMORY_BYTES, resource.RLIM_INFINITY))


def _too_long(*_: object) -> None:
    raise TimeoutError(f"no answer within {_LONGEST_S} s")


if __name__ == "__main__":
    main()
