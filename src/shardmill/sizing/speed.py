"""How fast a device works through tokens: what was measured here, or a roofline over its data sheet."""

from __future__ import annotations

from dataclasses import dataclass

from shardmill.sizing.catalogue import CPU, Chip
from shardmill.sizing.measured import Measured
from shardmill.sizing.memory import PACKED_BUDGET_TOKENS, kv_bytes
from shardmill.sizing.shape import Shape

# The share of the half-precision peak that whole runs reached on an H200, by the weights a token goes through:
# MiniLM-L6, BERT-base, Qwen3-0.6B (docs/benchmarks.md).
_EFFICIENCIES = ((30_000_000, 0.22), (200_000_000, 0.42), (float("inf"), 0.46))
# Of that share, on chips where nothing was measured: at worst, likely, at best. Older ones pad their batches.
_PACKED_SHARES = (0.6, 0.85, 1.1)
_PADDED_SHARES = (0.35, 0.6, 1.0)
# Of a CPU's peak, where the cores tokenize as well: two Neoverse-N1 reached 0.4.
_CPU_SHARES = (0.2, 0.35, 0.5)
# A run like the one measured, but not the same.
_MEASURED_SPREAD = 0.15
# Tokens a second that one vCPU makes ready, at worst, likely, at best: 16 of them fed 9.3 M to an H200.
_TOKENIZED_PER_CORE = (250_000.0, 500_000.0, 800_000.0)
_BANDWIDTH_SHARE = 0.7
_HALF = 2
# What a step of writing costs besides its arithmetic, in launches of kernels; reckoned, not measured.
_STEP_S = (0.03, 0.015, 0.005)


@dataclass(frozen=True, slots=True)
class Range:
    """A figure that is not certain: at least, likely, at most."""

    low: float
    likely: float
    high: float

    def scaled(self, factor: float) -> Range:
        return Range(self.low * factor, self.likely * factor, self.high * factor)


# Loading a model and compiling it took 21 to 25 s on an H200; a machine is taken to be there already.
_START_S = {True: Range(5.0, 10.0, 20.0), False: Range(15.0, 25.0, 50.0)}


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second of one device, what bounds it, seconds before the first of them, and how that is known."""

    tokens_per_s: Range
    bound: str
    start_s: Range
    basis: str


def find_speed(chip: Chip, shape: Shape | None, mean_tokens: float, measured: Measured | None) -> Speed | None:
    """What was measured on such a device, or else what its data sheet gives; None where neither is to be had."""
    if measured is not None:
        return measured_speed(shape, mean_tokens, measured)
    return None if shape is None else reckoned_speed(chip, shape, mean_tokens)


def measured_speed(shape: Shape | None, mean_tokens: float, measured: Measured) -> Speed:
    """What was measured, over texts that may be longer or shorter now."""
    rate = measured.tokens_per_s
    if shape is not None and measured.mean_tokens > 0 and mean_tokens > 0:
        then, now = measured.mean_tokens, mean_tokens
        rate *= (shape.flops(then) / then) / (shape.flops(now) / now)
    return Speed(_spread(rate), "as measured", _spread(measured.start_s), f"measured here on {measured.date}")


def _spread(figure: float) -> Range:
    return Range(figure * (1 - _MEASURED_SPREAD), figure, figure * (1 + _MEASURED_SPREAD))


def reckoned_speed(chip: Chip, shape: Shape, mean_tokens: float) -> Speed:
    """A roofline: arithmetic at a share of the peak, or bytes at the memory's speed, or cores that tokenize."""
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
    return Speed(Range(*rates), bounds[1], _START_S[chip.name == CPU], "reckoned from the data sheet")


def efficiencies(chip: Chip, shape: Shape) -> tuple[float, float, float]:
    """Shares of the peak, at worst, likely and at best."""
    if chip.name == CPU:
        return _CPU_SHARES
    whole = next(share for limit, share in _EFFICIENCIES if shape.weights < limit)
    worst, likely, best = _PACKED_SHARES if chip.packed else _PADDED_SHARES
    return worst * whole, likely * whole, best * whole


def _moved_bytes(shape: Shape) -> float:
    """Bytes to and from the device's memory for one token: each layer's steps, and the weights once a batch."""
    layer = 8 * shape.hidden + 2 * (shape.width + shape.kv_width) + 2 * shape.inner
    return _HALF * (shape.layers * layer + shape.weights / PACKED_BUDGET_TOKENS)


def writing_s(chip: Chip, shape: Shape, *, read_tokens: int, written_tokens: int, rows: int) -> Range:
    """Seconds for one text of a batch of `rows`: it is read once, and a token is written at each step."""
    seconds = []
    for share, step_s in zip(efficiencies(chip, shape), _STEP_S, strict=True):
        peak = chip.half_tflops * 1e12 * share
        kept = rows * (read_tokens + written_tokens / 2) * kv_bytes(shape)
        moved = (_HALF * shape.decoder_weights + kept) / (chip.bandwidth_gb_s * 1e9 * _BANDWIDTH_SHARE)
        step = step_s + max(moved, 2.0 * rows * shape.decoder_weights / peak)
        seconds.append(shape.flops(read_tokens) / peak + written_tokens * step / rows)
    return Range(*reversed(seconds))


def training_s(chip: Chip, shape: Shape, *, tokens: int) -> Range:
    """Seconds to learn from one text once: the way back takes twice as long as the way there."""
    flops = 3.0 * shape.flops(tokens)
    seconds = [flops / (chip.half_tflops * 1e12 * share) for share in efficiencies(chip, shape)]
    return Range(*reversed(seconds))
