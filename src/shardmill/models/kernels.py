"""The kernels that can run a model on a device, and the choice between them: the fastest with correct vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, MissingExtra, ModelError
from shardmill.models.encoder import Clock, Encoder, first_run
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import agree, reach_past_window
from shardmill.models.memory import MemoryKey, free_cuda_bytes, identify_model, learn_model, measure_cuda
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.packed import PackedEncoder
from shardmill.models.window import find_window
from shardmill.plan.sizing.memory import PACKED_BUDGET_TOKENS, PADDED_BUDGET_TOKENS

Rows = Sequence[NDArray[np.int32]]

# Padded tokens per batch on a CPU, where caches are small: the smallest that is as fast as the others is used.
_CPU_BUDGETS_TOKENS = (1024, 2048, 4096)
_TIMED_RUNS = 5
_TYPICAL_TOKENS = 128
_LONG_RUN_S = 0.5
_WORTH_IT = 0.97
# Compiling takes seconds on a GPU and a minute on two cores; less work than this does not save that time.
_COMPILE_FROM_BYTES = 32 << 20
# The longest text tried before the work begins, for models that accept longer ones.
_TRIED_TOKENS = 512
_PROBED_TOKENS = 8192


class Kernel(Protocol):
    """Ids -> vectors. `name` describes it; `padded` means rows padded to a batch's longest."""

    padded: bool

    @property
    def name(self) -> str: ...
    @property
    def precision(self) -> str: ...
    def encode(self, rows: Rows, skip: int = 0) -> NDArray[np.float32]: ...
    def begin(self, rows: Rows, skip: int = 0) -> Callable[[], NDArray[np.float32]]: ...


@dataclass(frozen=True, slots=True)
class _Timed:
    """A kernel with correct vectors, its seconds per token, and the batch budget that reaches that speed."""

    token_s: float
    budget: int
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """The chosen kernel, the reason, and its batch budget."""

    kernel: Kernel
    why: str
    batch_budget: int


def plain_kernel(folder: ModelFolder, device: Device, pad_id: int) -> Encoder:
    """float32 and plain attention: slow, and used only if the other kernels fail."""
    return Encoder(folder, device=_torch_device(device), pad_id=pad_id, attention="eager")


