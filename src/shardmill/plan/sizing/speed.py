"""Tokens per second of a device: measured on this machine, or estimated by a roofline over its data sheet."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.plan.sizing.catalogue import CPU, Chip
from shardmill.plan.sizing.measured import Measured
from shardmill.plan.sizing.memory import PACKED_BUDGET_TOKENS, kv_bytes
from shardmill.plan.sizing.shape import Shape

# The share of the half-precision peak that whole runs reached on an H200, by the weights used per token:
# MiniLM-L6, BERT-base, Qwen3-0.6B (docs/benchmarks/embedding-gpu.md).
_EFFICIENCIES = ((30_000_000, 0.22), (200_000_000, 0.42), (float("inf"), 0.46))
# Factors on that share for chips that were not measured: worst, likely, best. Older chips pad their batches.
_PACKED_SHARES = (0.6, 0.85, 1.1)
_PADDED_SHARES = (0.35, 0.6, 1.0)
# Shares of a CPU's peak, while its cores also tokenize: two Neoverse-N1 reached 0.4.
_CPU_SHARES = (0.2, 0.35, 0.5)
# A similar run differs from the measured one by up to this share.
_MEASURED_SPREAD = 0.15
# Tokens per second that one vCPU tokenizes, worst, likely, best: 16 vCPUs fed 9.3 M to an H200.
_TOKENIZED_PER_CORE = (250_000.0, 500_000.0, 800_000.0)
_BANDWIDTH_SHARE = 0.7
_HALF = 2
# Seconds of kernel launches per generated token, besides its arithmetic; estimated, not measured.
_STEP_S = (0.03, 0.015, 0.005)


@dataclass(frozen=True, slots=True)
class Range:
    """An uncertain figure: at least, likely, at most."""

    low: float
    likely: float
    high: float

    def scaled(self, factor: float) -> Range:
        return Range(self.low * factor, self.likely * factor, self.high * factor)


# Loading and compiling a model took 21 to 25 s on an H200; the time to boot a machine is not included.
_START_S = {True: Range(5.0, 10.0, 20.0), False: Range(15.0, 25.0, 50.0)}


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one device, its bottleneck, seconds before the first token, and the basis of these."""

    tokens_per_s: Range
    bound: str
    start_s: Range
    basis: str


def find_speed(chip: Chip, shape: Shape | None, mean_tokens: float, measured: Measured | None) -> Speed | None:
    """The speed measured on such a device, else an estimate from its data sheet; None without either."""
    if measured is not None:
        return measured_speed(shape, mean_tokens, measured)
    return None if shape is None else estimated_speed(chip, shape, mean_tokens)


def measured_speed(shape: Shape | None, mean_tokens: float, measured: Measured) -> Speed:
    """The measured speed, adjusted to the length of the texts now."""
    rate = measured.tokens_per_s
    if shape is not None and measured.mean_tokens > 0 and mean_tokens > 0:
        then, now = measured.mean_tokens, mean_tokens
        rate *= (shape.flops(then) / then) / (shape.flops(now) / now)
    return Speed(_spread(rate), "as measured", _spread(measured.start_s), f"measured here on {measured.date}")


def _spread(figure: float) -> Range:
    return Range(figure * (1 - _MEASURED_SPREAD), figure, figure * (1 + _MEASURED_SPREAD))


def estimated_speed(chip: Chip, shape: Shape, mean_tokens: float) -> Speed:
    """A roofline: the slowest of arithmetic at a share of the peak, memory bandwidth, and tokenizing on the cores."""
    length = max(1.0, mean_tokens)
    flops, moved_bytes = shape.flops(length) / length, _moved_bytes(shape)
    rates, bounds = [], []
    for share, per_core in zip(efficiencies(chip, shape), _TOKENIZED_PER_CORE, strict=True):
        compute = chip.half_tflops * 1e12 * share / flops
        memory = chip.bandwidth_gb_s * 1e9 * _BANDWIDTH_SHARE / moved_bytes
        host = chip.cores * per_core
        limits = {"arithmetic": compute, "memory bandwidth": memory, "tokenizing": host}
        bound = min(limits, key=lambda name: limits[name])
        bounds.append(bound)
        device = min(compute, memory)
        rates.append(1 / (1 / device + 1 / host) if chip.name == CPU else limits[bound])
    return Speed(Range(*rates), bounds[1], _START_S[chip.name == CPU], "estimated from the data sheet")


def efficiencies(chip: Chip, shape: Shape) -> tuple[float, float, float]:
    """Shares of the peak: worst, likely, best."""
    if chip.name == CPU:
        return _CPU_SHARES
    whole = next(share for limit, share in _EFFICIENCIES if shape.weights < limit)
    worst, likely, best = _PACKED_SHARES if chip.packed else _PADDED_SHARES
    return worst * whole, likely * whole, best * whole


def _moved_bytes(shape: Shape) -> float:
    """Bytes to and from the device's memory per token: each layer's steps, and the weights once per batch."""
    layer = 8 * shape.hidden + 2 * (shape.width + shape.kv_width) + 2 * shape.inner
    return _HALF * (shape.layers * layer + shape.weights / PACKED_BUDGET_TOKENS)


def writing_s(chip: Chip, shape: Shape, *, read_tokens: int, written_tokens: int, rows: int) -> Range:
    """Seconds per text in a batch of `rows`: each text is read once, then each step writes one token."""
    seconds = []
    for share, step_s in zip(efficiencies(chip, shape), _STEP_S, strict=True):
        peak = chip.half_tflops * 1e12 * share
        kept = rows * (read_tokens + written_tokens / 2) * kv_bytes(shape)
        moved = (_HALF * shape.decoder_weights + kept) / (chip.bandwidth_gb_s * 1e9 * _BANDWIDTH_SHARE)
        step = step_s + max(moved, 2.0 * rows * shape.decoder_weights / peak)
        seconds.append(shape.flops(read_tokens) / peak + written_tokens * step / rows)
    return Range(*reversed(seconds))


def training_s(chip: Chip, shape: Shape, *, tokens: int) -> Range:
    """Seconds to train on one text once: the backward pass takes twice as long as the forward pass."""
    flops = 3.0 * shape.flops(tokens)
    seconds = [flops / (chip.half_tflops * 1e12 * share) for share in efficiencies(chip, shape)]
    return Range(*reversed(seconds))
