"""How much memory a batch takes, found by a few small probes and remembered, and the batch budget that follows from it.

model = learn_model(key, measure_cuda(kernel.encode, token_id=7), padded=kernel.padded, longest=512)
budget = model.budget(free_cuda_bytes(sharing=4), longest=512, most=65536, padded=kernel.padded)
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.errors import DeviceOutOfMemory

# Probes stay this small, so that they neither take long nor crowd out whoever shares the device.
_PROBE_LENGTH = 2048
_PROBE_TOKENS = 8192
# Peaks count what was asked for. torch's allocator rounds that up, and keeps blocks of one shape that fit no other.
_SLACK = 1.2
# What is free now is not all ours: libraries, and workers that start later, take some of it outside of any batch.
_USABLE = 0.85
# Which of (fixed, token, pair) are above nought. Where several explain the probes as well, the first is taken:
# one probe alone is laid to the tokens, for laid to the fixed part it would allow batches without end.
_SUPPORTS = ((1,), (0, 1), (1, 2), (2,), (0, 2), (0, 1, 2), (0,))
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Probe:
    """What a batch of so many texts of so many tokens took at its peak."""

    rows: int
    length: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Key:
    """What a model of memory holds for. `longest` is part of it: probes are no longer than the texts to come."""

    device: str
    dtype: str
    kernel: str
    model: str
    libraries: str
    longest: int


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Bytes of a batch: a fixed part, some for each token, and some for each pair of tokens of one text."""

    fixed_bytes: float
    token_bytes: float
    pair_bytes: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in astuple(self)):
            raise ValueError(f"not a model of memory: {self}")

    def bytes(self, rows: int, length: int) -> float:
        return self.fixed_bytes + rows * length * (self.token_bytes + self.pair_bytes * length)

    def budget(self, free_bytes: float, *, longest: int, most: int, padded: bool) -> int:
        """The largest budget, up to `most`, under which no batch of several texts takes more than `free_bytes`.

        A text alone is run whatever it takes, so the budget is at least 1.

        >>> MemoryModel(100, 10, 0).budget(1000, longest=8, most=4096, padded=False)
        90
        >>> MemoryModel(100, 10, 1).budget(1000, longest=8, most=4096, padded=True)
        55
        """
        room = free_bytes - self.fixed_bytes
        if room < 0:
            return 1
        # A packed batch is so many texts of one token, each of which attends to no more than the longest text.
        lengths = np.arange(1, max(1, min(longest, most // 2)) + 1) if padded else np.ones(1)
        text_bytes = lengths * (self.token_bytes + self.pair_bytes * (lengths if padded else longest))
        too_many = np.floor(room / np.maximum(text_bytes, 1e-9)) + 1
        return int(max(1, min(most, (np.maximum(too_many, 2) * lengths).min() - 1)))


def fit(probes: Sequence[Probe], *, padded: bool = True) -> MemoryModel:
    """The model nearest to the probes by least squares with nothing below nought; unless padded, pairs cost nothing."""
    rows, length, peak = np.array([astuple(probe) for probe in probes], np.float64).T
    columns = np.stack([np.ones(len(rows)), rows * length, rows * length**2], axis=1)
    scale = columns.max(axis=0)
    size = float(np.linalg.norm(peak))
    best, error = np.zeros(3), size
    # Three unknowns leave seven choices of which are above nought; the best of the seven is the answer.
    for support in _SUPPORTS:
        chosen = list(support)
        part = columns[:, chosen] / scale[chosen]
        found = np.linalg.lstsq(part, peak, rcond=None)[0]
        left = float(np.linalg.norm(part @ found - peak))
        if (padded or 2 not in support) and (found >= 0).all() and left < error - 1e-9 * size:
            best, error = np.zeros(3), left
            best[chosen] = found / scale[chosen]
    return MemoryModel(*best.tolist())


def find_model(measure: Callable[[int, int], int], *, padded: bool, longest: int) -> MemoryModel:
    """Fit a model to a few probes: `measure(rows, length)` says what a batch takes, or raises DeviceOutOfMemory.

    The model lies above every probe, with some slack.
    """
    probes: list[Probe] = []
    tried: set[tuple[int, int]] = set()
    for rows, length in _shapes(padded, longest):
        while (rows, length) not in tried:
            tried.add((rows, length))
            try:
                probes.append(Probe(rows, length, measure(rows, length)))
            except DeviceOutOfMemory:
                if not probes:
                    raise
                rows, length = (rows // 2, length) if rows > 1 else (1, max(probes[0].length, length // 2))
    model = fit(probes, padded=padded)
    missing = max(0.0, *(probe.peak_bytes - model.bytes(probe.rows, probe.length) for probe in probes))
    return MemoryModel((model.fixed_bytes + missing) * _SLACK, model.token_bytes * _SLACK, model.pair_bytes * _SLACK)


def _shapes(padded: bool, longest: int) -> list[tuple[int, int]]:
    """The smallest first: one text, as many tokens in short texts as in long ones, and one long text."""
    long = max(1, min(longest, _PROBE_LENGTH))
    short = max(1, long // 8)
    one_long = [(1, long)] if padded else []
    return [(1, short), *one_long, (_PROBE_TOKENS // short, short), (_PROBE_TOKENS // long, long)]


def learn_model(key: Key, measure: Callable[[int, int], int], *, padded: bool, longest: int) -> MemoryModel:
    """The model that is remembered for `key`, or else one found now and remembered."""
    model = recall(key)
    if model is None:
        model = find_model(measure, padded=padded, longest=longest)
        remember(key, model)
    return model


def recall(key: Key) -> MemoryModel | None:
    """What was remembered for `key`; a file that is missing or broken holds nothing."""
    try:
        return MemoryModel(*_read()[_name(key)])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def remember(key: Key, model: MemoryModel) -> None:
    """Keep `model` in the user's cache folder, beside what other workers keep there; where that cannot be, do not."""
    import fcntl

    with contextlib.suppress(OSError, RuntimeError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".lock"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            models = {**_read(), _name(key): astuple(model)}
            staged = path.with_suffix(".partial")
            staged.write_text(json.dumps({"version": _VERSION, "models": models}, indent=1))
            os.replace(staged, path)


def _path() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "shardmill" / "memory.json"


def _name(key: Key) -> str:
    return json.dumps(astuple(key))


def _read() -> dict[str, Any]:
    try:
        held = json.loads(_path().read_bytes())
        return dict(held["models"]) if held["version"] == _VERSION else {}
    except (OSError, RuntimeError, LookupError, TypeError, ValueError):
        return {}


def measure_cuda(run: Callable[[list[NDArray[np.int32]]], object], *, token_id: int) -> Callable[[int, int], int]:
    """A `measure` for this process's GPU: what `run` takes at its peak beyond what was held before, weights above all.

    `run` gives back when the device is done. Its first run of a shape does not count: libraries take their workspaces.
    """
    import torch

    def measure(rows: int, length: int) -> int:
        batch = [np.full(length, token_id, np.int32)] * rows
        run(batch)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(batch)
        return max(0, torch.cuda.max_memory_allocated() - before)

    return measure


def free_cuda_bytes(sharing: int) -> int:
    """What one of `sharing` workers may use of what is free on the GPU now, whoever holds the rest."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(_USABLE * (free + unused) / max(1, sharing))
