"""Precisions that a user asks for, which round more than a kernel may by itself: int8 on CPUs.

The work asks for them, so nothing else may write its rows: what cannot compute in them is refused by name.

Design: docs/design/precisions.md
"""

from __future__ import annotations

import numpy as np

from shardmill.core.devices import Device, cpu_model, multiplies_bytes
from shardmill.core.errors import ModelError
from shardmill.models.agreed import has_agreed, keep_agreement, name_trial
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import cosines, lowest_mean, lowest_rounded
from shardmill.models.installed import check_light
from shardmill.models.kernels import CPU_BUDGETS_TOKENS, KernelChoice, Tried
from shardmill.models.networks.unknown import NotDescribed

INT8 = "int8"
_HINT = "Leave out --precision int8: another run, in the fastest precision that agrees with float32."


def name_arithmetic(precision: str) -> dict[str, str]:
    """What the fingerprint of a model says of a precision; nothing without one."""
    if not precision:
        return {}
    from shardmill.models.networks.int8 import REVISION

    return {"precision": REVISION}


def check_rounds_here(folder: ModelFolder, kind: str, name: str) -> None:
    """Refuse a device, a CPU or a model that int8 does not run on."""
    if kind != "cpu":
        raise ModelError("int8 runs on CPUs only.", hint="Give --device cpu, or leave out --precision int8.")
    if not multiplies_bytes():
        raise ModelError(f"int8 needs a CPU with VNNI, AMX or i8mm, which {cpu_model()} has not.", hint=_HINT)
    if folder.static is not None:
        raise ModelError(f"int8 is for networks; {name} has none, only vectors of tokens.", hint=_HINT)
    if folder.exported is not None:
        raise ModelError(f"int8 needs safetensors; {name} has only ONNX or OpenVINO files.", hint=_HINT)
    check_light()
    from shardmill.models.plain import read_network

    try:
        read_network(folder)
    except NotDescribed as error:
        raise ModelError(f"int8 does not run {name}: {error}.", hint=_HINT) from error


def choose_rounded(model: Tried, device: Device) -> KernelChoice:
    """The kernel in 8 bits, if its vectors are close enough to those of float32; there is no second choice."""
    name = model.folder.transformer.name
    check_rounds_here(model.folder, device.kind, name)
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
    expected, seen = plain.encode(model.golden, model.skip), kernel.encode(model.golden, model.skip)
    close = cosines(seen, expected)
    if not (close.min() >= lowest_rounded(INT8) and close.mean() >= lowest_mean(INT8)):
        raise ModelError(
            f"{name} is not accurate enough in int8: of {len(close)} sentences the lowest cosine with float32 is "
            f"{close.min():.4f} and the mean {close.mean():.4f}; the limits are {lowest_rounded(INT8)} and "
            f"{lowest_mean(INT8)}.",
            hint=_HINT,
        )
    keep_agreement(trial, f"{name}: {kernel.name}, compared with {plain.name}")
    return chosen
