"""The peak speed of GPUs, and how busy they are according to NVML."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from shardmill.plan.sizing.catalogue import load_catalogue

_LOOK_EVERY_S = 0.2


def peak_tflops(name: str) -> float | None:
    """The half-precision peak of a GPU by its name; None if unknown, such as for a MIG slice.

    >>> peak_tflops("NVIDIA A100-SXM4-80GB"), peak_tflops("NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    (312.0, None)
    """
    chip = load_catalogue().find(name)
    return None if chip is None else chip.half_tflops


class Watch:
    """Watches a run from outside: records its start, and a few times per second how busy the GPUs are.

    >>> with Watch([]) as watch:
    ...     watch.gpu_busy(0.0, 1.0)
    """

    def __init__(self, gpus: list[str]) -> None:
        self.began = time.time()
        self._indices = [int(gpu) for gpu in gpus]
        self._seen: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="gpus", daemon=True)

    def __enter__(self) -> Watch:
        if self._indices:
            self._thread.start()
        return self

    def gpu_busy(self, began: float, ended: float) -> float | None:
        """The mean share of time in which a kernel ran, between two timestamps."""
        shares = [share for at, share in self._seen if began <= at <= ended]
        return sum(shares) / len(shares) if shares else None

    def _look(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in self._indices]
            while not self._ended.wait(_LOOK_EVERY_S):
                rates = [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu for handle in handles]
                self._seen.append((time.time(), sum(rates) / len(rates) / 100))
        except pynvml.NVMLError:
            return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
