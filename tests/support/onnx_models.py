"""Model folders whose network is an ONNX or OpenVINO file, made from the described network of a folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.models.folder import read_folder
from shardmill.models.networks.arrays import UNSEEN, part_of
from shardmill.models.networks.description import Attention, Linear, Norm
from shardmill.models.networks.forward import Operations, run
from shardmill.models.networks.graph import build_graph, load_openvino
from shardmill.models.networks.stored import StoredWeights
from shardmill.models.plain import read_network
from tests.support.libraries import needed


def copy_without_weights(folder: Path, to: Path, *, modules: bool = True) -> Path:
    """All of a model but its weights; without `modules`, as fastembed's folders are."""
    left_out = ["*.safetensors", *([] if modules else ["modules.json", "*_Pooling", "*_Normalize", "*sentence*"])]
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns(*left_out))
    return to


def write_ir(folder: Path, path: Path) -> Path:
    """The network of a folder as OpenVINO writes it."""
    graph = build_graph(*read_network(read_folder(folder)))
    graph.output(0).get_tensor().set_names({"last_hidden_state"})
    path.parent.mkdir(exist_ok=True)
    load_openvino().save_model(graph, str(path), compress_to_fp16=False)
    return path


def write_onnx(
    folder: Path,
    path: Path,
    *,
    int8: bool = False,
    sentences: bool = False,
    inputs: Sequence[str] = ("input_ids", "attention_mask"),
    sizes: Sequence[str | int] = ("rows", "tokens"),
    output: str = "",
    outside: str = "",
) -> Path:
    """The network of a folder as ONNX, `int8` as it is usually quantised; `sentences` gives means, not tokens.

    `outside` names a file for the weights.
    """
    onnx = needed("onnx")
    network, weights = read_network(read_folder(folder))
    on = OnnxGraph(weights, int8)
    made = run(network, on, "input_ids", "attention_mask", "token_type_ids" if "token_type_ids" in inputs else None)
    if sentences:
        made = on.mean(made, "attention_mask")
    output = on.node("Identity", made, name=output or ("sentence_embedding" if sentences else "last_hidden_state"))
    helper, kinds = onnx.helper, onnx.TensorProto
    given = [helper.make_tensor_value_info(name, kinds.INT64, sizes) for name in inputs]
    shape = ["rows", *([] if sentences else ["tokens"]), weights.shape(network.words)[1]]
    result = helper.make_tensor_value_info(output, kinds.FLOAT, shape)
    graph = helper.make_graph(on.nodes, "tiny", given, [result], on.stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.parent.mkdir(exist_ok=True)
    if outside:
        path.with_name(outside).unlink(missing_ok=True)
        onnx.save_model(model, str(path), save_as_external_data=True, location=outside, size_threshold=0)
    else:
        onnx.save_model(model, str(path))
    return path


class OnnxGraph(Operations[str]):
    """Values are names; each operation adds nodes."""

    def __init__(self, weights: StoredWeights, int8: bool) -> None:
        self._onnx = needed("onnx")
        self._get, self._int8 = weights.__getitem__, int8
        self.nodes: list[Any] = []
        self.stored: list[Any] = []

    def node(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> Any:
        first = name or f"{kind}_{len(self.nodes)}"
        made = [first, *(f"{first}_{i}" for i in range(1, outputs))]
        self.nodes.append(self._onnx.helper.make_node(kind, inputs, made, **attributes))
        return made if outputs > 1 else first

    def store(self, array: Any, name: str = "") -> str:
        name = name or f"stored_{len(self.stored)}"
        if name not in {each.name for each in self.stored}:
            self.stored.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def look_up(self, table: str, ids: str | None) -> str:
        first = self.store(np.zeros(1, np.int64))
        return self.node("Gather", self.store(self._get(table), table), first if ids is None else ids)

    def positions(self, ids: str, after: int | None) -> str:
        one = self.store(np.int64(1))
        if after is None:
            ones = self.node("Add", self.node("Mul", ids, self.store(np.int64(0))), one)
            return self.node("Sub", self.node("CumSum", ones, one), one)
        other = self.node("Not", self.node("Equal", ids, self.store(np.int64(after))))
        there = self.node("Cast", other, to=self._onnx.TensorProto.INT64)
        return self.node("Add", self.node("Mul", self.node("CumSum", there, one), there), self.store(np.int64(after)))

    def add(self, a: str, b: str) -> str:
        return self.node("Add", a, b)

    def multiply(self, a: str, b: str) -> str:
        return self.node("Mul", a, b)

    def linear(self, x: str, by: Linear) -> str:
        weight, bias = part_of(self._get, by)
        product = self._product_of_int8(x, weight.T) if self._int8 else self.node("MatMul", x, self.store(weight.T))
        return product if bias is None else self.add(product, self.store(bias))

    def _product_of_int8(self, x: str, weight: NDArray[np.float32]) -> str:
        """With one scale for the weights, and one for all numbers of the batch: padding and neighbours count."""
        scale = np.float32(np.abs(weight).max() / 127)
        rounded, scale_x, zero_x = self.node("DynamicQuantizeLinear", x, outputs=3)
        stored = self.store(np.rint(weight / scale).astype(np.int8))
        product = self.node("MatMulInteger", rounded, stored, zero_x, self.store(np.int8(0)))
        whole = self.node("Cast", product, to=self._onnx.TensorProto.FLOAT)
        return self.node("Mul", whole, self.node("Mul", scale_x, self.store(scale)))

    def norm(self, x: str, by: Norm) -> str:
        assert by.centred
        bias = [self.store(self._get(by.bias), by.bias)] if by.bias else []
        return self.node("LayerNormalization", x, self.store(self._get(by.weight), by.weight), *bias, epsilon=by.eps)

    def activate(self, x: str, name: str) -> str:
        if name == "tanh":
            return self.node("Tanh", x)
        assert name == "gelu"
        erf = self.node("Erf", self.node("Mul", x, self.store(np.float32(0.5**0.5))))
        half = self.node("Mul", x, self.store(np.float32(0.5)))
        return self.node("Mul", half, self.node("Add", erf, self.store(np.float32(1))))

    def attend(self, query: str, key: str, value: str, how: Attention, mask: str) -> str:
        assert not how.theta
        assert how.reach < 0
        assert how.buckets is None
        width = len(part_of(self._get, how.query)[0]) // how.heads
        shape = self.store(np.array([0, 0, how.heads, width]))
        query, key, value = (
            self.node("Transpose", self.node("Reshape", x, shape), perm=perm)
            for x, perm in ((query, [0, 2, 1, 3]), (key, [0, 2, 3, 1]), (value, [0, 2, 1, 3]))
        )
        scores = self.node("Mul", self.node("MatMul", query, key), self.store(np.float32(how.scale)))
        away = self.node("Sub", self.store(np.float32(1)), self._floats(mask, [1, 2]))
        scores = self.node("Add", scores, self.node("Mul", away, self.store(np.float32(UNSEEN))))
        seen = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        flat = self.store(np.array([0, 0, how.heads * width]))
        return self.node("Reshape", self.node("Transpose", seen, perm=[0, 2, 1, 3]), flat)

    def _floats(self, mask: str, axes: list[int]) -> str:
        more = self.node("Unsqueeze", mask, self.store(np.array(axes)))
        return self.node("Cast", more, to=self._onnx.TensorProto.FLOAT)

    def first(self, x: str) -> str:
        return self.node("Gather", x, self.store(np.int64(0)), axis=1)

    def mean(self, x: str, mask: str) -> str:
        there = self._floats(mask, [2])
        axis = self.store(np.array([1]))
        total = self.node("ReduceSum", self.node("Mul", x, there), axis, keepdims=0)
        return self.node("Div", total, self.node("ReduceSum", there, axis, keepdims=0))


def say_pooling(folder: Path, mode: str, width: int, *, normalize: bool = True) -> Path:
    """The files that say how the vectors of tokens become one, as docs/embed.md tells to write them."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    said = {"word_embedding_dimension": width, "pooling_mode": mode}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    return folder
