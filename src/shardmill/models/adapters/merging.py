"""W + scale B A in float32, for each adapted weight of a model, written as one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shardmill.core.errors import ModelError
from shardmill.models.adapters.lora import Lora, WeightChange
from shardmill.models.networks.stored import Reals, StoredWeights, read_weights

# Families whose linear layers store a weight as (in, out).
_TRANSPOSED = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer"}
RIGHT_BASE = "Pass the model that the adapter was trained on: --model BASE --adapter FOLDER."


@dataclass(frozen=True, slots=True)
class AdapterFit:
    """Where an adapter's changes belong: by the name under which a weight is stored; `added` ones are new.

    `prefix` comes before the base model's own names, where those of the adapter are longer and weights are added.
    """

    changes: Mapping[str, WeightChange]
    added: Mapping[str, str]
    prefix: str


def fit_adapter(lora: Lora, base: StoredWeights, model: str, *, transposed: bool) -> AdapterFit:
    """Find the weight of the base model for each change; an adapter of another model is refused."""
    changes: dict[str, WeightChange] = {}
    missing: dict[str, WeightChange] = {}
    prefixes: set[str] = set()
    ends = _by_end(base)
    for name, change in lora.changes.items():
        if (there := _find(name, base, ends)) is None:
            missing[name] = change
            continue
        changes[there] = change
        prefixes.add(name[: -len(there)] if name != there and name.endswith(there) else "")
        _check_shape(lora, change, base.shape(there), model, transposed=transposed)
    if lost := [name for name, change in missing.items() if change.a or change.bias or not lora.head]:
        raise ModelError(
            f"{lora.name} has {lost[0]}, which {model} does not have{say_base(lora)}.",
            hint="If its input and output embeddings are one, merge with peft. " * ("lm_head" in lost[0]) + RIGHT_BASE,
        )
    if not any(change.a for change in changes.values()):
        raise ModelError(f"{lora.name} adapts no weight of {model}{say_base(lora)}.", hint=RIGHT_BASE)
    return AdapterFit(
        changes, {name: change.whole for name, change in missing.items()}, max(prefixes, key=len) if missing else ""
    )


def say_base(lora: Lora) -> str:
    return f" (the adapter names {lora.base} as its base)" if lora.base else ""


def _by_end(base: StoredWeights) -> dict[str, list[str]]:
    """Stored names, by what is left of them without their first part."""
    found: dict[str, list[str]] = {}
    for name in base:
        found.setdefault(name.partition(".")[2], []).append(name)
    return found


def _find(name: str, base: StoredWeights, ends: Mapping[str, list[str]]) -> str | None:
    """The stored name: the same, without its first part, or after one."""
    if name in base:
        return name
    if (shorter := name.partition(".")[2]) in base:
        return shorter
    longer = ends.get(name, [])
    return longer[0] if len(longer) == 1 else None


def _check_shape(lora: Lora, change: WeightChange, there: tuple[int, ...], model: str, *, transposed: bool) -> None:
    shape = lora.stored.shape
    if change.whole:
        seen = shape(change.whole)
    elif change.a:
        # (out, in), and of embeddings (width, words), which are stored as (words, width).
        seen = (shape(change.b)[0], shape(change.a)[1])
        if change.embedding or (is_transposed(seen, there, lora, transposed=transposed)):
            seen = seen[::-1]
    else:
        seen = shape(change.bias)
    if tuple(seen) != tuple(there):
        raise ModelError(
            f"{lora.name} does not fit {model}: {change.module} is {_show(there)} there, and the adapter is made for "
            f"{_show(seen)}{say_base(lora)}.",
            hint=RIGHT_BASE,
        )


def is_transposed(seen: tuple[int, ...], there: tuple[int, ...], lora: Lora, *, transposed: bool) -> bool:
    """Whether a weight is stored as (in, out): by its shape, or where that is square by what is said."""
    if seen == tuple(there) and seen[0] != seen[1]:
        return False
    return seen[::-1] == tuple(there) and (seen[0] != seen[1] or transposed or lora.fan_in_fan_out)


def _show(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def stores_transposed(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in _TRANSPOSED


def merge(base: Reals, change: WeightChange, lora: Lora, *, transposed: bool) -> Reals:
    """The weight with its change, in float32."""
    weight = lora.stored[change.whole] if change.whole else base
    if change.bias:
        made: Reals = weight + np.float32(change.scale) * lora.stored[change.bias]
        return made
    if not change.a:
        return weight
    delta: Reals = (lora.stored[change.b] @ lora.stored[change.a]) * np.float32(change.scale)
    turned = change.embedding or is_transposed(delta.shape, base.shape, lora, transposed=transposed)
    if not change.magnitude:
        return weight + (delta.T if turned else delta)
    whole = (weight.T if turned else weight) + delta
    lengths = np.linalg.norm(whole, axis=1)
    whole *= (lora.stored[change.magnitude].reshape(-1) / lengths)[:, None]
    return np.ascontiguousarray(whole.T) if turned else whole


def write_merged(
    lora: Lora, fit: AdapterFit, source: Path, into: Path, *, transposed: bool, beat: Callable[[int], None]
) -> None:
    """Write the weights of a transformer's folder, merged: one at a time, in the type of the file if not adapted."""
    base = read_weights(source)
    writers: dict[str, tuple[str, tuple[int, ...], int, Callable[[], Any]]] = {}
    for name in base:
        raw, said = base.stored(name)
        if (change := fit.changes.get(name)) is None:
            writers[fit.prefix + name] = (said["dtype"], tuple(said["shape"]), len(raw), partial(np.asarray, raw))
        else:
            size = 4 * int(np.prod(said["shape"]))
            writers[fit.prefix + name] = (
                "F32",
                tuple(said["shape"]),
                size,
                _merging(base, name, change, lora, transposed),
            )
    for name, key in fit.added.items():
        shape = lora.stored.shape(key)
        writers[name] = ("F32", shape, 4 * int(np.prod(shape)), partial(lora.stored.__getitem__, key))
    with into.open("wb") as file:
        _write_head(file, {name: each[:3] for name, each in writers.items()})
        for _, _, size, make in writers.values():
            file.write(np.ascontiguousarray(make()).reshape(-1).view(np.uint8).data)
            beat(size)


def _merging(base: StoredWeights, name: str, change: WeightChange, lora: Lora, transposed: bool) -> Callable[[], Reals]:
    def merged() -> Reals:
        made = merge(base[name], change, lora, transposed=transposed)
        if not np.isfinite(made).all():
            raise ModelError(
                f"{name} has NaN or infinity when {lora.name} is merged into it.",
                hint="The adapter's training may have diverged: take an earlier checkpoint.",
            )
        return made.astype("<f4", copy=False)

    return merged


def _write_head(file: BinaryIO, tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> None:
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, size) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    said = json.dumps(head).encode()
    said += b" " * (-len(said) % 8)
    file.write(len(said).to_bytes(8, "little") + said)
