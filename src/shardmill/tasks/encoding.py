"""Tasks that one encoder computes: what a worker asks of the task, the encoder answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shardmill.core.devices import Device
from shardmill.tasks.base import Output, Task


class TaskEncoder(Protocol):
    """A model that reads rows of ids and is opened once in each worker."""

    @property
    def batch_budget(self) -> int: ...
    @property
    def padded(self) -> bool: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def numerics(self) -> dict[str, str]: ...
    @property
    def device_clock(self) -> dict[str, float] | None: ...
    def fingerprint(self) -> dict[str, str]: ...
    def check_installed(self, kind: str) -> None: ...
    def open(self, device: Device) -> None: ...
    def close(self) -> None: ...
    def gpu_bytes(self, precise: bool) -> int | None: ...
    def workers_per_gpu(self, cores: int) -> int: ...


class EncoderTask(Task):
    """A task of one encoder. A subclass sets `encoder` and defines `output`, `prepare` and `begin`."""

    encoder: TaskEncoder

    @property
    def batch_budget(self) -> int:  # type: ignore[override]
        return self.encoder.batch_budget

    @property
    def padded(self) -> bool:  # type: ignore[override]
        return self.encoder.padded

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        return self.encoder.notes

    @property
    def numerics(self) -> dict[str, str]:  # type: ignore[override]
        return self.encoder.numerics

    @property
    def device_clock(self) -> dict[str, float] | None:  # type: ignore[override]
        return self.encoder.device_clock

    def fingerprint(self) -> dict[str, str]:
        return self.encoder.fingerprint()

    def check_installed(self, kind: str) -> None:
        self.encoder.check_installed(kind)

    def open(self, device: Device) -> None:
        """Load the model."""
        self.encoder.open(device)

    def close(self) -> None:
        self.encoder.close()

    def gpu_bytes(self, precise: bool) -> int | None:
        return self.encoder.gpu_bytes(precise)

    def workers_per_gpu(self, cores: int) -> int:
        return self.encoder.workers_per_gpu(cores)

    def run(self, inputs: Sequence[Any]) -> Output:
        return self.begin(inputs)()

    @abstractmethod
    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
