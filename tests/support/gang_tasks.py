"""A task whose workers add up numbers together, step after step: over plain sockets, or with torch.distributed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.tasks.context import Context, Group, LongTask, Stopped
from shardmill.tasks.gang import GroupChanged, process_group, run_together

_STEP_S = 0.05


class Counting(LongTask):
    """Step n adds n, whoever takes part: rank r of the group adds its part of n.

    Each process notes its generation, rank, size, first step and id in the folder `seen`. Steps take time until a file
    `enough` is there.
    """

    output = pa.schema([pa.field("sum", pa.int64()), pa.field("generations", pa.int64())])
    max_errors = "0"
    gang = True

    def __init__(self, steps: int, seen: str, with_torch: bool = False) -> None:
        self.steps, self.seen, self.with_torch = steps, Path(seen), with_torch

    def fingerprint(self) -> dict[str, str]:
        return {"weights": "counting"}

    def open(self, device: Device) -> None:
        if self.with_torch:
            import torch

            torch.set_num_threads(1)

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        meet = process_group if self.with_torch else self._meet
        return run_together(context, lambda group: self._add(context, group), meet)

    def _add(self, context: Context, group: Group) -> Mapping[str, Any]:
        before = context.checkpoint()
        total = int(json.loads(before.read("state.json"))["sum"]) if before is not None else 0
        first = before.step if before is not None else 0
        (self.seen / f"{group.generation:04d}.{group.rank}.{group.size}.{first}.{os.getpid()}").touch()
        for step in range(first + 1, self.steps + 1):
            slow = not (self.seen.parent / "enough").exists()
            time.sleep(_STEP_S if slow else 0.0)
            mine = step // group.size + (group.rank < step % group.size)
            added, stops, changes = self._sum([mine, context.should_stop(), not group.is_current()])
            total += added
            if group.rank == 0:
                context.report(step, {"sum": total})
                if (slow and step % 5 == 0) or stops or changes:
                    context.keep(step, {"state.json": json.dumps({"sum": total}).encode()})
            if stops or changes:
                # Nobody leaves before the checkpoint is there.
                self._sum([0])
                raise Stopped if context.should_stop() else GroupChanged
        return {"sum": total, "generations": group.generation}

    def _sum(self, numbers: Sequence[int]) -> list[int]:
        """The sums over all processes."""
        if self.with_torch:
            import torch

            said = torch.tensor([int(number) for number in numbers])
            torch.distributed.all_reduce(said)
            return [int(number) for number in said]
        others = [_hear(link) for link in self._links] if self._leads else []
        sums = [int(sum(each)) for each in zip(numbers, *others, strict=True)]
        for link in self._links:
            link.write(json.dumps(sums).encode() + b"\n")
            link.flush()
        return sums if self._leads else _hear(self._links[0])

    @contextlib.contextmanager
    def _meet(self, group: Group) -> Iterator[None]:
        """The first process has a link to each other, and each other one to it."""
        self._leads = group.listener is not None
        with contextlib.ExitStack() as opened:
            if group.listener is not None:
                group.listener.settimeout(group.timeout_s)
                links = [group.listener.accept()[0] for _ in range(group.size - 1)]
            else:
                host, _, port = group.address.rpartition(":")
                links = [socket.create_connection((host, int(port)), group.timeout_s)]
            for link in links:
                opened.enter_context(link)
                link.settimeout(group.timeout_s)
            self._links = [opened.enter_context(link.makefile("rwb")) for link in links]
            yield


class FailingBeside(Counting):
    """Fails in every process but the first."""

    def _add(self, context: Context, group: Group) -> Mapping[str, Any]:
        if group.rank:
            raise ValueError("no such item here")
        return super()._add(context, group)


def _hear(link: IO[bytes]) -> list[int]:
    if not (line := link.readline()):
        raise ConnectionError("the other process is gone")
    numbers: list[int] = json.loads(line)
    return numbers
