"""`bench tasks`: embed, summarize and answer on the CPU and on a GPU, over the same items; and when a GPU pays."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardmill.bench.machine import Machine, describe_machine
from shardmill.bench.report import check_plotting
from shardmill.bench.texts import mixed_texts, read_texts, write_texts
from shardmill.core.devices import gpus
from shardmill.core.errors import UsageError
from shardmill.models.names import MINILM
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.prices import find_price
from shardmill.run import Run
from shardmill.store import LocalStore
from shardmill.tasks import open_task
from shardmill.verbs.functions import answer, embed, summarize

TASKS = ("embed", "summarize", "answer")
_FILES = ("tasks.json", "tasks.png", "tasks.svg")
_QUESTION_WORDS = 12
_COLOURS = {"cpu": "#b8bec6", "cuda": "#1b6ca8"}


@dataclass(frozen=True, slots=True)
class TaskSpeed:
    """One task on one device. `start_s` goes by before the first item is done, whatever the number of items."""

    task: str
    kind: str
    device: str
    items: int
    start_s: float
    work_s: float
    usd_per_hour: float | None
    verified: bool

    @property
    def items_per_s(self) -> float:
        return self.items / self.work_s

    @property
    def usd_per_million(self) -> float | None:
        """The price of a million items, without the start."""
        return None if self.usd_per_hour is None else self.usd_per_hour * 1e6 / self.items_per_s / 3600

    def seconds(self, items: float) -> float:
        return self.start_s + items / self.items_per_s

    def usd(self, items: float) -> float:
        return (self.usd_per_hour or 0.0) * self.seconds(items) / 3600


@dataclass(frozen=True, slots=True)
class GpuPays:
    """From how many items on a GPU is sooner done, and cheaper; None for never."""

    task: str
    sooner_from: int | None
    cheaper_from: int | None


@dataclass(frozen=True, slots=True)
class TasksResult:
    machine: Machine
    model: str
    items: int
    speeds: tuple[TaskSpeed, ...]
    pays: tuple[GpuPays, ...]

    @property
    def verified(self) -> bool:
        return all(speed.verified for speed in self.speeds)

    def to_json(self) -> dict[str, Any]:
        return {"bench": "tasks", **asdict(self)}


def bench_tasks(items: int, model: str = MINILM, *, quiet: bool = True) -> TasksResult:
    """Run each task on each kind of device, verify it, and compare."""
    if items < 2:
        raise UsageError(f"--items {items}: at least two are needed.")
    machine, kinds = describe_machine(), ["cpu", "cuda"] if gpus() else ["cpu"]
    task = open_task("embed", {"model": model})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source, questions = folder / "texts.jsonl", folder / "questions.jsonl"
        write_texts(source, mixed_texts(items, lambda texts: task.prepare(texts).costs), items, quiet=quiet)
        asked = (" ".join(text.split()[:_QUESTION_WORDS]) for text in read_texts(source, items))
        write_texts(questions, islice(asked, items), items, quiet=quiet)
        speeds = [speed for kind in kinds for speed in _run_all(kind, source, questions, model, quiet=quiet)]
    return TasksResult(machine, model, items, tuple(speeds), compare(speeds))


def compare(speeds: Sequence[TaskSpeed]) -> tuple[GpuPays, ...]:
    """When a GPU pays, for each task; nothing if only one kind of device was measured."""
    return tuple(_pays(name, speeds) for name in TASKS) if len({speed.kind for speed in speeds}) > 1 else ()


def _run_all(kind: str, source: Path, questions: Path, model: str, *, quiet: bool) -> list[TaskSpeed]:
    """Run the tasks one after another on a kind of device: questions are answered over the texts that were embedded."""
    how: dict[str, Any] = {"device": kind, "text": "text", "id": "id", "quiet": quiet}
    outs = {name: source.parent / f"{name}-{kind}" for name in TASKS}
    works: dict[str, Callable[[], Run]] = {
        "embed": lambda: embed(str(source), keep="text", model=model, out=outs["embed"], **how),
        "summarize": lambda: summarize(str(source), model=model, out=outs["summarize"], **how),
        "answer": lambda: answer(str(questions), over=outs["embed"], out=outs["answer"], **how),
    }
    return [_measure(name, kind, works[name], quiet=quiet) for name in TASKS]


def _measure(task: str, kind: str, work: Callable[[], Run], *, quiet: bool) -> TaskSpeed:
    asked = time.time()
    run = work()
    commits, workers = run.ledger.commits.read().values(), run.ledger.workers.read()
    began = min(w["began"] for w in workers)
    return TaskSpeed(
        task=task,
        kind=kind,
        device=workers[0]["device"],
        items=sum(c.rows for c in commits),
        start_s=began - asked,
        work_s=max(1e-3, max(c.finished_at for c in commits) - began),
        usd_per_hour=find_price(load_catalogue(), workers[0]["device"], workers[0]["cores"]),
        verified=run.verify(quiet=quiet).verified,
    )


def _pays(task: str, speeds: Sequence[TaskSpeed]) -> GpuPays:
    cpu, gpu = (next(s for s in speeds if (s.task, s.kind) == (task, kind)) for kind in ("cpu", "cuda"))
    cheaper = None
    if cpu.usd_per_hour is not None and gpu.usd_per_hour is not None:
        cheaper = cross(cpu.usd(0), cpu.usd(1) - cpu.usd(0), gpu.usd(0), gpu.usd(1) - gpu.usd(0))
    return GpuPays(task, cross(cpu.start_s, 1 / cpu.items_per_s, gpu.start_s, 1 / gpu.items_per_s), cheaper)


def cross(first: float, each: float, other_first: float, other_each: float) -> int | None:
    """From how many items on the other costs less; None if it never does.

    >>> cross(10.0, 1.0, 60.0, 0.5), cross(10.0, 1.0, 5.0, 0.5), cross(10.0, 1.0, 60.0, 2.0)
    (101, 0, None)
    """
    if other_first <= first and other_each <= each:
        return 0
    if other_each >= each:
        return None
    return int((other_first - first) / (each - other_each)) + 1


def print_tasks(result: TasksResult) -> None:
    """Print the table to stdout."""
    console = Console(highlight=False)
    table = Table(box=None)
    for name in ("task", "device", "items/s", "to start", "a million items", "price", "verified"):
        table.add_column(name, justify="left" if name in ("task", "device") else "right")
    for speed in result.speeds:
        price = "unknown" if speed.usd_per_million is None else f"${speed.usd_per_million:,.2f}"
        hours = 1e6 / speed.items_per_s / 3600
        cells = (f"{speed.items_per_s:,.1f}", f"{speed.start_s:.1f} s", f"{hours:,.1f} h", price)
        table.add_row(speed.task, speed.device, *cells, "yes" if speed.verified else "NO")
    console.print(Text(f"{result.items:,} items, {result.model}; {result.machine}"))
    console.print(table)
    for line in conclusions(result):
        console.print(Text(line))


def conclusions(result: TasksResult) -> list[str]:
    """From which size on a GPU pays, in sentences."""
    if not result.pays:
        return ["No GPU was found: the same command on a machine with one compares both."]
    said = []
    for pays in result.pays:
        sooner = "never" if pays.sooner_from is None else f"from {pays.sooner_from:,} items on"
        cheaper = "never" if pays.cheaper_from is None else f"from {pays.cheaper_from:,} items on"
        said.append(f"{pays.task}: a GPU is sooner done {sooner}, and cheaper {cheaper}.")
    return said


def save_tasks(result: TasksResult, folder: Path) -> list[Path]:
    """Write the JSON and the picture."""
    check_plotting()
    paths = [folder / name for name in _FILES]
    LocalStore(folder).put(paths[0].name, json.dumps(result.to_json(), indent=2, ensure_ascii=False).encode() + b"\n")
    _draw(result, paths[1:])
    return paths


def _draw(result: TasksResult, paths: list[Path]) -> None:
    """Time over the number of items, one picture for each task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    figure.suptitle(f"shardmill bench tasks: {result.model}, {result.items:,} items measured", weight="bold")
    sizes = [10 ** (exponent / 4) for exponent in range(8, 33)]
    for axes, task in zip(figure.subplots(1, len(TASKS)), TASKS, strict=True):
        for speed in (s for s in result.speeds if s.task == task):
            axes.loglog(sizes, [speed.seconds(n) for n in sizes], color=_COLOURS[speed.kind], label=speed.device)
        axes.set_title(task, fontsize=10, loc="left")
        axes.set_xlabel("items", fontsize=8)
        axes.set_ylabel("seconds", fontsize=8)
        axes.legend(fontsize=7)
    figure.supxlabel(str(result.machine), fontsize=6.5, color="#555555", wrap=True)
    for path in paths:
        figure.savefig(path, dpi=160)
