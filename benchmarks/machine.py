"""What every benchmark says about where it ran, and how it prints its table."""

from __future__ import annotations

import datetime
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from shardmill.devices import cores, gpus

LIBRARIES = ("shardmill", "pyarrow", "obstore", "torch", "transformers", "sentence-transformers")


def describe_machine() -> None:
    devices = ", ".join(g.name for g in gpus()) or "no GPU"
    print(f"{_cpu()}, {cores()} cores, {devices}; Python {platform.python_version()}", end="")
    for library in LIBRARIES:
        try:
            print(f", {library} {version(library)}", end="")
        except PackageNotFoundError:
            continue
    print(f"; {datetime.date.today()}")
    print(f"command: python {' '.join(sys.orig_argv[1:])}\n")


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else f"{platform.machine()} CPU"


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """A table as Markdown has it."""
    print(f"| {' | '.join(head)} |")
    print(f"|{'|'.join(' --- ' for _ in head)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
