"""Ways to get work done: so many of a device, with the time and the money they take, and the one to choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardmill.sizing import SHARDS_PER_WORKER
from shardmill.sizing.catalogue import Chip
from shardmill.sizing.memory import PACKED_BUDGET_TOKENS, PADDED_BUDGET_TOKENS, USABLE, Need
from shardmill.sizing.speed import Range, Speed

COUNTS = (1, 2, 4, 8, 16, 24)
_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be done: items, the tokens that are read of them in all, and those of the longest input.

    `inputs` are the items, or their windows where they have any.
    """

    items: int
    tokens: int
    longest: int
    inputs: int = 0

    @property
    def input_tokens(self) -> float:
        return self.tokens / self.inputs if self.inputs else self.mean_tokens

    @property
    def mean_tokens(self) -> float:
        return self.tokens / self.items if self.items else 0.0


@dataclass(frozen=True, slots=True)
class Option:
    """`gpus` of a device. Money is None where no price is known; `fits` says whether the model and one text do."""

    device: str
    gpus: int
    instance: str
    seconds: Range
    usd: Range | None
    spot_usd: Range | None
    items_per_s: float
    memory_gb: float
    device_gb: float
    batch_tokens: int
    fits: bool
    bound: str
    basis: str
    memory_basis: str

    def meets(self, deadline_s: float | None, budget_usd: float | None) -> bool:
        """Whether even the slow end of the range keeps within both."""
        in_time = deadline_s is None or self.seconds.high <= deadline_s
        in_budget = budget_usd is None or (self.usd is not None and self.usd.high <= budget_usd)
        return self.fits and in_time and in_budget

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reckon(
    work: Workload, chip: Chip, gpus: int, speed: Speed, need: Need | None, *, sharing: int = 1, memory_basis: str = ""
) -> Option:
    """The time, money and memory of `gpus` of a chip, each shared by so many workers."""
    rate, gpu_count = speed.tokens_per_s, max(1, gpus)
    shares = [work.tokens / (each * gpu_count) for each in (rate.high, rate.likely, rate.low)]
    # At the end some wait for the last shards of others.
    shares[2] *= 1 + 0.5 / SHARDS_PER_WORKER
    start = speed.start_s
    seconds = Range(start.low + shares[0], start.likely + shares[1], start.high + shares[2])
    hours = seconds.scaled(chip.rented(gpu_count) / 3600)
    budget = batch_tokens(chip, need, work.longest, sharing)
    rows = max(1, budget // max(1, work.longest))
    held = sharing * need.bytes(rows, max(1, work.longest)) / 1e9 if need else 0.0
    return Option(
        device=chip.name,
        gpus=gpu_count,
        instance=chip.instance,
        seconds=seconds,
        usd=None if chip.usd is None else hours.scaled(chip.usd),
        spot_usd=None if chip.spot_usd is None else hours.scaled(chip.spot_usd),
        items_per_s=rate.likely * gpu_count / max(1.0, work.mean_tokens),
        memory_gb=held,
        device_gb=chip.memory_gb,
        batch_tokens=budget,
        fits=need is None or held <= chip.memory_gb,
        bound=speed.bound,
        basis=speed.basis,
        memory_basis=memory_basis,
    )


def batch_tokens(chip: Chip, need: Need | None, longest: int, sharing: int = 1) -> int:
    """Tokens of a batch: as many as are fast, or as fit beside the other workers that share the device."""
    most = PACKED_BUDGET_TOKENS if chip.packed else PADDED_BUDGET_TOKENS
    if need is None:
        return most
    free = USABLE * chip.memory_gb * 1e9 / sharing - need.bytes(0, 1) + need.batch.fixed_bytes
    return need.batch.budget(free, longest=max(1, longest), most=most, padded=not chip.packed)


def choose(options: Sequence[Option], deadline_s: float | None, budget_usd: float | None) -> Option | None:
    """The cheapest that keeps to both limits; the faster of two that cost the same, and any price before none."""
    good = [option for option in options if option.meets(deadline_s, budget_usd)]
    return min(good, key=_price, default=None)


def _price(option: Option) -> tuple[float, float]:
    return (option.usd.likely if option.usd else math.inf, option.seconds.likely)


def fewest(reckon_with: Callable[[int], Option], deadline_s: float) -> Option | None:
    """The fewest GPUs that keep to a deadline, by doubling and halving; None where thousands do not."""
    low, high = 0, 1
    while reckon_with(high).seconds.high > deadline_s:
        low, high = high, 2 * high
        if high > _MOST_GPUS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reckon_with(middle).seconds.high > deadline_s else (low, middle)
    return reckon_with(high)
