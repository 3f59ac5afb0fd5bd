"""The memory use of a batch, measured with a few small probes and cached, and the batch budget that follows from it.

model = learn_model(key, measure_cuda(kernel.encode, token_id=7), padded=kernel.padded, longest=512)
budget = model.budget(free_cuda_bytes(sharing=4), longest=512, most=65536, padded=kernel.padded)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardmill.core.cache import Cache
from shardmill.core.errors import DeviceOutOfMemory
from shardmill.plan.sizing.memory import USABLE, MemoryModel

# Small probes are quick and leave memory to the other users of the device.
_PROBE_LENGTH = 2048
_PROBE_TOKENS = 8192
# Peaks count requested bytes. torch's allocator rounds them up, and keeps blocks that fit no other shape.
_SLACK = 1.2
# Which of (fixed, token, pair) are above zero. If several explain the probes equally well, the first wins: a single
# probe is attributed to the tokens, since attributing it to the fixed part would allow unlimited batches.
_SUPPORTS = ((1,), (0, 1), (1, 2), (2,), (0, 2), (0, 1, 2), (0,))
_CACHE = Cache("memory.json", "models")


@dataclass(frozen=True, slots=True)
class Probe:
    """The peak memory of a batch of `rows` texts of `length` tokens."""

    rows: int
    length: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryKey:
    """What a memory model applies to. `longest` is part of it, because it limits the length of the probes."""

    device: str
    dtype: str
    kernel: str
    model: str
    libraries: str
    longest: int


def fit(probes: Sequence[Probe], *, padded: bool = True) -> MemoryModel:
    """Fit a model to the probes by non-negative least squares; unless padded, pairs cost nothing."""
    rows, length, peak = np.array([astuple(probe) for probe in probes], np.float64).T
    columns = np.stack([np.ones(len(rows)), rows * length, rows * length**2], axis=1)
    scale = columns.max(axis=0)
    size = float(np.linalg.norm(peak))
    best, error = np.zeros(3), size
    # With three unknowns there are only seven sets of positive ones, so all are tried.
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
    """Fit a model to a few probes: `measure(rows, length)` returns a batch's bytes, or raises DeviceOutOfMemory.

    The model is an upper bound of every probe, with some slack.
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
    """Shapes of probes: one short text, one long text if padded, many short texts, several long texts."""
    long = max(1, min(longest, _PROBE_LENGTH))
    short = max(1, long // 8)
    one_long = [(1, long)] if padded else []
    return [(1, short), *one_long, (_PROBE_TOKENS // short, short), (_PROBE_TOKENS // long, long)]


def learn_model(key: MemoryKey, measure: Callable[[int, int], int], *, padded: bool, longest: int) -> MemoryModel:
    """The cached model for `key`, or a new one, which is then cached."""
    model = recall(key)
    if model is None:
        model = find_model(measure, padded=padded, longest=longest)
        remember(key, model)
    return model


def recall(key: MemoryKey) -> MemoryModel | None:
    """The cached model for `key`; None if there is none, or the cache file is missing or broken."""
    try:
        return MemoryModel(*_CACHE.read()[_name(key)])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def remember(key: MemoryKey, model: MemoryModel) -> None:
    """Keep `model` in the user's cache folder, if that is writable."""
    _CACHE.put(_name(key), astuple(model))


def recall_by_device(model: str) -> dict[str, MemoryModel]:
    """The cached memory models of a model, by device; of several kernels, the one that takes the most."""
    found: dict[str, MemoryModel] = {}
    for name in _CACHE.read():
        with contextlib.suppress(TypeError, ValueError):
            key = MemoryKey(*json.loads(name))
            known = recall(key) if key.model == model else None
            if known and (key.device not in found or known.token_bytes > found[key.device].token_bytes):
                found[key.device] = known
    return found


class WeighedFolder(Protocol):
    """What is known of a model's folder: the place of its weights, and its config.json."""

    @property
    def transformer(self) -> Path: ...
    @property
    def config(self) -> Mapping[str, Any]: ...


def identify_model(folder: WeighedFolder) -> str:
    """A digest of a model's configuration and the sizes of its weights, which determine its memory use."""
    return identify_weights(folder.config, folder.transformer)


def identify_weights(config: Mapping[str, Any], path: Path) -> str:
    """The same for a folder with a config and weights."""
    weights = sorted((f.name, f.stat().st_size) for f in path.glob("*.safetensors"))
    return hashlib.sha256(json.dumps([dict(config), weights], sort_keys=True).encode()).hexdigest()[:16]


def _name(key: MemoryKey) -> str:
    return json.dumps(astuple(key))


def measure_cuda(run: Callable[[list[NDArray[np.int32]]], object], *, token_id: int) -> Callable[[int, int], int]:
    """A `measure` for this process's GPU: the peak of `run` beyond what is already allocated, such as weights.

    `run` returns when the device is done. Its first run of a shape does not count: libraries allocate workspaces then.
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
    """The bytes that one of `sharing` workers may use of the GPU memory that is free now."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return int(USABLE * (free + unused) / max(1, sharing))
