"""Whether compiling a model, or trying kernels, pays: the seconds that it saves against those that it takes.

Seconds saved follow from the model's arithmetic and the work that is left for one worker. Seconds taken are those of
the last time on this machine, which the user's cache keeps. Every kind of model asks here.
Design: docs/design/packed-and-compiled.md
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from shardmill._version import __version__
from shardmill.core.cache import Cache
from shardmill.core.devices import Device, cpu_model
from shardmill.core.errors import ShardmillError
from shardmill.models.arithmetic import Arithmetic, count_arithmetic, count_layers
from shardmill.models.heads import read_heads
from shardmill.models.memory import identify_weights
from shardmill.plan.sizing.catalogue import load_catalogue

# Bytes of text for each token: English has 4.3, most others fewer.
_TOKEN_BYTES = 4.0
# Tokens of a typical text, and rows that write side by side.
_TEXT_TOKENS, _ROWS = 128, 512
# The share of the time that a chip would need at its peak, which compiled layers save. Measured on an H200: BERT-base
# reached 38.6 % of the peak without and 46.1 % with them, Qwen3-0.6B 18.1 % and 44 %: each of its layers normalizes and
# rotates in many small steps.
_SAVED, _SAVED_OF_MANY_STEPS = 0.42, 3.0
_MANY_STEPS = ("rms_norm_eps", "rope_theta", "rope_parameters", "rope_scaling", "global_rope_theta")
# They normalize so, too. Compiled, T5's encoder was slower on an H200 than without: 661,000 tokens/s beside a million.
_T5_TYPES = ("t5", "mt5", "umt5")
# Seconds that compiled layers save in launching kernels, for each layer of each step that writes a token.
_LAUNCH_S = 1.5e-4
# On a CPU compiling the whole model saves about this share of the time.
_SAVED_ON_CPU = 0.2
# Dense half-precision TFLOP/s of a GPU that is not in the catalogue, and how many times slower float32 is.
_USUAL_TFLOPS, _FLOAT32 = 300.0, 15.0
_REACHED = 0.4
# What is compared where nothing was measured yet: compiling on a GPU and on a CPU, and trying kernels on a GPU.
_COMPILING_S = {"cuda": 12.0, "cpu": 60.0}
_TRYING_S = 3.0
_CACHE = Cache("compiling.json", "seconds")
_LONGEST_S = 3600.0


@dataclass(slots=True)
class Paying:
    """What is known of one model on one device before work begins. `trouble` says why a time could not be kept."""

    device: Device
    config: dict[str, Any]
    arithmetic: Arithmetic
    name: str
    trouble: str = field(default="", init=False)

    @classmethod
    def of(cls, config: dict[str, Any], path: Path, device: Device) -> Paying:
        """Of a model with this config and the weights in this folder."""
        heads = ((tensor, said["shape"]) for tensor, said in read_heads(path))
        return cls(device, config, count_arithmetic(config, heads), _name(device, identify_weights(config, path)))

    @property
    def tokens(self) -> float:
        """About how many tokens are left for this worker to read."""
        return self.device.work_bytes / _TOKEN_BYTES

    def compiling(self, *, new_tokens: int = 0, token_s: float = 0.0) -> bool:
        """Whether compiling pays. `new_tokens` are written after each text; `token_s` was measured without it."""
        return self.saved_s(new_tokens=new_tokens, token_s=token_s) > self.compiling_s

    def saved_s(self, *, new_tokens: int = 0, token_s: float = 0.0) -> float:
        """About how many seconds compiled code saves this worker."""
        if self.device.kind == "cpu":
            return self.tokens * token_s * _SAVED_ON_CPU
        if not new_tokens and self.config.get("model_type") in _T5_TYPES:
            return 0.0
        texts = self.tokens / _TEXT_TOKENS
        share = _SAVED_OF_MANY_STEPS if self._has_many_steps else _SAVED
        launching_s = texts * new_tokens / _ROWS * count_layers(self.config) * _LAUNCH_S
        return self._at_peak_s(self.tokens + texts * new_tokens) * share + launching_s

    @property
    def compiling_s(self) -> float:
        """Seconds that compiling took last time, or usually takes."""
        kept = _CACHE.read().get(self.name)
        there = isinstance(kept, int | float) and not isinstance(kept, bool) and 0 <= kept < _LONGEST_S
        return float(kept) if there else _COMPILING_S[self.device.kind]  # type: ignore[arg-type]

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Keep the seconds that compiling takes, unless it fails."""
        began = time.perf_counter()
        yield
        self.trouble = _CACHE.put(self.name, round(time.perf_counter() - began, 2))

    @property
    def trying(self) -> bool:
        """Whether there is work enough to look for a kernel that is faster than plain float32 on a GPU."""
        plain_s = self._at_peak_s(self.tokens) * _FLOAT32 / _REACHED
        return not self.device.work_bytes or not self.arithmetic.per_token or plain_s > _TRYING_S

    @property
    def _has_many_steps(self) -> bool:
        texts: dict[str, Any] = self.config.get("text_config") or self.config
        return any(key in texts for key in _MANY_STEPS) or texts.get("model_type") in _T5_TYPES

    def _at_peak_s(self, tokens: float) -> float:
        """Seconds for texts of a typical length at the peak of this worker's share of the GPU."""
        try:
            chip = load_catalogue().find(self.device.name)
        except ShardmillError:
            # The user's own list of devices is damaged, on which the work does not depend.
            chip = None
        tflops = (chip.half_tflops if chip else _USUAL_TFLOPS) / max(1, self.device.sharing)
        pairs = tokens * _TEXT_TOKENS
        return (self.arithmetic.per_token * tokens + self.arithmetic.per_pair * pairs) / (tflops * 1e12)


def _name(device: Device, model: str) -> str:
    """What the time of compiling depends on: the versions, the chip and the model."""
    chip = device.name if device.kind == "cuda" else f"{cpu_model()}, {device.threads} threads"
    return json.dumps([chip, model, *_versions(("torch", "triton", "transformers")), __version__])


def _versions(libraries: Sequence[str]) -> Iterator[str]:
    for library in libraries:
        try:
            yield f"{library} {version(library)}"
        except PackageNotFoundError:
            yield f"no {library}"
