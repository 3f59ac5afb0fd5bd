"""The OpenVINO encoder, for CPUs: OpenVINO runs the network; NumPy runs pooling and later steps in float32.

Pooling inside the graph would sum in the lower precision: in f16 the lowest cosine of MiniLM fell from 0.99994 to
0.9994 that way, and nothing was faster.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.batching import plan_batches
from shardmill.core.errors import DeviceOutOfMemory, ModelError
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import LOWEST_TOKEN_COSINES
from shardmill.models.networks.arrays import ArrayNetwork
from shardmill.models.networks.graph import Graph, HalfGatedGraph, build_graph, load_openvino
from shardmill.models.networks.int8 import Int8Graph
from shardmill.models.networks.stored import Reals
from shardmill.models.plain import CpuEncoder, Rows, pad, read_network
from shardmill.models.pooling import Steps, pool
from shardmill.models.sparse.folder import SpladePooling
from shardmill.models.sparse.pooling import pool_logits

_CAPABILITIES = {"BF16": "bf16", "FP16": "f16"}
# The most that was measured: with 2 threads, 2 streams are at least as fast as 1.
_MOST_STREAMS = 2
# Padded tokens that a stream computes at a time: what they need stays in the caches of a core.
_PIECE_TOKENS = 512
# For each shape of a piece both OpenVINO and oneDNN keep code. Their own limits let a worker grow by hundreds of MB.
_MOST_PRIMITIVES = 64
_LIMIT = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
# Tiny networks that were converted from torch gave wrong results on an ARM CPU, even in f32: every one is checked.
_PRECISIONS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
# What OpenVINO calls the products of a network it has compiled.
_PRODUCTS = ("FullyConnected", "MatMul", "Convolution")
_PROBE_TOKENS = (48, 29, 1)


def precisions() -> tuple[str, ...]:
    """The precisions in which this CPU is fast, the most precise last."""
    capable = _core(load_openvino()).get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return *(precision for said, precision in _CAPABILITIES.items() if said in capable), "f32"


class CompiledEncoder(CpuEncoder):
    """A graph compiled for `threads` cores. A batch is cut into small pieces, and each of the `streams` takes the next
    one when it is free."""

    padded = True
    cuts = True

    def __init__(
        self, graph: Any, folder: ModelFolder, *, pad_id: int, threads: int, precision: str, streams: int | None = None
    ) -> None:
        self._pad_id, self._pooling, self._steps = pad_id, folder.pooling, Steps(folder.steps)
        self._streams = min(threads, _MOST_STREAMS) if streams is None else streams
        with explain(folder.transformer.name):
            self._compiled = compile_graph(graph, threads, self._streams, precision)
            # OpenVINO replaces a precision that the CPU lacks.
            self._used = self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
        self._free: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self._streams):
            self._free.put(self._compiled.create_infer_request())
        self._threads = ThreadPoolExecutor(self._streams, "stream")
        self.name = f"openvino {self._used}, {self._streams} stream{'s' if self._streams > 1 else ''}"
        self.precision = _PRECISIONS[self._used]

    def encode(self, rows: Rows, skip: int = 0) -> Reals:
        """One vector per row."""
        return self.begin(rows, skip)()

    def begin(self, rows: Rows, skip: int = 0) -> Callable[[], Reals]:
        """Like `encode`; the streams work until the result is asked for, and go on to what is begun next."""
        pieces = self._cut(rows)
        begun = [self._threads.submit(self._encode_piece, [rows[i] for i in piece], skip) for piece in pieces]

        def finish() -> Reals:
            wait(begun)
            found = np.concatenate([piece.result() for piece in begun])
            vectors = np.empty_like(found)
            vectors[self._places(rows, np.concatenate(pieces))] = found
            return vectors

        return finish

    def _places(self, rows: Rows, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the vectors belong of rows that were computed in this order."""
        if not self._pooling.keeps_tokens:
            return order
        lengths = np.array([len(row) for row in rows])
        starts = np.cumsum(lengths) - lengths
        return np.concatenate([np.arange(starts[row], starts[row] + lengths[row]) for row in order])

    def _cut(self, rows: Rows) -> list[NDArray[np.int64]]:
        """The numbers of the rows of each piece; rows are padded to the longest of theirs."""
        return plan_batches(np.array([len(row) for row in rows]), _PIECE_TOKENS)

    def _encode_piece(self, rows: Rows, skip: int) -> Reals:
        ids, mask = pad(rows, self._pad_id)
        request = self._free.get()
        try:
            with allocation_guard():
                request.infer(self._given(ids, mask))
                return self._steps(self._pool(request, mask, skip))
        finally:
            self._free.put(request)

    def _given(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Any:
        """What the graph is given."""
        return ids, mask

    def _pool(self, request: Any, mask: NDArray[np.int64], skip: int) -> Reals:
        """One vector per row of what a request computed."""
        made = request.get_output_tensor().data
        if isinstance(self._pooling, SpladePooling):
            return pool_logits(made, mask, self._pooling)
        return pool(made, mask, self._pooling, skip)


class Int8Encoder(CompiledEncoder):
    """A described network whose layers multiply in 8 bits, and all else in float32."""

    def __init__(self, folder: ModelFolder, *, pad_id: int, threads: int, limit: int | None = None) -> None:
        network, weights = read_network(folder)
        name = folder.transformer.name
        with explain(name):
            graph = build_graph(network, weights, limit=limit, operations=Int8Graph)
        super().__init__(graph, folder, pad_id=pad_id, threads=threads, precision="f32")
        if not _multiplies_bytes(self._compiled):
            raise ModelError(f"OpenVINO does not compute {name} in 8 bits on this CPU.")
        self.name = self.name.replace(self._used, "int8", 1)
        self.precision = "int8"
        weights.let_go()


class OpenVinoEncoder(CompiledEncoder):
    """A described network, compared with NumPy's unless it was `tried` before."""

    def __init__(
        self,
        folder: ModelFolder,
        *,
        pad_id: int,
        threads: int,
        precision: str,
        limit: int | None = None,
        streams: int | None = None,
        tried: bool = False,
    ) -> None:
        network, weights = read_network(folder)
        name = folder.transformer.name
        gated = any(layer.feed.gate is not None for layer in network.layers)
        operations = HalfGatedGraph if gated and precision != "f32" else Graph
        with explain(name):
            graph = build_graph(network, weights, limit=limit, operations=operations)
        super().__init__(graph, folder, pad_id=pad_id, threads=threads, precision=precision, streams=streams)
        if not tried:
            known = weights.shape(network.words)[0]
            with explain(name):
                cosine = _lowest_cosine(self._compiled, ArrayNetwork(network, weights), pad_id, known)
            if not cosine >= LOWEST_TOKEN_COSINES[self.precision]:
                raise ModelError(f"OpenVINO computes {name} wrongly: in {self._used} a cosine is {cosine:.5f}.")
        # OpenVINO keeps most weights in an order of its own.
        weights.let_go()


@contextlib.contextmanager
def explain(model: str, hint: str = "") -> Iterator[None]:
    """What OpenVINO says of a model that it cannot run, as a ModelError."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"OpenVINO cannot run {model}: {reason[0][:200]}", hint=hint) from error


def compile_graph(graph: Any, threads: int, streams: int, precision: str) -> Any:
    """The graph for `threads` cores, which `streams` requests share."""
    with _few_primitives():
        return _core(load_openvino()).compile_model(
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
                "CPU_RUNTIME_CACHE_CAPACITY": _MOST_PRIMITIVES,
            },
        )


@contextlib.contextmanager
def _few_primitives() -> Iterator[None]:
    """Limit what oneDNN, inside OpenVINO, keeps: it reads the variable once, when it compiles first. Torch has a oneDNN
    of its own, which is left as it is."""
    before = os.environ.get(_LIMIT)
    os.environ.setdefault(_LIMIT, str(_MOST_PRIMITIVES))
    try:
        yield
    finally:
        if before is None:
            # Another thread that compiles may have taken it out.
            os.environ.pop(_LIMIT, None)


def _lowest_cosine(compiled: Any, plain: ArrayNetwork, pad_id: int, known: int) -> float:
    """The lowest cosine between the hidden states of the compiled network and of NumPy's, over real tokens."""
    random = np.random.default_rng(0)
    ids, mask = pad([random.integers(known, size=n, dtype=np.int32) for n in _PROBE_TOKENS], pad_id)
    expected, seen = plain(ids, mask)[mask > 0], compiled((ids, mask))[0][mask > 0]
    lengths = np.linalg.norm(seen, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((seen * expected).sum(axis=1) / np.maximum(lengths, 1e-30)).min())


def _multiplies_bytes(compiled: Any) -> bool:
    """Whether the compiled graph has a product of bytes: without one, the rounding alone would be computed."""
    said = (node.get_rt_info() for node in compiled.get_runtime_model().get_ops())
    kinds = ((_text(about, "layerType"), _text(about, "runtimePrecision")) for about in said)
    return any(kind in _PRODUCTS and precision in ("i8", "u8") for kind, precision in kinds)


def _text(about: Any, key: str) -> str:
    if key not in about:
        return ""
    value = about[key]
    return str(value.astype(str) if hasattr(value, "astype") else value)


def read_graph(file: Path) -> Any:
    """The graph in an ONNX or OpenVINO file."""
    return _core(load_openvino()).read_model(str(file))


@cache
def _core(library: Any) -> Any:
    """One core per process: it must outlive the models it compiled."""
    return library.Core()


@contextlib.contextmanager
def allocation_guard() -> Iterator[None]:
    """What OpenVINO says of memory that it does not get, as a DeviceOutOfMemory."""
    try:
        yield
    except MemoryError as error:
        raise DeviceOutOfMemory("The batch does not fit in memory.") from error
    except RuntimeError as error:
        if "alloc" in str(error):
            raise DeviceOutOfMemory("The batch does not fit in memory.") from error
        raise
