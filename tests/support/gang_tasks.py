"""A task whose workers add up numbers together, with torch.distributed, step after step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardmill.devices import Device
from shardmill.tasks.context import Context, Group, LongTask, Stopped
from shardmill.tasks.gang import GroupChanged, run_together


class Counting(LongTask):
    """Step n adds n, whoever takes part: rank r of the group adds its part of n.

    Each process notes its generation, rank, size and first step in the folder `seen`.
    """

    output = pa.schema([pa.field("sum", pa.int64()), pa.field("generations", pa.int64())])
    max_errors = "0"
    gang = True

    def __init__(self, steps: int, seen: str, delay_s: float = 0.05, keep_every: int = 5) -> None:
        self.steps, self.seen, self.delay_s, self.keep_every = steps, Path(seen), delay_s, keep_every

    def fingerprint(self) -> dict[str, str]:
        return {"weights": "counting"}

    def open(self, device: Device) -> None:
        import torch

        torch.set_num_threads(1)

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        return run_together(context, lambda group: self._add(context, group))

    def _add(self, context: Context, group: Group) -> Mapping[str, Any]:
        import torch
        from torch import distributed

        before = context.checkpoint()
        total = int(json.loads(before.read("state.json"))["sum"]) if before is not None else 0
        first = before.step if before is not None else 0
        name = f"{group.generation:04d}.{group.rank}.{group.size}.{first}.{os.getpid()}"
        (self.seen / name).touch()
        for step in range(first + 1, self.steps + 1):
            time.sleep(self.delay_s)
            mine = step // group.size + (group.rank < step % group.size)
            said = torch.tensor([mine, int(context.should_stop()), int(not group.is_current())])
            distributed.all_reduce(said)
            total += int(said[0])
            ends = bool(said[1] or said[2])
            if group.rank == 0:
                context.report(step, {"sum": total})
                if step % self.keep_every == 0 or ends:
                    context.keep(step, {"state.json": json.dumps({"sum": total}).encode()})
            if ends:
                # Nobody leaves before the checkpoint is there.
                distributed.barrier()
                raise Stopped if context.should_stop() else GroupChanged
        return {"sum": total, "generations": group.generation}
