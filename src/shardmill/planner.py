"""From a spec to its plan: looks at the source, the model and the devices, and lays out the shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from shardmill.console import Bar, say
from shardmill.devices import Device, place_workers
from shardmill.errors import SpecError
from shardmill.plan import ROW, Plan, shard_target_bytes
from shardmill.sources import Fields, Source, discover, kept_schema, open_source
from shardmill.spec import Spec
from shardmill.tasks import open_task
from shardmill.tasks.base import Task

if TYPE_CHECKING:
    import pyarrow as pa


def result_schema(plan: Plan) -> pa.Schema:
    """The columns of a plan's result: those kept from the source, then those that the task makes."""
    import pyarrow as pa

    return pa.schema([*kept_schema(plan.stat), *open_task(plan.work.task, plan.work.params).output])


def devices_for(spec: Spec) -> list[Device]:
    """The devices that workers are placed on: as asked, or as many as the task can use."""
    task = open_task(spec.work.task, spec.work.params)
    return place_workers(spec.execution.device, spec.execution.workers, task.workers_per_gpu)


def make_plan(spec: Spec, devices: Sequence[Device], *, like: Plan | None = None, quiet: bool = True) -> Plan:
    """The plan of a spec: the source looked at, the model's fingerprint taken, the shards laid out.

    A query is not cut again where it was cut already, in the plan it is to be `like`: its rows may have changed.
    """
    work = spec.work
    task = open_task(work.task, work.params)
    fields = Fields.of(work)
    with _LateBar("looking for entries", quiet) as bar:
        stat = discover(work.source, fields, work.format, bar.at)
    _check_names(task, list(stat.columns))
    target = spec.execution.shard_bytes or shard_target_bytes(stat.size_bytes, devices)
    if like is not None and like.work.query and like.work.query == work.query and like.work.id == work.id:
        return Plan.of(work, stat, task.fingerprint(), like.shards)
    source = open_source(stat, fields, work.max_item_bytes)
    shards = source.shards(target)
    if not quiet:
        _tell(source, len(shards), len(devices))
    return Plan.of(work, stat, task.fingerprint(), shards)


def _tell(source: Source, shards: int, workers: int) -> None:
    """What a source has to say about how it is cut."""
    notes = list(source.notes)
    if notes and shards < workers:
        notes.append(f"There is work for {shards} of the {workers} workers.")
    for note in notes:
        say(note)


class _LateBar(ExitStack):
    """A bar that is not seen before there is something to say."""

    def __init__(self, label: str, quiet: bool) -> None:
        super().__init__()
        self._label, self._quiet = label, quiet
        self._bar: Bar | None = None

    def at(self, share: float, note: str) -> None:
        self._bar = self._bar or self.enter_context(Bar(self._label, quiet=self._quiet))
        self._bar.at(share, note)


def _check_names(task: Task, columns: list[str]) -> None:
    taken = {ROW, *task.output.names}
    for name in columns:
        if name in taken:
            raise SpecError(
                f"The column {name!r} would hide the result's own column of that name.",
                hint="Leave it out of --id and --keep, or rename it in the source.",
            )
