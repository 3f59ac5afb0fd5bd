"""A monitor in a process of its own, large runs that exist in their views alone, and one that means harm."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.ledger import History, HistoryPoint, Ledger, RunForecast, RunView, Totals, mark_states
from shardmill.plan import Plan, Shard, SourceFile, SourceStat
from shardmill.plan.spec import Work
from tests.support.cli import command
from tests.support.ledgers import a_plan
from tests.support.waiting import PATIENCE_S

WEIGHT_BYTES = 4 << 20
ROWS, TOKENS = 2400, 480_000
SCRIPT = "<script>alert(1)</script>"
BIDI = "left\u202eright\u2066x"
LONG = "x" * (1 << 20)


@dataclass(frozen=True, slots=True)
class MonitorProcess:
    """The address of a running monitor and its token."""

    base: str
    token: str
    process: subprocess.Popen[str]

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2].strip("/"))

    @property
    def entry(self) -> str:
        return f"{self.base}?token={self.token}"

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


@contextmanager
def monitor(folder: Path | str, *options: object) -> Iterator[MonitorProcess]:
    """`shardmill monitor` until the block ends; it must end by itself then."""
    process = subprocess.Popen(
        command("monitor", folder, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        base, _, token = process.stdout.readline().strip().partition("?token=")
        if not base:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        yield MonitorProcess(base, token, process)
    finally:
        process.terminate()
        try:
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()


def simulate_run(
    place: Path | str,
    *,
    shards: int = 4096,
    workers: int = 8,
    share: float = 0.62,
    device: str = "NVIDIA A10G",
    source: str = "reviews.jsonl",
    lost: int = 0,
    began_s: float = 5400.0,
    execution: dict[str, Any] | None = None,
) -> Ledger:
    """A run that is under way for as long as nobody looks closer: a plan, its settings, a view and a forecast."""
    draw, now = random.Random(shards), time.time()
    began, done = now - began_s, int(share * shards)
    stat = SourceStat("jsonl", (SourceFile(source, shards * WEIGHT_BYTES, "t", "e"),), {"asin": "string"})
    cut = [Shard(i, 0, i * WEIGHT_BYTES, (i + 1) * WEIGHT_BYTES, WEIGHT_BYTES) for i in range(shards)]
    work = Work(source=(source,), text="reviewText", keep=("asin",), params={"model": "all-MiniLM-L6-v2"})
    ledger = Ledger(place)
    ledger.create(Plan.of(work, stat, {"weights": "53aa5117"}, cut))
    ledger.put_execution({"engine": "slurm", **(execution or {})})
    # Workers begin at different places of the list, as they do in a run.
    seats = max(1, min(workers, 64))
    committed = [seat * shards // seats + i for seat in range(seats) for i in range(done // seats)]
    running = [seat * shards // seats + done // seats + i for seat in range(seats) for i in range(2)]
    rows = ROWS * len(committed) // workers
    beats = [_beat(worker, workers, running, now, began, device, rows, lost) for worker in range(workers)]
    states = mark_states(shards, committed, running, [shards - 3] if lost else [])
    totals = Totals(
        shards=states.count(2),
        rows=ROWS * states.count(2),
        errors=41,
        tokens=TOKENS * states.count(2),
        device_s=workers * began_s * 0.93,
        weight_bytes=WEIGHT_BYTES * states.count(2),
    )
    view = RunView(
        generation=ledger.folder.generation,
        at=now,
        by="w0",
        every_s=86400.0,
        states=states,
        totals=totals,
        workers=beats,
        history=_history(totals, began, now, workers, draw),
        reasons=[
            _reason("'reviewText' is null", 29, 311, 1207),
            _reason("the line is no JSON: Expecting ',' delimiter", 9, 1804, 77),
            _reason("the model gave NaN or infinity for this text", 3, 2260, 940),
        ],
    )
    ledger.store.put("view.json", view.encode())
    ledger.notes.put_forecast(RunForecast(began, 7900.0, 8600.0, 9700.0, workers, "measured on this machine"))
    return ledger


def _reason(reason: str, count: int, shard: int, line: int) -> dict[str, Any]:
    where = {"file": "reviews.jsonl", "shard": shard, "line_in_shard": line, "id": {"asin": f"B00{shard}{line}"}}
    return {"reason": reason, "count": count, **where, "example": reason}


def _beat(
    number: int, workers: int, running: list[int], now: float, began: float, device: str, usual: int, lost: int
) -> dict[str, Any]:
    gone = number >= workers - lost
    speed = 0.4 if number == 2 else 1 + 0.05 * math.sin(number)
    held = running[2 * number : 2 * number + 2]
    at = now - (290.0 if gone else 1.0 + number % 7)
    rows = int(speed * usual)
    rate = rows / (now - began)
    return {
        "id": f"gpu-{number // 8 + 1:02d}-4711_{number}-0",
        "at": at,
        "live": not gone,
        "state": "working",
        "host": f"gpu-{number // 8 + 1:02d}",
        "pid": 1,
        "process": "",
        "device": device,
        "kind": "cuda",
        "share": 1.0,
        "started": began - 20,
        "began": began,
        "progress_at": at,
        "rows": rows,
        "bytes": rows * WEIGHT_BYTES // ROWS,
        "tokens": rows * TOKENS // ROWS,
        "tokens_out": 0,
        "errors": 5,
        "commits": rows // ROWS,
        "rows_per_s": rate,
        "bytes_per_s": rate * WEIGHT_BYTES / ROWS,
        "tokens_per_s": rate * TOKENS / ROWS,
        "open": {} if gone else {str(shard): {"rows": 1000, "bytes": WEIGHT_BYTES // 2} for shard in held},
        "idle_s": 60.0,
        "sink_wait_s": 9.0,
        "timings": {"read_s": 90.0, "prepare_s": 400.0, "device_s": 5100.0, "write_s": 30.0},
        "rss_bytes": int((2.1 + 0.1 * math.sin(number)) * 2**30),
        "device_bytes": int((11.2 + 0.3 * math.cos(number)) * 2**30),
        "use": 0.94 + 0.03 * math.sin(3 * number),
        "error": None,
        "cpus": "",
        "notes": [],
        "place": f"Slurm job 4711_{number}",
    }


def _history(totals: Totals, began: float, now: float, workers: int, draw: random.Random) -> History:
    count = 110
    step = (now - began) / count
    shape = [min(1.0, 0.35 + i / 9) * (0.97 + 0.06 * draw.random()) * (0.83 if i > 96 else 1) for i in range(count)]
    whole = sum(shape)
    points = [
        HistoryPoint(
            at=began + (i + 1) * step,
            seconds=step,
            rows=round(totals.rows * part / whole),
            bytes=round(totals.weight_bytes * part / whole),
            tokens=round(totals.tokens * part / whole),
            memory_bytes=workers * (1.6 + min(0.5, i / 40)) * 2**30,
            device_bytes=workers * (10.9 + 0.4 * part) * 2**30,
            use=min(0.99, 0.9 * part + 0.06),
        )
        for i, part in enumerate(shape)
    ]
    return History(points, step)


def hostile_run(folder: Path) -> Ledger:
    """A run whose every text is chosen by somebody who means harm."""
    ledger = Ledger(folder)
    ledger.create(a_plan(text=SCRIPT + LONG))
    ledger.put_execution({"engine": SCRIPT})
    reason = {"count": 3, "file": SCRIPT, "shard": 0, "line_in_shard": 1, "id": {"a": SCRIPT}}
    beat: dict[str, Any] = {
        "state": SCRIPT,
        "host": BIDI,
        "device": LONG,
        "pid": 1,
        "rows": 3,
        "log": "logs/worker-0.log",
        "error": SCRIPT,
        "place": BIDI,
        "reasons": [{**reason, "reason": SCRIPT, "example": LONG}, {**reason, "reason": BIDI}],
    }
    ledger.workers.beat("w" + SCRIPT.replace("/", ""), beat)
    ledger.workers.beat("outside", {**beat, "log": "../../../secret.log"})
    ledger.workers.beat("linked", {**beat, "log": "logs/link.log", "error": None})
    ledger.workers.beat("nonsense", {**beat, "log": ["logs"], "place": {"a": 1}})
    (folder / "workers" / "bad.json").write_bytes(b'{"id": "\xff\xfe"}')
    (folder / "logs").mkdir()
    log = b"one \x1b[31mred\x1b[0m \xff" + f"{BIDI}\n{SCRIPT}\n10%\r50%\rdone\n".encode()
    (folder / "logs" / "worker-0.log").write_bytes(log)
    (folder.parents[1] / "secret.log").write_text("a secret")
    (folder / "logs" / "link.log").symlink_to(folder.parents[1] / "secret.log")
    (folder / "report.html").write_text(SCRIPT)
    (folder / "map.html").symlink_to(folder.parents[1] / "secret.log")
    return ledger
