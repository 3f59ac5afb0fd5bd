"""sentence-transformers on the same texts in this process, at its default settings and at candidates for its best."""

from __future__ import annotations

import gc
import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.console import Bar
from shardmill.core.errors import ShardmillError

Vectors = NDArray[Any]

NAME = "sentence-transformers"
DEFAULT_BATCH = 32
MOST_TEXTS = {"cpu": 500, "cuda": 10_000}
COMPARED_TEXTS = 256
_CPU_BATCHES = (16, 32, 64)
_GPU_BATCHES = (64, 256, 1024)
_PROBE_WIDTH = 256
_PROBE_RUNS = 5


@dataclass(frozen=True, slots=True)
class Peer:
    """The result of one setting of a peer; if it could not run, `reason` says why."""

    name: str
    batch: int
    default: bool = False
    docs_per_s: float | None = None
    tokens_per_s: float | None = None
    lowest_cosine: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to load the peer's model, tried at each batch size. `obstacle` returns a reason not to try it."""

    name: str
    batches: tuple[int, ...]
    load: Callable[[], Any]
    obstacle: Callable[[], str] = lambda: ""


@dataclass(frozen=True, slots=True)
class Compared:
    """The peers, and the plain float32 vectors that all others are compared with."""

    peers: tuple[Peer, ...]
    expected: Vectors


def run_peers(model: str, device: str, texts: Sequence[str], tokens: int, *, quiet: bool = True) -> Compared:
    """Run every setting over the texts, which have `tokens` tokens in total. The first is the default, in float32."""
    ways = list(_gpu_ways(model) if device == "cuda" else _cpu_ways(model))
    total = sum(len(way.batches) for way in ways)
    peers: list[Peer] = []
    expected: Vectors | None = None
    with Bar("peers", quiet=quiet) as bar:
        for way in ways:
            loaded, reason = _load(way)
            for batch in way.batches if loaded is not None else ():
                bar.at(len(peers) / total, f"{way.name}, batch {batch}")
                peer, vectors = _measure(loaded, way.name, batch, texts, tokens, expected)
                peers.append(replace(peer, default=not peers))
                expected = vectors if expected is None else expected
            if loaded is None:
                peers.append(Peer(way.name, way.batches[0], reason=reason))
            if expected is None:
                raise ShardmillError(f"{NAME} cannot run this model: {peers[0].reason}", hint="Leave --peers out.")
            del loaded
            _free_memory(device)
        bar.at(1.0, f"{len(peers)} settings")
    assert expected is not None
    return Compared(tuple(peers), expected)


def lowest_cosine(seen: Vectors, expected: Vectors) -> float:
    """The lowest cosine between the rows of two results.

    >>> lowest_cosine(np.eye(2), np.eye(2))
    1.0
    """
    a, b = np.asarray(seen, np.float64), np.asarray(expected, np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-30)).min())


def _load(way: _Way) -> tuple[Any, str]:
    """The loaded model, or None and the reason."""
    if obstacle := way.obstacle():
        return None, obstacle
    try:
        return _quietly(way.load), ""
    except Exception as error:
        return None, _reason(error)


def _measure(
    loaded: Any, name: str, batch: int, texts: Sequence[str], tokens: int, expected: Vectors | None
) -> tuple[Peer, Vectors | None]:
    try:
        _encode(loaded, texts[: 2 * batch], batch)
        began = time.perf_counter()
        vectors = _encode(loaded, texts, batch)
        took = time.perf_counter() - began
    except Exception as error:
        return Peer(name, batch, reason=_reason(error)), None
    few = vectors[:COMPARED_TEXTS]
    cosine = lowest_cosine(few, few if expected is None else expected)
    return Peer(name, batch, False, len(texts) / took, tokens / took, cosine), few


def _encode(loaded: Any, texts: Sequence[str], batch: int) -> Vectors:
    vectors: Vectors = loaded.encode(list(texts), batch_size=batch, show_progress_bar=False)
    return vectors


def _gpu_ways(model: str) -> Iterator[_Way]:
    import torch

    yield _Way("float32", (DEFAULT_BATCH,), _loader(model, "cuda", dtype=torch.float32))
    yield _Way("float16", _GPU_BATCHES, _loader(model, "cuda", dtype=torch.float16))
    flash = _loader(model, "cuda", dtype=torch.float16, attn_implementation="flash_attention_2")
    yield _Way("float16, flash attention", _GPU_BATCHES, flash)


def _cpu_ways(model: str) -> Iterator[_Way]:
    import torch

    others = (DEFAULT_BATCH, *(b for b in _CPU_BATCHES if b != DEFAULT_BATCH))
    yield _Way("torch float32", others, _loader(model, "cpu", dtype=torch.float32))
    yield _Way("torch bfloat16", _CPU_BATCHES, _loader(model, "cpu", dtype=torch.bfloat16), _slow_bfloat16)
    yield _Way("onnx", _CPU_BATCHES, _loader(model, "cpu", "onnx", provider="CPUExecutionProvider"))
    for precision in _openvino_precisions():
        settings = {"INFERENCE_PRECISION_HINT": precision}
        yield _Way(f"openvino {precision}", _CPU_BATCHES, _loader(model, "cpu", "openvino", ov_config=settings))


def _loader(model: str, device: str, backend: str = "torch", **options: Any) -> Callable[[], Any]:
    def load() -> Any:
        library: Any = importlib.import_module("sentence_transformers")
        loaded = library.SentenceTransformer(model, device=device, backend=backend, model_kwargs=options)
        # A model's dense layers are always loaded in float32, whatever dtype is requested.
        return loaded.to(options["dtype"]) if "dtype" in options else loaded

    return load


def _openvino_precisions() -> tuple[str, ...]:
    try:
        from shardmill.models.openvino import precisions

        return tuple(reversed(precisions()))
    except ShardmillError:
        return ("f32",)


def _slow_bfloat16() -> str:
    """The reason not to try bfloat16 on this CPU, if any: without hardware support it takes hours."""
    import torch

    def seconds(dtype: torch.dtype) -> float:
        matrix = torch.ones(_PROBE_WIDTH, _PROBE_WIDTH, dtype=dtype)
        took = []
        for _ in range(_PROBE_RUNS):
            began = time.perf_counter()
            matrix @ matrix
            took.append(time.perf_counter() - began)
        return min(took)

    ratio = seconds(torch.bfloat16) / seconds(torch.float32)
    return f"this CPU multiplies bfloat16 {ratio:.0f} times slower than float32" if ratio > 1.5 else ""


def _quietly(load: Callable[[], Any]) -> Any:
    from shardmill.models.encoder import quiet

    logger = logging.getLogger("sentence_transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with quiet():
            return load()
    finally:
        logger.setLevel(before)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


def _free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