def choose_kernel(
    folder: ModelFolder, device: Device, *, pad_id: int, limit: int | None, golden: Rows, skip: int
) -> KernelChoice:
    """Try the device's kernels on the golden sentences and choose the fastest that agrees with float32.

    `limit` is the maximum number of tokens per text; the first `skip` tokens of each sentence belong to the prompt.
    """
    trial = _Trial(folder, device, pad_id, limit, golden, skip)
    kernel: Kernel = trial.reference
    if device.precise and (device.kind == "cuda" or not device.work_bytes):
        trial.why.append("as asked")
    else:
        kernel = trial.choose_on_gpu() if device.kind == "cuda" else trial.choose_on_cpu()
    # Unless it was chosen, this frees its memory for batches.
    del trial.reference
    budget = trial.cpu_budget
    if device.kind == "cuda" and isinstance(kernel, Encoder):
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

    def __init__(
        self, folder: ModelFolder, device: Device, pad_id: int, limit: int | None, golden: Rows, skip: int
    ) -> None:
        self.folder = folder
        self.device = device
        self.pad_id, self.limit = pad_id, limit
        self.golden = golden = reach_past_window(golden, find_window({**folder.config, **folder.config_options}), limit)
        self.skip = skip
        self.typical = np.resize(max(golden, key=len), min(limit or _TYPICAL_TOKENS, _TYPICAL_TOKENS))
        self.why: list[str] = []
        self.cpu_budget = _CPU_BUDGETS_TOKENS[0]
        self.reference = Encoder(folder, device=_torch_device(device), pad_id=pad_id)
        with first_run(folder.transformer.name):
            self.expected = np.concatenate([self.reference.encode([row], skip) for row in golden])
        if not np.isfinite(self.expected).all():
            raise ModelError(
                f"{folder.transformer.name} gives NaN or infinity in float32.", hint="Fetch the model again."
            )

    def choose_on_gpu(self) -> Encoder:
        """The first kernel with correct vectors: packed and compiled, packed, padded; all in half precision."""
        for how, make in self._gpu_kernels():
            try:
                kernel = make()
                if self._is_right(kernel):
                    return kernel
            except (ModelError, ImportError, LookupError, TypeError, ValueError, RuntimeError) as error:
                reason = error.message if isinstance(error, ModelError) else type(error).__name__
                self.why.append(f"cannot run {how}: {reason.rstrip('.')}")
        return plain_kernel(self.folder, self.device, self.pad_id)

    def _gpu_kernels(self) -> Iterator[tuple[str, Callable[[], Encoder]]]:
        modern = torch.cuda.get_device_capability() >= (8, 0)
        bf16 = "bfloat16" in (self.folder.config.get("dtype"), self.folder.config.get("torch_dtype"))
        dtype = torch.bfloat16 if bf16 and modern else torch.float16

        def packed() -> PackedEncoder:
            kernel = PackedEncoder(self.folder, device=_torch_device(self.device), pad_id=self.pad_id)
            kernel.cast(dtype)
            return kernel

        def compiled() -> PackedEncoder:
            kernel = packed()
            kernel.compile()
            return kernel

        def padded() -> Encoder:
            self.reference.cast(dtype)
            return self.reference

        if modern and self.device.work_bytes >= _COMPILE_FROM_BYTES:
            yield "compiled", compiled
        if modern:
            yield "packed", packed
        yield "padded", padded

    def choose_on_cpu(self) -> Kernel:
        """The fastest kernel with correct vectors."""
        right = [_Timed(*self._time(k), k) for k in self._cpu_kernels() if self._is_right(k)]
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
        if not eager or self.device.work_bytes < _COMPILE_FROM_BYTES:
            return None
        fastest = min(eager, key=lambda timed: timed.token_s).kernel
        assert isinstance(fastest, Encoder)
        kernel = Encoder(self.folder, device="cpu", pad_id=self.pad_id)
        kernel.cast(fastest.dtype)
        try:
            kernel.compile()
            return _Timed(*self._time(kernel), kernel) if self._is_right(kernel) else None
        except (LookupError, TypeError, ValueError, RuntimeError, OSError) as error:
            self.why.append(f"cannot run compiled: {type(error).__name__}")
            return None

    def _cpu_kernels(self) -> Iterator[Kernel]:
        """torch, and OpenVINO if installed, in the precisions that are fast on this CPU, or in float32 if requested."""
        yield self.reference
        if _cpu_has_bf16() and not self.device.precise:
            half = Encoder(self.folder, device="cpu", pad_id=self.pad_id)
            half.cast(torch.bfloat16)
            yield half
        try:
            from shardmill.models.openvino import OpenVinoEncoder, precisions

            precision = precisions()[-1 if self.device.precise else 0]
        except (ImportError, MissingExtra):
            return
        try:
            yield OpenVinoEncoder(
                self.folder, pad_id=self.pad_id, limit=self.limit, threads=self.device.threads, precision=precision
            )
        except ModelError as error:
            self.why.append(error.message.rstrip("."))
        except NotDescribed as error:
            self.why.append(f"OpenVINO cannot run it: {error}")

    def _is_right(self, kernel: Kernel) -> bool:
        if agree(kernel.encode(self.golden, self.skip), self.expected, kernel.precision):
            return True
        self.why.append(f"{kernel.name} gave different vectors")
        return False

    def _time(self, kernel: Kernel) -> tuple[float, int]:
        """Seconds per token, and the batch budget that reaches that speed."""
        took: dict[int, float] = {}
        for budget in _CPU_BUDGETS_TOKENS:
            if took and min(took.values()) * budget > _LONG_RUN_S:
                break
            took[budget] = self._time_batch(kernel, budget)
        fastest = min(took.values())
        chosen = min(budget for budget, token_s in took.items() if token_s * _WORTH_IT <= fastest)
        return took[chosen], chosen

    def _time_batch(self, kernel: Kernel, budget: int) -> float:
        """Seconds per token for full batches; the first run, which may compile for the shape, does not count."""
        batch = [self.typical] * (budget // len(self.typical))
        took = []
        for _ in range(_TIMED_RUNS):
            began = time.perf_counter()
            kernel.encode(batch, self.skip)
            took.append(time.perf_counter() - began)
        return min(took[1:]) / (len(batch) * len(self.typical))

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
            kernel=f"{kernel.name}{', prompt' if self.skip else ''}",
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


def _cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware; without that, torch takes a hundred times as long."""
    return any(getattr(torch.cpu, f"_is_{what}_supported", bool)() for what in ("amx_tile", "avx512_bf16"))


def _torch_device(device: Device) -> str:
    return f"cuda:{device.index}" if device.kind == "cuda" else "cpu"
