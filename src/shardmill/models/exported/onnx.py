"""The head of an ONNX file, read without the library: its weights are skipped, and nothing is run.

The file is a protobuf message. The numbers are those of the fields in onnx.proto, which never change.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from shardmill.core.errors import ModelError
from shardmill.models.exported.head import ExportedHead, Tensor

_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_OPERATION = 4
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_EXTERNAL = 1, 2, 8, 13
_KEY, _VALUE = 1, 2
_INPUT_NAME = 1
_INPUT_TYPE = (2, 1)
_ELEMENT, _SHAPE, _DIM, _DIM_SIZE = 1, 2, 1, 1
_KINDS = {1: "float32", 2: "int8", 3: "int8", 10: "float16", 16: "bfloat16", **dict.fromkeys(range(17, 25), "int8")}
# Operations that round the numbers of a batch by one scale.
_BY_BATCH = "DynamicQuantize"

Value = int | memoryview


def read_onnx(path: Path) -> ExportedHead:
    """Inputs, outputs, stored tensors, and the files of weights beside it."""
    try:
        with path.open("rb") as file:
            whole = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graph = _message(next(_find(whole, _GRAPH)))
        weights = [_message(each) for each in _find(graph, _INITIALIZER)]
        stored = tuple(map(_stored, weights))
        # Older files list stored tensors among the inputs.
        known = {tensor.names for tensor in stored}
        inputs = [_described(_message(each)) for each in _find(graph, _INPUT)]
        outputs = [_described(_message(each)) for each in _find(graph, _OUTPUT)]
        outside = dict.fromkeys(name for tensor in weights for name in _files_of(tensor))
        mixes = any(_text(name).startswith(_BY_BATCH) for name in _find(graph, _NODE, _OPERATION))
        return ExportedHead(
            tuple(i for i in inputs if i.names not in known), tuple(outputs), stored, tuple(outside), mixes
        )
    except (OSError, ValueError, IndexError, StopIteration) as error:
        reason = str(error) or "it has no graph"
        raise ModelError(f"{path} cannot be read as ONNX: {reason}.", hint="Fetch the model again.") from error


def _stored(tensor: memoryview) -> Tensor:
    shape: list[int] = []
    for dims in _find(tensor, _TENSOR_DIMS):
        shape += [dims] if isinstance(dims, int) else _numbers(dims)
    kind = next(_find(tensor, _TENSOR_TYPE), 0)
    return Tensor((_text(next(_find(tensor, _TENSOR_NAME), b"")),), _kind(kind), tuple(shape))


def _files_of(tensor: memoryview) -> Iterator[str]:
    """The names of files that hold a tensor's numbers."""
    for entry in _find(tensor, _TENSOR_EXTERNAL):
        said = {number: _text(value) for number, value in _fields(_message(entry))}
        if said.get(_KEY) == "location":
            yield said.get(_VALUE, "")


def _described(value: memoryview) -> Tensor:
    shapes = [_message(shape) for shape in _find(value, *_INPUT_TYPE, _SHAPE)]
    # A size with a name, or with nothing, is open.
    sizes = [next(_find(_message(dim), _DIM_SIZE), -1) for shape in shapes for dim in _find(shape, _DIM)]
    shape = tuple(size if isinstance(size, int) else -1 for size in sizes) if shapes else None
    kind = next(_find(value, *_INPUT_TYPE, _ELEMENT), 0)
    return Tensor((_text(next(_find(value, _INPUT_NAME), b"")),), _kind(kind), shape)


def _find(message: memoryview, number: int, *below: int) -> Iterator[Value]:
    """The values of a field; with further numbers, those of fields inside it."""
    for found, value in _fields(message):
        if found == number and below:
            yield from _find(_message(value), *below)
        elif found == number:
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("a field is of an unknown kind")
        size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(message):
            raise ValueError("it ends too early")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("a number has no end")
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _numbers(packed: memoryview) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def _kind(number: Value) -> str:
    return _KINDS.get(number, "") if isinstance(number, int) else ""


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a field is of another kind")
    return value


def _text(value: Value | bytes) -> str:
    return bytes(value if isinstance(value, bytes) else _message(value)).decode()
