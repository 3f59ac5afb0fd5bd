"""Processes forked from a server that has imported what they need; one server for each list of modules.

`multiprocessing` has one server, and the list that was set last: of all files that pytest collects, one gets its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any
from unittest import mock

from shardmill.core import permission
from tests.support.waiting import PATIENCE_S

# What workers import that run a fake task, load a table or split a source.
LIGHT = (
    *("pytest", "psutil", "shardmill.testing", "shardmill.verbs.split.splitter", "shardmill.worker.process"),
    *("shardmill.sources.lines", "shardmill.sinks.postgres", "pyarrow.compute", "pyarrow.parquet", "psycopg"),
)

_servers: dict[tuple[str, ...], forkserver.ForkServer] = {}


class ForkedProcess(ForkServerProcess):
    """A process of the server that has these modules."""

    def __init__(self, modules: tuple[str, ...], **how: Any) -> None:
        super().__init__(**how)
        self.modules = modules

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        server = _servers[process_obj.modules]
        with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
            return ForkServerProcess._Popen(process_obj)


class Forking(ForkServerContext):
    """As multiprocessing's context "forkserver", with modules of its own. Files with the same list share a server."""

    def __init__(self, modules: Sequence[str] = LIGHT) -> None:
        super().__init__()
        names = tuple(modules)
        if names not in _servers:
            _servers[names] = forkserver.ForkServer()
            _servers[names].set_forkserver_preload(list(names))
        self.Process = partial(ForkedProcess, names)


class ForkedWorker:
    """What `python -m shardmill.worker RUN` is, from a server; asked and told as a Popen."""

    def __init__(self, run: str, modules: Sequence[str] = LIGHT) -> None:
        self._process = Forking(modules).Process(target=_be_worker, args=(run, sorted(permission._allowed)))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        status: int | None = self._process.exitcode
        return status

    def wait(self, timeout: float = PATIENCE_S) -> int:
        self._process.join(timeout)
        status = self.poll()
        assert status is not None, "the worker hangs"
        return status

    def kill(self) -> None:
        self._process.kill()


def _be_worker(run: str, code: Sequence[str]) -> None:
    from shardmill.worker.__main__ import main

    permission.allow(code)
    os.environ["SHARDMILL_THREADS"] = "1"
    sys.exit(main(["worker", run]))
