"""The head of an OpenVINO file: the .xml of an IR, whose weights are in the .bin of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shardmill.core.errors import ModelError
from shardmill.models.exported.head import ExportedHead, Tensor

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_KINDS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
# Types of at most eight bits begin so.
_NARROW = ("i8", "u8", "i4", "u4", "u2", "u3", "u6", "nf4", "f8", "f4")


def read_ir(path: Path) -> ExportedHead:
    """Inputs, outputs and stored tensors, and the file of its weights."""
    from xml.etree import ElementTree

    try:
        net = ElementTree.parse(path).getroot()
        layers = {layer.attrib["id"]: layer for layer in net.iterfind("layers/layer")}
        results = {i for i, layer in layers.items() if layer.get("type") == "Result"}
        ends = [edge.attrib for edge in net.iterfind("edges/edge") if edge.attrib["to-layer"] in results]
        outputs = [_port(layers[end["from-layer"]], end["from-port"]) for end in ends]
        inputs = [_port(layer, "0") for layer in layers.values() if layer.get("type") == "Parameter"]
        weights = [_stored(layer) for layer in layers.values() if layer.get("type") == "Const"]
    except (OSError, ElementTree.ParseError, KeyError, ValueError, StopIteration) as error:
        raise ModelError(
            f"{path} cannot be read as OpenVINO's: {error or type(error).__name__}.", hint="Fetch the model again."
        ) from error
    return ExportedHead(tuple(inputs), tuple(outputs), tuple(weights), (path.with_suffix(".bin").name,))


def _port(layer: Element, number: str) -> Tensor:
    port = next(port for port in layer.iterfind("output/port") if port.get("id") == number)
    names = tuple(filter(None, port.get("names", "").split(",")))
    # Of a tensor whose rank is open, nothing is said.
    shape = tuple(int(dim.text or -1) for dim in port.iterfind("dim")) or None
    return Tensor(names or (layer.get("name", ""),), _kind(port.get("precision", "")), shape)


def _stored(layer: Element) -> Tensor:
    data = next(layer.iterfind("data"))
    shape = tuple(int(size) for size in _sizes(data.get("shape", "")))
    return Tensor((layer.get("name", ""),), _kind(data.get("element_type", "")), shape)


def _sizes(said: str) -> Iterator[str]:
    return filter(None, (size.strip() for size in said.split(",")))


def _kind(said: str) -> str:
    """Its name in a layer is f16, at a port FP16."""
    said = said.lower().replace("fp", "f")
    return _KINDS.get(said, "int8" if said.startswith(_NARROW) else "")
