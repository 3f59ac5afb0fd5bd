"""A process that has imported what workers need and forks them, so that a worker that is killed costs little."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

_IMPORTED = (
    *("shardmill.testing", "shardmill.models.torch_kernels", "shardmill.models.tokenizer", "shardmill.sources.lines"),
    *("shardmill.verbs.answer.reader", "shardmill.verbs.summarize.extractive", "shardmill.models.decoding.generator"),
    *("transformers.models.bert.modeling_bert", "transformers.models.llama.modeling_llama"),
    *("transformers.models.auto.tokenization_auto", "transformers.models.bert.tokenization_bert"),
    "transformers.convert_slow_tokenizer",
    *("bm25s", "pyarrow.parquet", "psycopg"),
)


class Forker:
    """Calls functions in forked processes, one at a time."""

    def __init__(self, to: IO[str], back: IO[str]) -> None:
        self._to, self._back = to, back

    def call(self, function: str, *args: Any) -> int:
        """Call `module:function` with plain values in a process of its own; the exit status, negative for a signal."""
        self._to.write(json.dumps([function, args]) + "\n")
        self._to.flush()
        return int(self._back.readline())

    def kill_at_each(self, run: str, steps: Sequence[str]) -> None:
        """Have one worker after another killed at its first such step."""
        for step in steps:
            ended = self.call(f"{__name__}:work", run, step)
            assert ended == -signal.SIGKILL, f"the worker did not reach {step}"


@contextmanager
def forker(without: Sequence[str] = ()) -> Iterator[Forker]:
    """Modules that the workers are to do `without` are not found there, as if they were not installed."""
    command = [sys.executable, "-m", __name__, *without]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Forker(process.stdin, process.stdout)
    finally:
        with suppress(OSError):
            process.stdin.close()
        process.wait()
        process.stdout.close()


def work(run: str, step: str, after: int = 0) -> None:
    """Work on a run until a step is reached the `after`-th time; then die."""
    from shardmill.core.devices import Device
    from shardmill.ledger import Ledger
    from shardmill.testing import crash_at
    from shardmill.worker import Worker

    Worker(Ledger(run), device=Device("cpu", "cpu", 1), on_step=crash_at(step, after)).work()


def _fork(function: str, args: Sequence[Any]) -> int:
    if (child := os.fork()) == 0:
        os.dup2(2, 1)
        try:
            module, _, name = function.partition(":")
            getattr(importlib.import_module(module), name)(*args)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(sys.argv[1:]))  # type: ignore[arg-type]
    for _name in _IMPORTED:
        with suppress(ImportError):
            importlib.import_module(_name)
    for _line in sys.stdin:
        print(_fork(*json.loads(_line)), flush=True)
