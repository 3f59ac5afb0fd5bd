"""Parameters of items: of one item as a dict, or of many as columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardmill.augment.config import STANDARD, AugmentationConfig, Parameter, Value
from shardmill.core import random as randoms
from shardmill.core.errors import UsageError
from shardmill.core.random import COARSE, FINE, PhiloxKey, make_key

if TYPE_CHECKING:
    import torch

Columns = dict[str, NDArray[Any]]
_STREAM = "augment"
_GATES = 1


def check_rank(rank: int, world_size: int) -> None:
    if isinstance(world_size, bool) or not isinstance(world_size, int | np.integer) or world_size < 1:
        raise UsageError(f"The world size {world_size!r} is not a positive integer.", hint="Give 1 or more.")
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < world_size:
        raise UsageError(f"There is no rank {rank!r} of {world_size}.", hint=f"Ranks are 0 to {world_size - 1}.")


def gen_augmentation_params(
    sample_id: int, config: AugmentationConfig, *, seed: int | None = None, epoch: int = 0, view: int | None = None
) -> dict[str, Value]:
    """The parameters of one item. `seed` overrides the config's seed.

    >>> from shardmill.augment import get_preset
    >>> sorted(gen_augmentation_params(42, get_preset("mild")))
    ['brightness', 'contrast', 'noise', 'rotation', 'scale']
    """
    number, config = _id(sample_id), config.with_seed(seed)
    randoms.check_counter(epoch)
    five: list[Parameter] = [getattr(config, name) for name in STANDARD]
    if not config.extra and all(map(_plain, five)):
        draws = randoms.draw5_of_one(number, make_key(config.seed, _STREAM, view), int(epoch))
        return {n: d * ((p.b - p.a) * COARSE) + p.a for n, d, p in zip(STANDARD, draws, five, strict=True)}
    columns = augmentation_table(np.array([number], np.uint64), config, epoch=epoch, view=view)
    return {name: column[0].item() for name, column in columns.items()}


def gen_distributed_augmentation_params(
    sample_id: int,
    rank: int,
    world_size: int,
    config: AugmentationConfig,
    *,
    seed: int | None = None,
    epoch: int = 0,
) -> dict[str, Value]:
    """The parameters of one item for one rank: every rank gets a different view of the item.

    The world size only validates the rank; it does not affect the numbers.
    """
    check_rank(rank, world_size)
    return gen_augmentation_params(sample_id, config, seed=seed, epoch=epoch, view=int(rank))


def augmentation_table(
    ids: Any, config: AugmentationConfig, *, seed: int | None = None, epoch: int = 0, view: int | None = None
) -> Columns:
    """The parameters of many items as columns: one float64 array (or array of choices) per parameter.

    This is the fastest way: one Philox block gives an item's five standard parameters.
    """
    config = config.with_seed(seed)
    numbers = randoms.check_ids(ids)
    randoms.check_counter(epoch)
    if numbers.ndim != 1:
        raise UsageError(f"The ids have shape {numbers.shape}; one dimension is needed.", hint="Use .ravel().")
    key = make_key(config.seed, _STREAM, view)
    five = [getattr(config, name) for name in STANDARD]
    if not all(_plain(p) for p in five):
        return _draw(_Arrays, numbers, config, key, view, epoch)
    columns = [np.empty(len(numbers)) for _ in STANDARD]
    # In chunks, so that the draws are still in the cache when they are scaled.
    for start in range(0, len(numbers), randoms.CHUNK):
        parts = [c[start : start + randoms.CHUNK] for c in columns]
        randoms.draw5(numbers[start : start + randoms.CHUNK], key, epoch, out=parts)
        for part, p in zip(parts, five, strict=True):
            np.multiply(part, (p.b - p.a) * COARSE, out=part)
            np.add(part, p.a, out=part)
    table: Columns = dict(zip(STANDARD, columns, strict=True))
    return table | _draw_extra(_Arrays, numbers, config, view, epoch)


def augmentation_tensors(
    ids: torch.Tensor, config: AugmentationConfig, *, seed: int | None = None, epoch: int = 0, view: int | None = None
) -> dict[str, torch.Tensor]:
    """`augmentation_table` for ids in a tensor, computed on their device, with bit-identical results.

    Choices of texts come as indices into the choices; the index after the last means `otherwise`.
    """
    config = config.with_seed(seed)
    randoms.check_counter(epoch)
    if not ids.is_cuda and len(ids) and int(ids.min()) < 0:
        raise UsageError(f"The item id {int(ids.min())} is below 0.", hint="Number the items from 0.")
    drawn: dict[str, torch.Tensor] = _draw(_tensors(), ids, config, make_key(config.seed, _STREAM, view), view, epoch)
    return drawn


class _Arrays:
    """The NumPy backend; `_tensors` is the same for torch."""

    draw5: Callable[..., list[Any]] = staticmethod(randoms.draw5)
    draw_fine: Callable[..., list[Any]] = staticmethod(randoms.draw_fine)
    where = staticmethod(np.where)
    clip = staticmethod(np.clip)

    @staticmethod
    def pick(choices: NDArray[Any], place: Any) -> Any:
        return choices[place.astype(np.int64)]


def _tensors() -> Any:
    import torch

    from shardmill.core.random import tensors

    class Tensors:
        draw5 = staticmethod(tensors.draw5)
        draw_fine = staticmethod(tensors.draw_fine)
        where = staticmethod(torch.where)
        clip = staticmethod(torch.clamp)

        @staticmethod
        def pick(choices: NDArray[Any], place: torch.Tensor) -> torch.Tensor:
            whole = place.to(torch.int64)
            return whole if choices.dtype.kind == "U" else torch.as_tensor(choices, device=place.device)[whole]

    return Tensors


def _plain(p: Parameter) -> bool:
    return p.kind == "uniform" and p.probability == 1


def _draw(
    backend: Any, ids: Any, config: AugmentationConfig, key: PhiloxKey, view: int | None, epoch: int
) -> dict[str, Any]:
    draws = backend.draw5(ids, key, epoch)
    gates: list[Any] = [None] * len(STANDARD)
    if any(getattr(config, name).probability < 1 for name in STANDARD):
        gates = backend.draw5(ids, key, epoch, _GATES)
    columns = {}
    for name, draw, gate in zip(STANDARD, draws, gates, strict=True):
        columns[name] = _value(backend, name, getattr(config, name), draw, gate, COARSE)
    return columns | _draw_extra(backend, ids, config, view, epoch)


def _draw_extra(backend: Any, ids: Any, config: AugmentationConfig, view: int | None, epoch: int) -> dict[str, Any]:
    """Each extra parameter has its own stream, so that it does not depend on the others."""
    columns = {}
    for name, parameter in config.extra.items():
        draw, gate = backend.draw_fine(ids, make_key(config.seed, f"{_STREAM}/{name}", view), epoch)
        columns[name] = _value(backend, name, parameter, draw, gate, FINE)
    return columns


def _value(backend: Any, name: str, p: Parameter, draw: Any, gate: Any, unit: float) -> Any:
    """Turn integer draws below 1 / unit into values. Values rounded past an end of the range are clipped to it."""
    shut = None if p.probability == 1 else gate >= p.probability / unit
    if p.kind == "choice":
        place = backend.clip(draw * (len(p.choices) * unit), 0.0, len(p.choices) - 0.5)
        if shut is None:
            return backend.pick(np.asarray(p.choices), place)
        place = backend.where(shut, place * 0.0 + len(p.choices), place)
        return backend.pick(np.asarray([*p.choices, p.rest(name)]), place)
    if p.kind == "uniform":
        value = backend.clip(draw * ((p.b - p.a) * unit) + p.a, p.a, p.b)
    elif p.kind == "log-uniform":
        low, high = (float(randoms.log(np.array([end]))[0]) for end in (p.a, p.b))
        value = backend.clip(randoms.exp(draw * ((high - low) * unit) + low), p.a, p.b)
    else:
        value = randoms.normal(backend.clip((draw + 0.5) * unit, FINE / 2, 1 - FINE)) * p.b + p.a
    return value if shut is None else backend.where(shut, value * 0.0 + float(p.rest(name)), value)


def _id(sample_id: Any) -> int:
    if isinstance(sample_id, bool) or not isinstance(sample_id, int | np.integer):
        raise UsageError(f"The item id {sample_id!r} is not an integer.", hint="Number the items from 0.")
    if not 0 <= sample_id < 1 << 64:
        raise UsageError(f"The item id {sample_id} is not from 0 to 2**64 - 1.", hint="Number the items from 0.")
    return int(sample_id)
