"""Precisions that a user asks for, which round more than a kernel may by itself: int8 on CPUs, fp8 on GPUs.

The work asks for them, so nothing else may write its rows: what cannot compute in them is refused by name.

Design: docs/design/precisions.md
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardmill.core.devices import Device, cpu_model, multiplies_bytes
from shardmill.core.errors import ModelError
from shardmill.models.agreed import has_agreed, keep_agreement, name_trial
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import cosines, lowest_mean, lowest_rounded
from shardmill.models.installed import check_light, check_torch
from shardmill.models.kernels import CPU_BUDGETS_TOKENS, KernelChoice, Tried
from shardmill.models.networks.unknown import NotDescribed

INT8, FP8 = "int8", "fp8"
# The revision of the arithmetic of `fp8`: vectors of another one are not mixed with these.
_FP8_REVISION = "fp8 1"


def name_arithmetic(precision: str) -> dict[str, str]:
    """What the fingerprint of a model says of a precision; nothing without one."""
    if not precision:
        return {}
    if precision == FP8:
        return {"precision": _FP8_REVISION}
    from shardmill.models.networks.int8 import REVISION

    return {"precision": REVISION}


def check_rounds_here(folder: ModelFolder, kind: str, name: str, precision: str) -> None:
    """Refuse a device or a model that a precision does not run on."""
    wanted = "cuda" if precision == FP8 else "cpu"
    if kind != wanted:
        runs = {"cpu": "CPUs", "cuda": "GPUs"}[wanted]
        raise ModelError(
            f"{precision} runs on {runs} only.", hint=f"Give --device {wanted}, or leave out --precision {precision}."
        )
    if precision == INT8 and not multiplies_bytes():
        raise ModelError(f"int8 needs a CPU with VNNI, AMX or i8mm, which {cpu_model()} has not.", hint=hint(INT8))
    if folder.static is not None:
        raise ModelError(f"{precision} is for networks; {name} has none, only vectors of tokens.", hint=hint(precision))
    if folder.exported is not None:
        raise ModelError(
            f"{precision} needs safetensors; {name} has only ONNX or OpenVINO files.", hint=hint(precision)
        )
    if precision == FP8:
        check_torch()
        return
    check_light()
    from shardmill.models.plain import read_network

    try:
        read_network(folder)
    except NotDescribed as error:
        raise ModelError(f"int8 does not run {name}: {error}.", hint=hint(INT8)) from error


def hint(precision: str) -> str:
    """What to do where a precision cannot be had."""
    return f"Leave out --precision {precision}: another run, in the fastest precision that agrees with float32."


def choose_int8(model: Tried, device: Device) -> KernelChoice:
    """The kernel in 8 bits, if its vectors are close enough to those of float32; there is no second choice."""
    name = model.folder.transformer.name
    from shardmill.models.networks.graph import load_openvino
    from shardmill.models.networks.int8 import REVISION
    from shardmill.models.openvino import Int8Encoder
    from shardmill.models.plain import PlainEncoder

    kernel = Int8Encoder(model.folder, pad_id=model.pad_id, threads=device.threads, limit=model.limit)
    chosen = KernelChoice(kernel, kernel.name, CPU_BUDGETS_TOKENS[-1])
    plain = PlainEncoder(model.folder, pad_id=model.pad_id)
    trial = name_trial(
        model.folder,
        compared=[f"openvino {REVISION}", device.threads, plain.name],
        libraries=[load_openvino().__version__, np.__version__],
        rows=[row.tolist() for row in model.golden],
        padding=[model.pad_id, model.limit, model.skip],
    )
    if has_agreed(trial):
        return chosen
    check_close(name, kernel.encode(model.golden, model.skip), plain.encode(model.golden, model.skip), INT8)
    keep_agreement(trial, f"{name}: {kernel.name}, compared with {plain.name}")
    return chosen


def check_close(name: str, seen: NDArray[np.float32], expected: NDArray[np.float32], precision: str) -> None:
    """Refuse vectors that are further from float32 than a precision may be."""
    close = cosines(seen, expected)
    if not (close.min() >= lowest_rounded(precision) and close.mean() >= lowest_mean(precision)):
        raise ModelError(
            f"{name} is not accurate enough in {precision}: of {len(close)} sentences the lowest cosine with float32 "
            f"is {close.min():.4f} and the mean {close.mean():.4f}; the limits are {lowest_rounded(precision)} and "
            f"{lowest_mean(precision)}.",
            hint=hint(precision),
        )
