"""How an exported network runs: by OpenVINO, in batches if that changes no vector."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models.exported.encoder import ExportedEncoder, RuntimeEncoder
from shardmill.models.golden import agree
from shardmill.models.installed import check_light
from shardmill.models.kernels import CPU_BUDGETS_TOKENS, Kernel, KernelChoice, Tried, tell
from shardmill.models.networks.stored import Reals
from shardmill.models.openvino import precisions


def choose_exported(model: Tried, device: Device) -> KernelChoice:
    """The fastest way in which each golden sentence gets the vector that it has alone.

    Where ONNX Runtime is installed, OpenVINO is compared with it, and a reference is computed by it.
    """
    model = model.reaching()
    name = model.folder.transformer.name
    check_runs_on(device.kind, name)
    why: list[str] = []
    runtime, by_runtime = _open_runtime(model, device, why) or (None, None)
    if device.reference and runtime is not None:
        return _choice(runtime, ["as asked"])
    together = ExportedEncoder(model.folder, pad_id=model.pad_id, threads=device.threads, precision="f32")
    alone = together.one_by_one()
    if device.reference:
        return _choice(alone, ["as asked", *why])
    expected = alone.encode(model.golden, model.skip)
    if not np.isfinite(expected).all():
        raise ModelError(f"{name} gives NaN or infinity in float32.", hint="Fetch the model again.")
    if runtime is not None and by_runtime is not None and not agree(expected, by_runtime, runtime.precision):
        return _choice(runtime, [f"{alone.name} gave different vectors"])
    if together.mixes:
        return _choice(alone, [*why, "a batch would change its vectors"])
    for kernel in _kernels(model, device, together, why):
        if agree(kernel.encode(model.golden, model.skip), expected, kernel.computed_in):
            return KernelChoice(kernel, tell(kernel, why), CPU_BUDGETS_TOKENS[-1])
        why.append(f"{kernel.name} gave different vectors in a batch")
    return _choice(alone, why)


def check_runs_on(kind: str, name: str) -> None:
    """Refuse a GPU, and a CPU without OpenVINO."""
    if kind != "cpu":
        raise MissingExtra(
            f"{name} has only ONNX or OpenVINO files, which run on CPUs.",
            hint="Say --device cpu, or pass a folder with its safetensors.",
        )
    check_light()


def _open_runtime(model: Tried, device: Device, why: list[str]) -> tuple[RuntimeEncoder, Reals] | None:
    """ONNX Runtime, if it is installed and runs this network, and what it makes of the golden sentences."""
    exported = model.folder.exported
    if exported is None or exported.file.suffix != ".onnx" or find_spec("onnxruntime") is None:
        return None
    try:
        runtime = RuntimeEncoder(model.folder, pad_id=model.pad_id, threads=device.threads)
        return runtime, runtime.encode(model.golden, model.skip)
    except ModelError as error:
        why.append(error.message.rstrip("."))
        return None


def _kernels(model: Tried, device: Device, together: ExportedEncoder, why: list[str]) -> Iterator[ExportedEncoder]:
    """In the precisions that are fast here. What has eight bits is not rounded a second time."""
    rounded = device.precise or together.precision == "int8"
    for precision in () if rounded else precisions()[:-1]:
        try:
            yield ExportedEncoder(model.folder, pad_id=model.pad_id, threads=device.threads, precision=precision)
        except ModelError as error:
            why.append(error.message.rstrip("."))
    yield together


def _choice(kernel: Kernel, why: list[str]) -> KernelChoice:
    return KernelChoice(kernel, tell(kernel, why), CPU_BUDGETS_TOKENS[0])
