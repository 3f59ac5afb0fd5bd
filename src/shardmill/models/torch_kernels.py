"""torch's kernels, on GPUs and CPUs, and the choice between them; encoders that learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, MissingExtra, ModelError
from shardmill.core.startup import COMPILING, LOADING, TRYING, doing
from shardmill.models.encoder import Clock, Encoder, first_run, quiet
from shardmill.models.folder import ModelFolder
from shardmill.models.fp8 import RoundedEncoder
from shardmill.models.golden import agree, reach_past_window
from shardmill.models.kernels import (
    CPU_BUDGETS_TOKENS,
    Kernel,
    KernelChoice,
    Rows,
    Tried,
    openvino_kernels,
    time_kernel,
)
from shardmill.models.memory import MemoryKey, free_cuda_bytes, identify_model, learn_model, measure_cuda
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.packed import PackedEncoder
from shardmill.models.paying import Paying
from shardmill.models.rounded import FP8, check_close, hint
from shardmill.models.window import find_window
from shardmill.plan.sizing.memory import PACKED_BUDGET_TOKENS, PADDED_BUDGET_TOKENS

# The longest text tried before the work begins, for models that accept longer ones.
_TRIED_TOKENS = 512
_PROBED_TOKENS = 8192
# Padded tokens of a batch where nothing was probed.
_UNTRIED_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class _Timed:
    """A kernel with correct vectors, its seconds per token, and the batch budget that reaches that speed."""

    token_s: float
    budget: int
    kernel: Kernel


def plain_kernel(folder: ModelFolder, device: Device, pad_id: int, attention: str = "eager") -> Encoder:
    """float32 and plain attention: slow, and used only if the other kernels fail."""
    return Encoder(folder, device=_torch_device(device), pad_id=pad_id, attention=attention)


def choose_with_torch(model: Tried, device: Device) -> KernelChoice:
    """Try the device's kernels on the golden sentences, and choose the fastest that agrees with torch's float32."""
    torch_threads(device)
    with quiet(), doing(TRYING):
        return _choose(model, device)


def torch_threads(device: Device) -> None:
    """Let torch use the device's cores."""
    if device.index:
        torch.cuda.set_device(device.index)
    # With a GPU, torch has no CPU work to parallelize, and every copy would wake its threads.
    torch.set_num_threads(device.threads if device.kind == "cpu" else 1)


def _choose(model: Tried, device: Device) -> KernelChoice:
    trial = _Trial(model, device)
    kernel: Kernel = trial.reference
    if model.precision:
        kernel = trial.choose_rounded()
    elif device.precise and (device.kind == "cuda" or not device.work_bytes):
        trial.why.append("as asked")
    else:
        kernel = trial.choose_on_gpu() if device.kind == "cuda" else trial.choose_on_cpu()
    # Unless it was chosen, this frees its memory for batches.
    del trial.reference
    budget, limit = trial.cpu_budget, model.limit
    if device.kind == "cuda" and not trial.paying.trying and not model.precision:
        budget = max(limit or _UNTRIED_TOKENS, _UNTRIED_TOKENS)
    elif device.kind == "cuda" and isinstance(kernel, Encoder):
        trial.warm_up(kernel, min(limit or _TRIED_TOKENS, _TRIED_TOKENS))
        budget = trial.find_budget(kernel, min(limit or _PROBED_TOKENS, _PROBED_TOKENS))
        kernel.clock = Clock()
    why = f" ({'; '.join(trial.why)})" if trial.why else ""
    return KernelChoice(kernel, f"{kernel.name}{why}", budget)


def training_encoder(
    folder: ModelFolder, device: Device, pad_id: int, golden: Rows, autocast: torch.dtype | None, *, compiled: bool
) -> Encoder:
    """A model that learns. With `autocast` it is packed, and `compiled`, if its vectors are right so."""
    padded = Encoder(folder, device=_torch_device(device), pad_id=pad_id)
    if autocast is None:
        return padded
    golden = reach_past_window(golden, find_window({**folder.config, **folder.config_options}), None)
    with torch.no_grad():
        expected = padded.vectors(golden).cpu().numpy()
    for compiles in (True, False) if compiled else (False,):
        try:
            packed = PackedEncoder(folder, device=_torch_device(device), pad_id=pad_id)
            if packed.biased:
                break
            if compiles:
                packed.compile(learns=True)
            vectors = packed.vectors(golden, autocast=autocast)
            packed.backward(vectors, torch.ones_like(vectors), golden)
        except (ModelError, ImportError, LookupError, TypeError, ValueError, RuntimeError):
            continue
        if agree(vectors.detach().cpu().numpy(), expected, str(autocast).removeprefix("torch.")):
            packed.forget_gradients()
            return packed
    return padded


