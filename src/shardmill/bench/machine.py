"""Where a benchmark ran: machine, versions, date."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from shardmill.core.devices import cores, cpu_model, gpus

_LIBRARIES = (
    *("shardmill", "torch", "transformers", "tokenizers", "sentence-transformers"),
    *("openvino", "optimum", "optimum-intel", "optimum-onnx", "onnxruntime", "flash-attn", "pyarrow", "obstore"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """`load` is the load average before the benchmark; figures from a busy machine mean little."""

    cpu: str
    cores: int
    gpus: tuple[str, ...]
    versions: dict[str, str]
    date: str
    load: float

    def __str__(self) -> str:
        """One line, for the table of a benchmark."""
        chips = ", ".join(self.gpus) or "no GPU"
        libraries = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.cpu}, {self.cores} cores, {chips}; {libraries}; {self.date}; load {self.load:.1f} before"


def describe_machine() -> Machine:
    """This machine, now."""
    versions = {"Python": platform.python_version()}
    for library in _LIBRARIES:
        try:
            versions[library] = version(library)
        except PackageNotFoundError:
            continue
    chips = tuple(g.name for g in gpus())
    return Machine(cpu_model(), cores(), chips, versions, str(datetime.date.today()), round(os.getloadavg()[0], 2))
