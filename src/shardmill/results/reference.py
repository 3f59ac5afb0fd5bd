"""What computed rows are compared with, in words: a proof that checks itself with itself must say so."""

from __future__ import annotations

from collections.abc import Iterable

from shardmill.core.devices import Device
from shardmill.tasks.base import Task

_LIBRARIES = {"torch": "torch", "numpy": "NumPy", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
# Of these there is one way to compute a model, so the same library is no second opinion.
_ONE_WAY = {"openvino"}


def name_reference(task: Task, device: Device, made_by: Iterable[str] = ()) -> str:
    """How an opened task computes rows again. `made_by` are the kernels that made them, as commits name them."""
    library = task.numerics.get("kernel", "").partition(" ")[0]
    by = f" by {_LIBRARIES[library]}" if library in _LIBRARIES else ""
    said = f"in {task.numerics.get('precision', 'float32')}{by} on {device.name}"
    if library in _ONE_WAY and any(kernel.startswith(f"{library} ") for kernel in made_by):
        said += f" (as they were made: nothing but {_LIBRARIES[library]} runs this model here)"
    return said