class _Trial:
    """A model on a device, the expected vectors of the golden sentences, and why kernels were rejected."""

    def __init__(self, model: Tried, device: Device) -> None:
        self.model, self.device = model, device
        self.folder, self.pad_id = model.folder, model.pad_id
        self.golden, self.skip = model.golden, model.skip
        self.why: list[str] = []
        self.paying = Paying.of(self.folder.config, self.folder.transformer, device)
        self.cpu_budget = CPU_BUDGETS_TOKENS[0]
        with doing(LOADING):
            self.reference = Encoder(self.folder, device=_torch_device(device), pad_id=self.pad_id)
        with first_run(self.folder.transformer.name):
            self.expected = np.concatenate([self.reference.encode([row], self.skip) for row in self.golden])
        if not np.isfinite(self.expected).all():
            raise ModelError(
                f"{self.folder.transformer.name} gives NaN or infinity in float32.", hint="Fetch the model again."
            )

    def choose_on_gpu(self) -> Encoder:
        """The first kernel with correct vectors: packed and compiled, packed, padded; all in half precision.

        With little to do, what is loaded anyway is as fast as a trial of others.
        """
        if not self.paying.trying:
            self.why.append("too little work to try others")
            return self.reference
        for how, make in self._gpu_kernels():
            try:
                kernel = make()
                if self._is_right(kernel):
                    return kernel
            except (ModelError, ImportError, LookupError, TypeError, ValueError, RuntimeError, OSError) as error:
                reason = error.message if isinstance(error, ModelError) else type(error).__name__
                self.why.append(f"cannot run {how}: {reason.rstrip('.')}")
        return plain_kernel(self.folder, self.device, self.pad_id)

    def choose_rounded(self) -> Encoder:
        """The kernel in 8 bits, compiled if that pays; there is no other."""
        name, loaded = self.folder.transformer.name, [self.reference]
        compiles = self.paying.compiling()
        while True:
            try:
                kernel = RoundedEncoder(
                    self.folder,
                    device=_torch_device(self.device),
                    pad_id=self.pad_id,
                    loaded=loaded.pop() if loaded else None,
                )
                seen = self._compile(kernel) if compiles else kernel.encode(self.golden, self.skip)
                check_close(name, seen, self.expected, FP8)
                return kernel
            except (ModelError, ImportError, LookupError, TypeError, ValueError, RuntimeError, OSError) as error:
                if not compiles and isinstance(error, ModelError) and error.hint:
                    raise
                reason = error.message if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
                if not compiles:
                    raise ModelError(f"fp8 does not run {name}: {reason.rstrip('.')}.", hint=hint(FP8)) from error
                self.why.append(f"cannot run compiled: {reason.rstrip('.')}")
                compiles = False

    def _compile(self, kernel: PackedEncoder) -> NDArray[np.float32]:
        """Compile a kernel by running it, keep how long that took, and give what it made."""
        kernel.compile()
        with doing(COMPILING), self.paying.timed():
            made = kernel.encode(self.golden, self.skip)
        if self.paying.trouble:
            self.why.append(self.paying.trouble)
        return made

    def _gpu_kernels(self) -> Iterator[tuple[str, Callable[[], Encoder]]]:
        modern = torch.cuda.get_device_capability() >= (8, 0)
        bf16 = "bfloat16" in (self.folder.config.get("dtype"), self.folder.config.get("torch_dtype"))
        dtype = torch.bfloat16 if bf16 and modern else torch.float16

        # The first one takes the weights that are loaded, which are no longer needed in float32.
        loaded: list[Encoder] = [self.reference]
        where: dict[str, Any] = {"device": _torch_device(self.device), "pad_id": self.pad_id}

        def packed() -> PackedEncoder:
            kernel = PackedEncoder(self.folder, **where, loaded=loaded.pop() if loaded else None)
            kernel.cast(dtype)
            return kernel

        def compiled() -> PackedEncoder:
            kernel = packed()
            self._compile(kernel)
            return kernel

        def padded() -> Encoder:
            kernel = loaded.pop() if loaded else Encoder(self.folder, **where)
            kernel.cast(dtype)
            return kernel

        if modern and self.paying.compiling():
            yield "compiled", compiled
        if modern:
            yield "packed", packed
        yield "padded", padded

    def choose_on_cpu(self) -> Kernel:
        """The fastest kernel with correct vectors."""
        right = [_Timed(*time_kernel(k, self.model), k) for k in self._cpu_kernels() if self._is_right(k)]
        if (torch_kernel := self._compiled_on_cpu(right)) is not None:
            right.append(torch_kernel)
        if not right:
            return plain_kernel(self.folder, self.device, self.pad_id)
        chosen = min(right, key=lambda timed: timed.token_s)
        self.cpu_budget = chosen.budget
        others = [timed.kernel.name for timed in right if timed is not chosen]
        self.why[:0] = [f"faster than {', '.join(others)}"] if others else []
        return chosen.kernel

    def _compiled_on_cpu(self, right: Sequence[_Timed]) -> _Timed | None:
        """The fastest torch kernel, compiled; None if there is too little work for compiling to pay off."""
        eager = [timed for timed in right if isinstance(timed.kernel, Encoder)]
        if not eager:
            return None
        best = min(eager, key=lambda timed: timed.token_s)
        fastest = best.kernel
        if not self.paying.compiling(token_s=best.token_s):
            return None
        assert isinstance(fastest, Encoder)
        kernel = Encoder(self.folder, device="cpu", pad_id=self.pad_id)
        kernel.cast(fastest.dtype)
        try:
            kernel.compile()
            with doing(COMPILING), self.paying.timed():
                kernel.encode(self.golden, self.skip)
            return _Timed(*time_kernel(kernel, self.model), kernel) if self._is_right(kernel) else None
        except (LookupError, TypeError, ValueError, RuntimeError, OSError) as error:
            self.why.append(f"cannot run compiled: {type(error).__name__}")
            return None

    def _cpu_kernels(self) -> Iterator[Kernel]:
        """torch, and OpenVINO if installed, in the precisions that are fast on this CPU, or in float32 if requested."""
        yield self.reference
        if cpu_has_bf16() and not self.device.precise:
            half = Encoder(self.folder, device="cpu", pad_id=self.pad_id)
            half.cast(torch.bfloat16)
            yield half
        with suppress(NotDescribed, MissingExtra):
            yield from islice(openvino_kernels(self.model, self.device, self.why), 1)

    def _is_right(self, kernel: Kernel) -> bool:
        seen = kernel.encode(self.golden, self.skip)
        if agree(seen, self.expected, kernel.precision, of_tokens=self.folder.pooling.keeps_tokens):
            return True
        self.why.append(f"{kernel.name} gave different vectors")
        return False

    def warm_up(self, kernel: Kernel, longest: int) -> None:
        """Run a long text and many short ones, so that everything is compiled before the work begins."""
        kernel.encode([np.resize(max(self.golden, key=len), longest)], self.skip)
        kernel.encode([*self.golden] * 16, self.skip)

    def find_budget(self, kernel: Encoder, longest: int) -> int:
        """The largest useful batch budget that fits in memory, from the memory use of a few probes."""
        most = PADDED_BUDGET_TOKENS if kernel.padded else PACKED_BUDGET_TOKENS
        key = MemoryKey(
            device=self.device.name,
            dtype=str(kernel.dtype),
            kernel=f"{kernel.name}{', prompt' if self.skip else ''}{', head' if self.folder.token_weights else ''}",
            model=identify_model(self.folder),
            libraries=f"torch {torch.__version__}, transformers {version('transformers')}",
            longest=longest,
        )
        word = int(self.golden[-1][len(self.golden[-1]) // 2])
        measure = measure_cuda(lambda rows: kernel.encode(rows, self.skip), token_id=word)
        try:
            model = learn_model(key, measure, padded=kernel.padded, longest=longest)
        except DeviceOutOfMemory:
            return longest
        return model.budget(free_cuda_bytes(self.device.sharing), longest=longest, most=most, padded=kernel.padded)


def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware; without that, torch takes a hundred times as long."""
    return any(getattr(torch.cpu, f"_is_{what}_supported", bool)() for what in ("amx_tile", "avx512_bf16"))


def _torch_device(device: Device) -> str:
    return f"cuda:{device.index}" if device.kind == "cuda" else "cpu"
