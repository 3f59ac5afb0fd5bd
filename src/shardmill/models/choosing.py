"""The choice between the kernels that can run a model on a device: the fastest with correct vectors.

On a CPU, OpenVINO runs the networks that are described, without torch. All else is torch's.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.core.startup import IMPORTING, doing
from shardmill.models.agreed import has_agreed, keep_agreement, name_trial
from shardmill.models.exported.choosing import choose_exported
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import agree
from shardmill.models.installed import check_light, check_torch, has_torch
from shardmill.models.kernels import (
    CPU_BUDGETS_TOKENS,
    TRY_TORCH_FROM_BYTES,
    KernelChoice,
    Tried,
    fast_precisions,
    open_openvino,
    openvino_kernels,
    tell,
)
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.rounded import INT8, check_rounds_here, choose_int8


def choose_kernel(model: Tried, device: Device) -> KernelChoice:
    """Try the device's kernels on the golden sentences, and choose the fastest that agrees with float32."""
    if model.precision:
        check_rounds_here(model.folder, device.kind, model.folder.transformer.name, model.precision)
    if model.precision == INT8:
        return choose_int8(model.reaching(), device)
    if model.folder.exported is not None:
        return choose_exported(model, device)
    with_torch = has_torch()
    if device.kind == "cpu" and not (with_torch and (device.reference or _may_be_faster_with_torch(device))):
        try:
            return _choose_without_torch(model.reaching(), device)
        except MissingExtra:
            if not with_torch:
                raise
        except NotDescribed as error:
            if not with_torch:
                raise error.explain(model.folder.transformer.name) from error
    with doing(IMPORTING):
        check_torch()
        from shardmill.models.torch_kernels import choose_with_torch

    return choose_with_torch(model.reaching(), device)


def choose_static(folder: ModelFolder, device: Device) -> KernelChoice:
    """NumPy, the only way to compute means of token vectors; a reference does it otherwise."""
    from shardmill.models.static.encoder import BATCH_TOKENS, StaticEncoder, StaticReference

    check_static(device.kind, folder.transformer.name)
    kernel = StaticReference(folder) if device.reference else StaticEncoder(folder)
    return KernelChoice(kernel, tell(kernel, ["as asked"] if device.reference else ()), BATCH_TOKENS)


def check_static(kind: str, name: str) -> None:
    """Refuse a GPU for means of token vectors: to read them from memory is all the work there is."""
    if kind != "cpu":
        raise ModelError(f"{name} has static embeddings, which are averaged on the CPU.", hint="Say --device cpu.")


def check_without_torch(folder: ModelFolder) -> None:
    """Refuse a model that cannot run without torch, or for which OpenVINO is missing."""
    from shardmill.models.plain import read_network

    check_light()
    if folder.exported is not None:
        return
    try:
        read_network(folder)
    except NotDescribed as error:
        raise error.explain(folder.transformer.name) from error


def _may_be_faster_with_torch(device: Device) -> bool:
    """Whether torch's bfloat16 may be faster than OpenVINO's, and there is work enough to find out."""
    if device.precise or device.work_bytes < TRY_TORCH_FROM_BYTES:
        return False
    try:
        from shardmill.models.openvino import precisions

        return "bf16" in precisions()
    except MissingExtra:
        return True


def _choose_without_torch(model: Tried, device: Device) -> KernelChoice:
    from shardmill.models.plain import PlainEncoder

    plain = PlainEncoder(model.folder, pad_id=model.pad_id)
    if device.reference:
        return KernelChoice(plain, f"{plain.name} (as asked)", CPU_BUDGETS_TOKENS[0])
    fastest = fast_precisions(device)[0]
    trial = _name_trial(model, device, fastest, plain.name)
    if has_agreed(trial):
        with suppress(ModelError):
            kernel = open_openvino(model, device, fastest, tried=True)
            return KernelChoice(kernel, kernel.name, CPU_BUDGETS_TOKENS[-1])
    expected = plain.encode(model.golden, model.skip)
    if not np.isfinite(expected).all():
        raise ModelError(
            f"{model.folder.transformer.name} gives NaN or infinity in float32.", hint="Fetch the model again."
        )
    why: list[str] = []
    for kernel in openvino_kernels(model, device, why):
        seen = kernel.encode(model.golden, model.skip)
        if agree(seen, expected, kernel.precision, of_tokens=model.folder.pooling.keeps_tokens):
            if not why:
                keep_agreement(trial, f"{model.folder.transformer.name}: {kernel.name}, compared with {plain.name}")
            return KernelChoice(kernel, tell(kernel, why), CPU_BUDGETS_TOKENS[-1])
        why.append(f"{kernel.name} gave different vectors")
    return KernelChoice(plain, tell(plain, why), CPU_BUDGETS_TOKENS[0])


def _name_trial(model: Tried, device: Device, precision: str, reference: str) -> str:
    from shardmill.models.networks.graph import load_openvino

    return name_trial(
        model.folder,
        compared=[f"openvino {precision}", device.threads, reference],
        libraries=[load_openvino().__version__, np.__version__],
        rows=[row.tolist() for row in model.golden],
        padding=[model.pad_id, model.limit, model.skip],
    )
