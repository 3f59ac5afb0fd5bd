"""A source of which some rows changed, brought up to date by shardmill, CocoIndex and `datasets.map`: how long does it
take, how many texts go through the model, and what does each miss?

    python -m benchmarks.refresh_peers --texts reviews.jsonl --field reviewText --model FOLDER --peers PYTHON

PYTHON is that of an environment with cocoindex[sqlite], datasets and sentence-transformers. All embed with the same
model in float32, up to its own limit of tokens. Each step is a process of its own, as a timer would start it, and the
engines take turns. The texts are those of the file; where it has too few, halves of two of them.

After the first run and one with nothing changed, 1 % of the rows have another text under the same id, 1 % another kept
column, 0.5 % are gone and 0.5 % new. Results are compared row by row with what sentence-transformers makes of the
source then. Smaller sources show what happens if code changes, or the weights in the folder of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from benchmarks.machine import describe_machine, print_table
from benchmarks.refresh_pipelines import COCOINDEX, DATASETS, HELPER, OWN, REFERENCE
from shardmill.run import Run
from shardmill.run.editions import EditionLine, list_editions

Row = dict[str, Any]
Vector = NDArray[np.float32]
EDITED, STARRED, GONE, NEW = 0.01, 0.01, 0.005, 0.005
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "COCOINDEX_DISABLE_USAGE_TRACKING": "1"}


@dataclass(frozen=True, slots=True)
class Took:
    """A process: its time, that of the processors, what it computed, and why it refused."""

    seconds: float
    busy: float
    computed: int = 0
    refused: str = ""

    def __str__(self) -> str:
        return f"{self.seconds:,.1f} s ({self.busy:,.1f})"


class Engine:
    """A folder with a source, code and a state; each call brings the state up to the source."""

    name = "shardmill"

    def __init__(self, folder: Path, asked: argparse.Namespace, model: Path, *, embeds: bool = True) -> None:
        self._folder, self._peers, self._model, self._embeds = folder, asked.peers, model, embeds
        folder.mkdir()
        self.write_code()

    def write_rows(self, rows: list[Row]) -> None:
        (self._folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write_code(self, own: int = 1, imported: int = 1) -> None:
        """Write the code, in which two numbers may change; without a model, they make the vectors."""
        # Bytecode is known by the second and the size of its source, which may both be the same.
        shutil.rmtree(self._folder / "__pycache__", ignore_errors=True)
        (self._folder / "helper.py").write_text(HELPER.replace("IMPORTED", str(imported)))
        code = self._code().replace("MODEL", repr(str(self._model))).replace("OWN", str(own))
        (self._folder / "pipeline.py").write_text(code)

    def call(self) -> Took:
        run = self._folder / "run"
        words = ["embed", "rows.jsonl", "--text", "text", "--model", str(self._model), "--precision", "float32"]
        words = words if self._embeds else ["apply", "rows.jsonl", "--call", "pipeline.py:vectors"]
        words += ["--id", "id", "--keep", "stars", "--device", "cpu", "--out", "run", "--refresh"]
        before = self._editions()
        took, done = self._run([sys.executable, "-m", "shardmill", *words])
        if done.returncode and before:
            return Took(took.seconds, took.busy, refused=done.stderr.splitlines()[0].replace(str(run), "RUN"))
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        return Took(took.seconds, took.busy, sum(line.computed or 0 for line in self._editions()[len(before) :]))

    def _editions(self) -> list[EditionLine]:
        return list_editions(self._folder / "run") if (self._folder / "run").exists() else []

    def read(self) -> list[Row]:
        return Run(self._folder / "run").table(["id", "stars", "embedding"]).to_pylist()

    def _code(self) -> str:
        return OWN

    def _run(self, command: list[str]) -> tuple[Took, subprocess.CompletedProcess[str]]:
        environment = {**os.environ, **_OFFLINE, "HF_HOME": str(self._folder / "hf")}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        done = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Took(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), done


class Peer(Engine):
    """A pipeline that is a script, and says last how many texts it computed."""

    def call(self) -> Took:
        took, done = self._run([self._peers, "pipeline.py"])
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        return Took(took.seconds, took.busy, int(done.stdout.split()[-1]))


class Cocoindex(Peer):
    name = "CocoIndex"

    def read(self) -> list[Row]:
        with closing(sqlite3.connect(self._folder / "result.sqlite")) as database:
            rows = database.execute("SELECT id, stars, embedding FROM result").fetchall()
        return [{"id": name, "stars": stars, "embedding": np.frombuffer(v, np.float32)} for name, stars, v in rows]

    def _code(self) -> str:
        vector = "await coco.use_context(EMBEDDER).embed(review.text)" if self._embeds else "own(review.text)"
        return COCOINDEX.replace("VECTOR", vector)


class Datasets(Peer):
    name = "`datasets.map`"

    def read(self) -> list[Row]:
        rows: list[Row] = pq.read_table(self._folder / "result.parquet").to_pylist()
        return rows

    def _code(self) -> str:
        return DATASETS.replace("VECTOR", "load().encode(texts)" if self._embeds else "[own(text) for text in texts]")


ENGINES = (Engine, Cocoindex, Datasets)


def read_texts(path: str, field: str, count: int) -> Iterator[str]:
    """As many texts of real length: those of a file, then second halves of some with first halves of others."""
    texts = [text for line in Path(path).read_text().splitlines() if (text := json.loads(line)[field]).strip()]
    yield from texts[:count]
    for number in range(len(texts), count):
        lap, at = divmod(number, len(texts))
        last, first = texts[at].split(), texts[(at + 7 * lap) % len(texts)].split()
        yield " ".join([*last[len(last) // 2 :], *first[: max(1, len(first) // 2)]])


def pass_a_day(rows: list[Row], more: Iterator[str]) -> tuple[list[Row], int]:
    """The rows of the next day, and how many of them are new or have another text, one of `more`."""
    order = iter(np.random.default_rng(0).permutation(len(rows)).tolist())
    edited, starred, gone = ({next(order) for _ in range(round(len(rows) * n))} for n in (EDITED, STARRED, GONE))
    after = []
    for number, row in enumerate(rows):
        if number not in gone:
            text = {"text": next(more)} if number in edited else {}
            after.append({**row, **text, "stars": row["stars"] + (number in starred)})
    new = [{"id": f"new-{n}", "stars": 3.0, "text": next(more)} for n in range(round(len(rows) * NEW))]
    return [*after, *new], len(edited) + len(new)


def embed_reference(asked: argparse.Namespace, model: Path, rows: list[Row], folder: Path) -> list[Vector]:
    """The vectors of all rows, by sentence-transformers alone."""
    texts, out = folder / "texts.json", folder / "vectors.npy"
    texts.write_text(json.dumps([row["text"] for row in rows]))
    command = [asked.peers, "-c", REFERENCE, str(model), str(texts), str(out)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **_OFFLINE})
    return list(np.load(out))


def find_faults(found: list[Row], rows: list[Row], vectors: list[Vector]) -> str:
    """What is wrong with a result, beside one that is made anew of these rows."""
    by_id = {row["id"]: row for row in found}
    pairs = [(by_id[row["id"]], row, vector) for row, vector in zip(rows, vectors, strict=True) if row["id"] in by_id]
    faults = {
        "missing": len(rows) - len(pairs),
        "gone or double": len(found) - len(pairs),
        "stale": sum(not _is_alike(one["embedding"], vector) for one, _, vector in pairs),
        "with the old kept column": sum(one["stars"] != row["stars"] for one, row, _ in pairs),
    }
    return ", ".join(f"{count:,} rows {what}" for what, count in faults.items() if count) or "as made anew"


def _is_alike(one: Any, other: Vector) -> bool:
    one = np.asarray(one, np.float32)
    lengths = np.linalg.norm(one), np.linalg.norm(other)
    return bool(one @ other > 0.999 * lengths[0] * lengths[1] and abs(lengths[0] - lengths[1]) < 0.01 * lengths[1])


def measure(asked: argparse.Namespace, folder: Path) -> list[list[str]]:
    """The first run, one with nothing changed, and one of the next day, by each engine in turn."""
    texts = read_texts(asked.texts, asked.field, round(asked.rows * (1 + EDITED + NEW)) + 2)
    rows = [{"id": f"r{n}", "stars": float(n % 5), "text": next(texts)} for n in range(asked.rows)]
    after, changed = pass_a_day(rows, texts)
    engines = [kind(folder / kind.__name__, asked, Path(asked.model)) for kind in ENGINES]
    cells: list[list[str]] = [[engine.name] for engine in engines]
    for what, source in (("first", rows), ("nothing changed", None), ("the next day", after)):
        for engine, line in zip(engines, cells, strict=True):
            if source is not None:
                engine.write_rows(source)
            took = engine.call()
            line += [str(took), f"{took.computed:,}"]
            print(f"{engine.name}, {what}: {took}, {took.computed:,} computed; load {os.getloadavg()}", flush=True)
    vectors = embed_reference(asked, Path(asked.model), after, folder)
    for engine, line in zip(engines, cells, strict=True):
        line.append(find_faults(engine.read(), after, vectors))
    words = sum(len(row["text"].split()) for row in rows) / len(rows)
    print(f"\n{len(rows):,} rows of {words:.0f} words; the next day {changed:,} are new or have another text.\n")
    return cells


def find_misses(asked: argparse.Namespace, folder: Path) -> list[list[str]]:
    """What each engine makes of a source that stays, after code or a model changed."""
    texts = read_texts(asked.texts, asked.field, asked.few)
    rows = [{"id": f"r{n}", "stars": 3.0, "text": text} for n, text in enumerate(texts)]
    kinds: dict[str, Mapping[str, int]] = {
        "code of the function": {"own": 2},
        "code that the function imports": {"imported": 2},
        "weights in the model's folder": {},
    }
    table = []
    for number, (what, code) in enumerate(kinds.items()):
        line = [what]
        for kind in ENGINES:
            place = folder / f"{kind.__name__}-{number}"
            model = Path(shutil.copytree(asked.model, f"{place}-model"))
            engine = kind(place, asked, model, embeds=not code)
            engine.write_rows(rows)
            engine.call()
            if code:
                engine.write_code(**code)
                vectors = [expected_vector(row["text"], **code) for row in rows]
            else:
                change_weights(model / "model.safetensors")
                vectors = embed_reference(asked, model, rows, folder)
            took = engine.call()
            found = took.refused or f"{took.computed:,} computed: {find_faults(engine.read(), rows, vectors)}"
            print(f"{engine.name}, {what}: {found}", flush=True)
            line.append(found)
        table.append(line)
    return table


def expected_vector(text: str, own: int = 1, imported: int = 1) -> Vector:
    return np.array([own * len(text), imported * text.count("a"), 1], np.float32)


def change_weights(path: Path) -> None:
    """Halve the weights of the last layer, in the same file."""
    weights = load_file(path)
    last = max(name for name in weights if name.endswith("output.dense.weight"))
    save_file({**weights, last: weights[last] * np.float32(0.5)}, path, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", required=True, help="a JSONL file")
    parser.add_argument("--field", default="text")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--few", type=int, default=100, help="rows of the sources whose code or model changes")
    parser.add_argument("--model", required=True, help="a folder with safetensors")
    parser.add_argument("--peers", required=True, metavar="PYTHON")
    asked = parser.parse_args()
    describe_machine()
    # Not resolved: the interpreter of an environment is a link.
    asked.model, asked.peers = str(Path(asked.model).resolve()), str(Path(asked.peers).absolute())
    with tempfile.TemporaryDirectory() as place:
        head = ["", "first run", "computed", "nothing changed", "computed", "the next day", "computed", "the result"]
        print_table(head, measure(asked, Path(place)))
        print(flush=True)
        print_table(["changed", *(kind.name for kind in ENGINES)], find_misses(asked, Path(place)))


if __name__ == "__main__":
    main()
