"""`bench embed`: a real, verified run from file to file; its speed, time per stage, and bottleneck."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.bench.bounds import STAGES, Bound, find_bound
from shardmill.bench.chips import Watch, peak_tflops
from shardmill.bench.machine import Machine, describe_machine
from shardmill.bench.peers import MOST_TEXTS, Peer, lowest_cosine, run_peers
from shardmill.bench.texts import mixed_texts, own_texts, read_texts, write_texts
from shardmill.core.devices import gpus, parse_device
from shardmill.core.errors import SourceError, UsageError
from shardmill.core.extras import missing_package
from shardmill.models.arithmetic import count_arithmetic
from shardmill.models.folder import read_folder
from shardmill.models.heads import stored_shapes
from shardmill.models.location import find_model
from shardmill.models.names import MINILM
from shardmill.run import Run
from shardmill.sinks.parquet import vectors
from shardmill.tasks import open_task
from shardmill.tasks.base import Task
from shardmill.verbs.functions import embed

MADE_TEXTS = "docstrings of the standard library, cut to log-normal lengths"
DEFAULT_TEXTS = {"cpu": 2_000, "cuda": 200_000}


@dataclass(frozen=True, slots=True)
class EmbedBench:
    """What to measure. Without a source the texts are generated; `device` is as for `embed`."""

    model: str = MINILM
    device: str = "auto"
    texts: int | None = None
    source: str | None = None
    text: str | None = None
    workers: int | None = None
    batch_tokens: int | None = None
    precision: Literal["auto", "float32", "int8", "fp8"] | None = None
    peers: bool = False

    def __post_init__(self) -> None:
        if self.texts is not None and self.texts < 1:
            raise UsageError(f"--texts {self.texts}: at least one text is needed.")
        if (self.source is None) != (self.text is None):
            raise UsageError("--source and --text belong together.", hint="Give both, or neither.")


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """What was measured. Seconds of stages and idle seconds are means over the workers.

    `idle_s` is all the time the device waited for texts; `idle_between_s` is the part between the first batch and the
    last, including shard boundaries. `gpu_idle` is the share of the time between a worker's first and last batch in
    which the GPU ran none of its batches, by CUDA events; `gpu_busy` is the share in which NVML saw any kernel run.
    """

    machine: Machine
    model: str
    device: str
    workers: int
    kernel: str
    source: str
    texts: int
    tokens: int
    truncated: int
    errors: int
    shards: int
    batches: int
    start_s: float
    work_s: float
    docs_per_s: float
    tokens_per_s: float
    peak_share: float | None
    peak_note: str
    padding_waste: float
    stages: dict[str, float]
    idle_s: float
    idle_between_s: float
    gpu_idle: float | None
    gpu_busy: float | None
    peak_rss_bytes: int
    bound: Bound
    verified: bool
    verify_s: float
    verify_checks: dict[str, str]
    lowest_cosine: float | None = None
    peers: tuple[Peer, ...] = ()
    peer_texts: int = 0

    @property
    def best_peer(self) -> Peer | None:
        """The fastest setting of the peer."""
        return max((p for p in self.peers if p.docs_per_s), key=lambda p: p.docs_per_s or 0.0, default=None)

    def to_json(self) -> dict[str, Any]:
        return {"bench": "embed", **asdict(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EmbedResult:
        """The result that `to_json` returned."""
        fields = {name: v for name, v in value.items() if name != "bench"}
        machine = {**fields["machine"], "gpus": tuple(fields["machine"]["gpus"])}
        return cls(
            **{
                **fields,
                "machine": Machine(**machine),
                "bound": Bound(**fields["bound"]),
                "peers": tuple(Peer(**peer) for peer in fields["peers"]),
            }
        )


def bench_embed(asked: EmbedBench, *, quiet: bool = True) -> EmbedResult:
    """Run, measure, verify, and run the peers if requested."""
    if asked.peers and find_spec("sentence_transformers") is None:
        raise missing_package("sentence-transformers")
    task = open_task("embed", {"model": asked.model})
    with pinned(asked.device) as kind, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.jsonl"
        _write_source(source, asked, asked.texts or DEFAULT_TEXTS[kind], task, quiet=quiet)
        run, result = _run(asked, kind, source, Path(folder) / "run", quiet=quiet)
        if not asked.peers:
            return result
        texts = read_texts(source, MOST_TEXTS[kind])
        tokens = int(task.prepare(texts).costs.sum())
        found = run_peers(str(find_model(asked.model).path), kind, texts, tokens, quiet=quiet)
        own = _first_vectors(run, len(found.expected))
    return replace(result, peers=found.peers, peer_texts=len(texts), lowest_cosine=lowest_cosine(own, found.expected))


@contextmanager
def pinned(device: str) -> Iterator[str]:
    """Yield the kind of device, cpu or cuda. For cuda:0,2, this process and its workers see only those GPUs."""
    try:
        kind, numbers = parse_device(device)
    except ValueError as error:
        raise UsageError(f"--device: {error}.") from None
    found = gpus() if kind != "cpu" else []
    if kind == "cuda" and max(numbers, default=0) >= len(found):
        seen = f"{len(found)} NVIDIA GPUs were found" if found else "no NVIDIA GPU was found"
        raise UsageError(f"--device {device}: {seen}.", hint="Run nvidia-smi to see why, or use --device cpu.")
    visible = ",".join(found[number].visible for number in numbers)
    chosen = {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if numbers else {}
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield "cuda" if found else "cpu"
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _write_source(path: Path, asked: EmbedBench, count: int, task: Task, *, quiet: bool) -> None:
    if asked.source is None or asked.text is None:
        write_texts(path, mixed_texts(count, lambda texts: task.prepare(texts).costs), count, quiet=quiet)
    elif not write_texts(path, own_texts(asked.source, asked.text, count), count, quiet=quiet):
        raise SourceError(f"{asked.source}: no row has a text in {asked.text!r}.")


def _run(asked: EmbedBench, kind: str, source: Path, out: Path, *, quiet: bool) -> tuple[Run, EmbedResult]:
    machine = describe_machine()
    with Watch([g.visible for g in gpus()] if kind == "cuda" else []) as watch:
        run = embed(
            str(source),
            text="text",
            id="id",
            out=out,
            model=asked.model,
            device="all" if asked.device == "all" else kind,
            workers=asked.workers,
            batch_tokens=asked.batch_tokens,
            precision=asked.precision,
            quiet=quiet,
        )
    return run, measure(run, asked, kind, machine, watch, quiet=quiet)


def measure(
    run: Run, asked: EmbedBench, kind: str, machine: Machine, watch: Watch, *, quiet: bool = True
) -> EmbedResult:
    """Read the records of a complete run, and verify it."""
    commits, workers = list(run.ledger.commits.read().values()), run.ledger.workers.read()
    began, ended = min(w["began"] for w in workers), max(c.finished_at for c in commits)
    work_s, rows, tokens = ended - began, sum(c.rows for c in commits), sum(c.tokens for c in commits)
    stages = {name: sum(c.timings[name] for c in commits) / len(workers) for name in STAGES}
    loads = [w["load"] for w in workers if w["load"]]
    padded, pairs = (sum(load[name] for load in loads) for name in ("padded_tokens", "token_pairs"))
    computed_on = "all" if asked.device == "all" else kind
    peak_share, peak_note = _share_of_peak(asked.model, computed_on, len(workers), tokens, pairs, work_s)
    idle_s, idle_between_s = (mean(w[name] for w in workers) for name in ("idle_s", "idle_between_s"))
    proof = run.verify(quiet=quiet)
    return EmbedResult(
        machine=machine,
        model=run.plan.fingerprint.get("model", asked.model),
        device=workers[0]["device"],
        workers=len(workers),
        kernel=" ".join(dict.fromkeys(note for w in workers for note in w["notes"])),
        source=asked.source or MADE_TEXTS,
        texts=rows,
        tokens=tokens,
        truncated=sum(c.truncated for c in commits),
        errors=sum(c.errors for c in commits),
        shards=len(commits),
        batches=sum(load["batches"] for load in loads),
        start_s=began - watch.began,
        work_s=work_s,
        docs_per_s=rows / work_s,
        tokens_per_s=tokens / work_s,
        peak_share=peak_share,
        peak_note=peak_note,
        padding_waste=padding_waste(padded, tokens),
        stages=stages,
        idle_s=idle_s,
        idle_between_s=idle_between_s,
        gpu_idle=gpu_idle([w["device_clock"] for w in workers if w.get("device_clock")]),
        gpu_busy=watch.gpu_busy(began, ended),
        peak_rss_bytes=max(w["peak_rss_bytes"] for w in workers),
        bound=find_bound(stages, work_s, idle_s - idle_between_s),
        verified=proof.verified,
        verify_s=proof.seconds,
        verify_checks={check.name: check.seen for check in proof.checks},
    )


def padding_waste(padded_tokens: int, tokens: int) -> float:
    """Padding tokens as a share of real tokens.

    >>> padding_waste(125, 100)
    0.25
    """
    return padded_tokens / tokens - 1 if tokens else 0.0


def gpu_idle(clocks: list[dict[str, float]]) -> float | None:
    """The idle share of the GPUs, from the device clocks of the workers.

    >>> gpu_idle([{"busy_s": 9.0, "idle_s": 1.0}])
    0.1
    """
    idle_s, busy_s = (sum(clock[name] for clock in clocks) for name in ("idle_s", "busy_s"))
    return idle_s / (idle_s + busy_s) if clocks and idle_s + busy_s else None


def _share_of_peak(
    model: str, kind: str, workers: int, tokens: int, pairs: int, work_s: float
) -> tuple[float | None, str]:
    """The model's arithmetic as a share of the GPUs' peak with a note, or None with the reason."""
    if kind != "cuda":
        return None, "the peak of a CPU is unknown"
    used = gpus()[:workers]
    peaks = [peak_tflops(gpu.name) for gpu in used]
    known = [peak for peak in peaks if peak is not None]
    if len(known) < len(peaks):
        return None, f"the peak of {used[0].name} is unknown"
    folder = read_folder(find_model(model).path)
    flops = count_arithmetic(folder.config, stored_shapes(folder)).flops(tokens, pairs)
    return flops / work_s / (sum(known) * 1e12), f"of {sum(known):,.0f} TFLOP/s, dense half precision"


def _first_vectors(run: Run, count: int) -> NDArray[np.float32]:
    """The vectors of the first rows, 0 for a row without one."""
    found: list[NDArray[np.float32]] = []
    for batch in run.batches(["embedding"]):
        column = batch.column("embedding")
        rows = np.zeros((len(column), column.type.list_size), np.float32)
        rows[column.is_valid().to_numpy(zero_copy_only=False)] = vectors(column.drop_null())
        found.append(rows)
        if sum(map(len, found)) >= count:
            break
    return np.concatenate(found)[:count]
