"""Exported networks with OpenVINO, and beside it with ONNX Runtime, which shares no code with it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.exported.files import Exported
from shardmill.models.exported.head import Tensor
from shardmill.models.folder import ModelFolder, Pooling
from shardmill.models.golden import lowest_cosine
from shardmill.models.networks.stored import Reals
from shardmill.models.openvino import CompiledEncoder, explain, read_graph
from shardmill.models.plain import CpuEncoder, Rows, pad
from shardmill.models.pooling import Steps, pool
from shardmill.models.tokenizer import first_position

Ints = NDArray[np.int64]
_EXPORT_AGAIN = "Export the model again, or pass a folder with its safetensors."
# Of onnxruntime's names for types, those that inputs have.
_INTEGERS: dict[str, Any] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class ExportedEncoder(CompiledEncoder):
    """A network from a file. If `alone`, each text is computed by itself: some networks let texts of a batch mix."""

    def __init__(self, folder: ModelFolder, *, pad_id: int, threads: int, precision: str) -> None:
        self._exported, self._output = _find_ends(folder)
        with explain(f"{folder.transformer.name}/{self._exported.file.name}", hint=_EXPORT_AGAIN):
            graph = read_graph(self._exported.file)
            self._types = {name: each.element_type.to_dtype() for each in graph.inputs for name in each.names}
        super().__init__(graph, folder, pad_id=pad_id, threads=threads, precision=precision)
        self.computed_in = self.precision
        self.precision = _less_precise(self.precision, self._exported.head.precision)
        self.alone = False

    @property
    def mixes(self) -> bool:
        """Whether a text's vector depends on the other texts of its batch."""
        return self._exported.head.mixes

    def one_by_one(self) -> ExportedEncoder:
        """The same network, each text by itself."""
        other = copy.copy(self)
        other.alone, other.padded = True, False
        other.name = f"{self.name}, one text at a time"
        return other

    def _cut(self, rows: Rows) -> list[Ints]:
        return [np.array([i]) for i in range(len(rows))] if self.alone else super()._cut(rows)

    def _given(self, ids: Ints, mask: Ints) -> Any:
        return {name: given.astype(self._types[name]) for name, given in _inputs(self._exported, ids, mask).items()}

    def _pool(self, request: Any, mask: Ints, skip: int) -> Reals:
        return _pool(request.get_tensor(self._output.names[0]).data, mask, self._pooling, skip)


class RuntimeEncoder(CpuEncoder):
    """A network from an ONNX file, by ONNX Runtime on the CPU, each text by itself."""

    padded = False

    def __init__(self, folder: ModelFolder, *, pad_id: int, threads: int) -> None:
        import onnxruntime

        self._exported, self._output = _find_ends(folder)
        self._pad_id, self._pooling, self._steps = pad_id, folder.pooling, Steps(folder.steps)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Only errors: it warns of much that is usual.
        options.log_severity_level = 3
        with self._explain():
            self._session = onnxruntime.InferenceSession(
                str(self._exported.file), options, providers=["CPUExecutionProvider"]
            )
        self._types = {each.name: _INTEGERS.get(each.type, np.int64) for each in self._session.get_inputs()}
        self.precision = self._exported.head.precision
        self.name = f"onnxruntime {self.precision}"

    def encode(self, rows: Rows, skip: int = 0) -> Reals:
        """One vector per row."""
        return np.concatenate([self._encode_one(row, skip) for row in rows])

    def _encode_one(self, row: NDArray[np.int32], skip: int) -> Reals:
        ids, mask = pad([row], self._pad_id)
        given = {n: each.astype(self._types[n]) for n, each in _inputs(self._exported, ids, mask).items()}
        with self._explain():
            (made,) = self._session.run([self._output.names[0]], given)
        return self._steps(_pool(made, mask, self._pooling, skip))

    @contextlib.contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Its errors have no class of their own that is public.
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ModelError(f"ONNX Runtime cannot run {self._exported.file.name}: {reason[0][:200]}") from error


def _find_ends(folder: ModelFolder) -> tuple[Exported, Tensor]:
    """The network of a folder, and the output that its vectors come from."""
    exported = folder.exported
    assert exported is not None
    counted = any("position_ids" in tensor.names for tensor in exported.head.inputs)
    if counted and first_position(folder):
        raise ModelError(
            f"{folder.transformer.name}/{exported.file.name} wants position_ids, which {folder.config['model_type']} "
            "models count by their padding.",
            hint="Export the model with input_ids and attention_mask only.",
        )
    output = exported.head.tokens if folder.pooling.modes else exported.head.sentences
    assert output is not None
    return exported, output


def _inputs(exported: Exported, ids: Ints, mask: Ints) -> dict[str, Ints]:
    """What the network asks for, by name: the tokens of a text are of one type, and counted from 0."""
    there = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids),
        "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
    }
    return {name: there[name] for tensor in exported.head.inputs for name in tensor.names if name in there}


def _pool(made: NDArray[Any], mask: Ints, pooling: Pooling, skip: int) -> Reals:
    states = np.asarray(made, np.float32)
    return pool(states, mask, pooling, skip) if pooling.modes else states.copy()


def _less_precise(*precisions: str) -> str:
    return min(precisions, key=lowest_cosine)
