"""What all benchmarks print: the machine, the command and a table."""

from __future__ import annotations

import sys

from shardmill.bench import machine


def describe_machine() -> None:
    print(machine.describe_machine())
    print(f"command: python {' '.join(sys.orig_argv[1:])}\n")


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(head)} |")
    print(f"|{'|'.join(' --- ' for _ in head)}|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
