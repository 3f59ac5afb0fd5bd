"""Options for a run: N of a device, with time, cost and memory, and the choice between options."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardmill.plan.sizing import SHARDS_PER_WORKER
from shardmill.plan.sizing.catalogue import Chip
from shardmill.plan.sizing.memory import PACKED_BUDGET_TOKENS, PADDED_BUDGET_TOKENS, USABLE, Need
from shardmill.plan.sizing.speed import Range, Speed

COUNTS = (1, 2, 4, 8, 16, 24)
_MOST_GPUS = 4096


@dataclass(frozen=True, slots=True)
class Workload:
    """The work: the number of items, their tokens in total, and the tokens of the longest input.

    `inputs` is the number of items, or of windows if items have windows.
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
    """`gpus` of a device. `usd` is None if no price is known; `fits` says whether the model and a batch fit."""

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
        """Whether even the slow end of the range is within both limits."""
        in_time = deadline_s is None or self.seconds.high <= deadline_s
        in_budget = budget_usd is None or (self.usd is not None and self.usd.high <= budget_usd)
        return self.fits and in_time and in_budget

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate_option(
    work: Workload, chip: Chip, gpus: int, speed: Speed, need: Need | None, *, sharing: int = 1, memory_basis: str = ""
) -> Option:
    """Estimate time, cost and memory of `gpus` of a chip, each shared by `sharing` workers."""
    rate, gpu_count = speed.tokens_per_s, max(1, gpus)
    shares = [work.tokens / (each * gpu_count) for each in (rate.high, rate.likely, rate.low)]
    # At the end some workers wait for the last shards of others.
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
    """Tokens per batch: the fastest budget, or less if the workers that share the device need the memory."""
    most = PACKED_BUDGET_TOKENS if chip.packed else PADDED_BUDGET_TOKENS
    if need is None:
        return most
    free = USABLE * chip.memory_gb * 1e9 / sharing - need.bytes(0, 1) + need.batch.fixed_bytes
    return need.batch.budget(free, longest=max(1, longest), most=most, padded=not chip.packed)


def choose(options: Sequence[Option], deadline_s: float | None, budget_usd: float | None) -> Option | None:
    """The cheapest option within both limits; on equal cost the faster, and options without a price last."""
    good = [option for option in options if option.meets(deadline_s, budget_usd)]
    return min(good, key=_price, default=None)


def _price(option: Option) -> tuple[float, float]:
    return (option.usd.likely if option.usd else math.inf, option.seconds.likely)


def fewest(estimate_with: Callable[[int], Option], deadline_s: float) -> Option | None:
    """The fewest GPUs that meet a deadline, by binary search; None if thousands do not."""
    low, high = 0, 1
    while estimate_with(high).seconds.high > deadline_s:
        low, high = high, 2 * high
        if high > _MOST_GPUS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if estimate_with(middle).seconds.high > deadline_s else (low, middle)
    return estimate_with(high)
