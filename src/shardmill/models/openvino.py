"""The OpenVINO encoder, for CPUs: OpenVINO runs the transformer; torch runs pooling and later steps in float32.

Pooling inside the graph would sum in the lower precision: in f16 the lowest cosine of MiniLM fell from 0.99994 to
0.9994 that way, and nothing was faster.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardmill.core.errors import DeviceOutOfMemory, ModelError, missing_extra
from shardmill.models.encoder import apply_step, load_step, load_transformer, memory_guard, pool, quiet
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import LOWEST_TOKEN_COSINES

_CAPABILITIES = {"BF16": "bf16", "FP16": "f16"}
# The most that was measured: with 2 threads, 2 streams are at least as fast as 1.
_MOST_STREAMS = 2
# Tiny Qwen3, ModernBERT, MPNet and T5 gave wrong results on an ARM CPU, even in f32: every compiled model is checked.
_PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_PROBE_TOKENS = (48, 29, 1)


def precisions() -> tuple[str, ...]:
    """The precisions in which this CPU is fast, the most precise last."""
    capable = _core(_load_library()).get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return *(precision for said, precision in _CAPABILITIES.items() if said in capable), "f32"


class OpenVinoEncoder:
    """A model compiled for `threads` cores; each of the `streams` runs a part of the batch."""

    padded = True

    def __init__(
        self, folder: ModelFolder, *, pad_id: int, threads: int, precision: str, streams: int | None = None
    ) -> None:
        library = _load_library()
        self._pad_id = pad_id
        self._pooling = folder.pooling
        self._steps = folder.steps
        self._streams = min(threads, _MOST_STREAMS) if streams is None else streams
        with quiet(), memory_guard():
            self._layers = [load_step(step) for step in folder.steps]
            transformer = _Transformer(load_transformer(folder, "sdpa"))
            try:
                compiled = _compile(library, transformer, threads, self._streams, precision)
                # OpenVINO replaces a precision that the CPU lacks.
                used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
                cosine = _lowest_cosine(compiled, transformer, pad_id)
            except Exception as error:
                reason = str(error).strip().splitlines() or [type(error).__name__]
                raise ModelError(
                    f"OpenVINO cannot convert {folder.transformer.name}: {reason[0][:200]}", hint="torch can run it."
                ) from error
        if not cosine >= LOWEST_TOKEN_COSINES[_PRECISIONS[used]]:
            raise ModelError(
                f"OpenVINO cannot convert {folder.transformer.name}: in {used} a cosine is {cosine:.5f}.",
                hint="torch can run it.",
            )
        self._compiled = compiled
        self._requests = [compiled.create_infer_request() for _ in range(self._streams)]
        self.name = f"openvino {used}, {self._streams} stream{'s' if self._streams > 1 else ''}"
        self.precision = _PRECISIONS[used]

    def begin(self, rows: Sequence[NDArray[np.int32]], skip: int = 0) -> Callable[[], NDArray[np.float32]]:
        """Like `encode`, and finished when this returns, because no core is free to continue in the background."""
        vectors = self.encode(rows, skip)
        return lambda: vectors

    def encode(self, rows: Sequence[NDArray[np.int32]], skip: int = 0) -> NDArray[np.float32]:
        """One vector per row; the rows of each part are padded to its longest."""
        lengths = np.array([len(row) for row in rows])
        parts = [_pad(rows[part], self._pad_id) for part in split_evenly(lengths, self._streams)]
        with _allocation_guard(), contextlib.ExitStack() as running:
            for request, (ids, mask) in zip(self._requests, parts, strict=False):
                request.start_async((ids, mask))
                running.callback(request.wait)
        with memory_guard(), torch.inference_mode():
            pooled = [
                pool(
                    torch.from_numpy(request.get_output_tensor().data),
                    torch.from_numpy(mask),
                    self._pooling,
                    0 if self._pooling.include_prompt else skip,
                )
                for request, (_, mask) in zip(self._requests, parts, strict=False)
            ]
            vectors = torch.cat(pooled)
            for step, layer in zip(self._steps, self._layers, strict=True):
                vectors = apply_step(step, layer, vectors)
            result: NDArray[np.float32] = vectors.numpy()
        return result


def split_evenly(lengths: NDArray[np.int64], parts: int) -> list[slice]:
    """Split rows into at most `parts` non-empty slices with about the same number of tokens.

    >>> split_evenly(np.array([9, 4, 3, 2]), 2)
    [slice(0, 1, None), slice(1, 4, None)]
    """
    ends = np.cumsum(lengths)
    inner = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts) + 1
    edges = np.unique([0, *inner.tolist(), len(lengths)])
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def _pad(rows: Sequence[NDArray[np.int32]], pad_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.array([len(row) for row in rows])
    real = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(real.shape, pad_id, np.int64)
    ids[real] = np.concatenate(rows)
    return ids, real.astype(np.int64)


class _Transformer(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=True, use_cache=False
        ).last_hidden_state
        return hidden


def _compile(library: Any, transformer: _Transformer, threads: int, streams: int, precision: str) -> Any:
    ids = torch.ones(2, 8, dtype=torch.int64)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    with torch.inference_mode():
        graph = library.convert_model(
            transformer, example_input=(ids, mask), input=[library.PartialShape([-1, -1])] * 2
        )
    return _core(library).compile_model(
        graph,
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "THROUGHPUT",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_HYPER_THREADING": True,
            # Pinning would put every worker of a machine on the same cores.
            "ENABLE_CPU_PINNING": False,
        },
    )


def _lowest_cosine(compiled: Any, transformer: _Transformer, pad_id: int) -> float:
    """The lowest cosine between the hidden states of the compiled model and of torch, over real tokens."""
    known = transformer.model.get_input_embeddings().num_embeddings
    random = np.random.default_rng(0)
    ids, mask = _pad([random.integers(known, size=n, dtype=np.int32) for n in _PROBE_TOKENS], pad_id)
    with torch.inference_mode():
        expected = transformer(torch.from_numpy(ids), torch.from_numpy(mask))[mask > 0]
        seen = torch.from_numpy(compiled((ids, mask))[0])[mask > 0]
        return float(torch.cosine_similarity(seen, expected, dim=-1).min())


def _load_library() -> Any:
    # OpenVINO sends usage reports over the network if it can import this module; a None entry disables it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise missing_extra("openvino", "cpu") from error


@cache
def _core(library: Any) -> Any:
    """One core per process: it must outlive the models it compiled."""
    return library.Core()


@contextlib.contextmanager
def _allocation_guard() -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise DeviceOutOfMemory("The batch does not fit in memory.") from error
    except RuntimeError as error:
        if "alloc" in str(error):
            raise DeviceOutOfMemory("The batch does not fit in memory.") from error
        raise
