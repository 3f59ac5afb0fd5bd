"""From a spec to its plan: examines the source, the model and the devices, and cuts the shards.

Design: docs/design/planning-and-sources.md
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from shardmill.core.console import Bar, say
from shardmill.core.devices import Device, place_workers
from shardmill.core.errors import MissingExtra, ModelError, SpecError, UsageError
from shardmill.core.where.condition import columns_of
from shardmill.core.where.parsing import parse_condition
from shardmill.plan import ITEM, ROW, Plan, Shard, shard_target_bytes
from shardmill.plan.sizing.profile import Rated, recall_rate, work_digest
from shardmill.plan.spec import Spec, Work
from shardmill.run.sampled import SampledSource
from shardmill.sources import (
    ALL_CONFIGS,
    ALL_SPLITS,
    Fields,
    Source,
    SourceStat,
    discover,
    kept_schema,
    list_columns,
    name_by_place,
    open_source,
    sort_groups,
)
from shardmill.sources.columns import column_names, split_keep
from shardmill.sources.documents.choosing import UnclearFormat
from shardmill.sources.documents.document import PAGE
from shardmill.sources.doubles import tell_doubles
from shardmill.sources.formats import find_format
from shardmill.sources.origin import AUTO
from shardmill.sources.range import COLUMN, items_place
from shardmill.sources.taking import check_condition, cut_at
from shardmill.sources.unchanged import cut_as_before
from shardmill.tasks import open_task
from shardmill.tasks.base import Task
from shardmill.tasks.context import LongTask

if TYPE_CHECKING:
    import pyarrow as pa

# A source of which a limit takes little is cut into this many pieces at most: each cut may have to be looked for.
_FINEST = 10_000
# What a path in the source is beside the file that it names, as an order of magnitude.
_PATH_SHARE = 64 / 100_000


def result_schema(plan: Plan) -> pa.Schema:
    """The columns of a plan's result: those kept from the source, then those of the task."""
    import pyarrow as pa

    return pa.schema([*kept_schema(plan), *open_task(plan.work.task, plan.work.params).written])


def devices_for(spec: Spec, *, quiet: bool = True) -> list[Device]:
    """One device per worker: as many as asked for, or as many as the task can use.

    With "auto", a task that cannot use the GPUs here gets the CPU, and the user is told why.
    """
    task, execution = open_task(spec.work.task, spec.work.params), spec.execution
    placed = place_workers(execution.device, execution.workers, task.workers_per_gpu)
    if execution.device == "auto" and placed[0].kind == "cuda":
        try:
            task.check_installed("cuda")
        except (MissingExtra, ModelError) as error:
            if not quiet:
                say(f"{placed[0].name} is not used: {error.message} {error.hint}")
            placed = place_workers("cpu", execution.workers)
    if isinstance(task, LongTask) and task.gang:
        _check_together(placed)
    return placed


def _check_together(placed: Sequence[Device]) -> None:
    """Workers that work on one item together talk from GPU to GPU, or from CPU to CPU."""
    if len({device.kind for device in placed}) > 1:
        raise UsageError(
            "--device all: workers on a GPU and on the CPU cannot work on one item together.", hint="Use --device cuda."
        )
    if any(device.kind == "cuda" and device.sharing > 1 for device in placed):
        count = len({device.visible for device in placed})
        raise UsageError(
            f"{len(placed)} workers cannot work on one item together on {count} GPU{'s' * (count > 1)}.",
            hint=f"Give each its own: --workers {count}",
        )


def make_plan(
    spec: Spec,
    devices: Sequence[Device],
    *,
    like: Plan | None = None,
    before: Plan | None = None,
    quiet: bool = True,
) -> Plan:
    """Make the plan of a spec: examine the source, take the model's fingerprint, cut the shards.

    If the plan `like` has the same query and key, its shards are reused: the rows of a query may have changed. The
    groups that it has sorted are reused too. Files that may be lines or documents are read as `like` reads them; of a
    new run the user is asked, unless it is `quiet`. Files that are as they were when the plan of the edition `before`
    was made are cut as they were then.
    """
    try:
        return _make_plan(spec, spec.work, spec.work.format, devices, like, before, quiet)
    except UnclearFormat as unclear:
        if like is not None and unclear.is_settled_by(like.stat.format):
            format, read_as = like.work.format, like.stat.format
        elif not quiet and sys.stdin.isatty() and sys.stderr.isatty():
            format = read_as = _ask_format(unclear)
        else:
            raise
    work = spec.work.model_copy(update={"format": format})
    return _make_plan(spec, work, read_as, devices, like, before, quiet)


def _ask_format(unclear: UnclearFormat) -> str:
    say(unclear.message)
    units = unclear.formats
    answer = input(f"One item per {' or per '.join(units)}? [{'/'.join(units)}] ").strip().lower()
    found = [format for unit, format in units.items() if answer and unit.startswith(answer)]
    if not found:
        raise unclear
    return found[0]


def _make_plan(
    spec: Spec,
    work: Work,
    read_as: str | None,
    devices: Sequence[Device],
    like: Plan | None,
    before: Plan | None,
    quiet: bool,
) -> Plan:
    task, work = _settle_fields(_follow_model(work, like), like, read_as)
    if work.id == (AUTO,) and AUTO not in list_columns(work.source, work.query, read_as, work.config):
        work = work.model_copy(update={"id": name_by_place(work.source, work.query, read_as, work.config)})
        if not quiet:
            say(f"Items are numbered by their place in the source: the id is {' and '.join(work.id)}.")
    asked = columns_of(parse_condition(work.where)) if work.where else ()
    own = (work.picture,) if work.picture else ()
    work = work.model_copy(update={"fields": tuple(dict.fromkeys((*work.fields, *task.fields, *asked, *own)))})
    if work.root:
        work = work.model_copy(update={"root": os.path.abspath(os.path.expanduser(work.root))})
    if work.counts_alone and work.items:
        work = work.model_copy(update={"source": (items_place(work.items),), "text": COLUMN})
    fields = Fields.of(work)
    if like is not None and not (work.split or like.work.split):
        # Runs from before splits were told apart have all of them.
        fields = replace(fields, split=ALL_SPLITS)
    if like is not None and not (work.config or like.work.config):
        fields = replace(fields, config=ALL_CONFIGS)
    notes: list[str] = []
    with _LateBar("scanning for seek points", quiet) as bar:
        stat = discover(work.source, fields, read_as, bar.at, notes.append)
    check_condition(stat, fields)
    if work.group_by:
        if like is not None and _has_groups(like, work, stat):
            pairs = zip(stat.files, like.stat.files, strict=True)
            files = tuple(replace(here, entries=(), index=before.index) for here, before in pairs)
            return Plan.of(work, replace(stat, files=files), task.fingerprint(), _repeat(like.shards, work))
        with _LateBar("sorting into groups", quiet) as bar:
            stat = sort_groups(stat, fields, work.max_item_bytes, bar.at)
    if find_format(stat.format).bordered:
        task, work = _settle_borders(task, work)
        if work.keep != fields.keep:
            fields = replace(fields, keep=work.keep, wanted=work.fields)
            stat = replace(stat, columns={name: stat.columns[name] for name in column_names(fields)})
    if any(name not in work.params for name in task.settles) and not _is_settled(work, like):
        found = task.settle(SampledSource(open_source(stat, fields, work.max_item_bytes), task, stat.size_bytes, quiet))
        work = work.model_copy(update={"params": {**work.params, **found}})
        task = open_task(work.task, work.params)
    _check_names(task, Plan.of(work, stat, {}, ()).kept, numbered=task.rows_vary or work.takes_part)
    if like is not None and like.work.query and like.work.query == work.query and like.work.id == work.id:
        return Plan.of(work, stat, task.fingerprint(), like.shards)
    # No item is opened to cut the source.
    fields = replace(fields, picture="")
    source, fingerprint = open_source(stat, fields, work.max_item_bytes), task.fingerprint()
    digest = work_digest(work.task, fingerprint, work.params, listed=bool(work.root))
    share = _PATH_SHARE if work.root else 1.0
    rates = [_rate(task, device, digest, spec.execution.precision, share) for device in devices]
    target = 1 if work.items else spec.execution.shard_bytes or shard_target_bytes(stat.size_bytes, rates)
    if before is None:
        shards = _repeat(source.shards(target), work)
    else:
        shards = cut_as_before(lambda part: open_source(part, fields, work.max_item_bytes), stat, work, before, target)
    if work.limit and like is not None and _has_part(like, work):
        shards = like.shards
    elif work.limit:
        shards = cut_at(source, shards, work.limit)
        finer = max(shard_target_bytes(sum(s.weight_bytes for s in shards), rates), stat.size_bytes // _FINEST)
        if finer < target and not spec.execution.shard_bytes:
            shards = cut_at(source, source.shards(finer), work.limit)
    if not quiet:
        for note in (*task.plan_notes, *(notes if like is None else ())):
            say(note)
        _print_notes(source, len(shards), len(devices))
        if like is None and (doubles := tell_doubles(stat, fields, shards)):
            say(doubles)
    return Plan.of(work, stat, fingerprint, shards)


def _settle_borders(task: Task, work: Work) -> tuple[Task, Work]:
    """The task and its work over texts with pages and headings. A page that is kept is the page of each row, not of its
    item, for a task that can tell it."""
    params = dict(work.params)
    if task.border_param:
        params.setdefault(task.border_param, True)
    keep = tuple(entry for entry in work.keep if split_keep(entry)[0] != PAGE)
    if task.page_param and len(keep) < len(work.keep):
        params[task.page_param] = True
        work = work.model_copy(update={"keep": keep})
    if params == work.params:
        return task, work
    task = open_task(work.task, params)
    fields = tuple(dict.fromkeys((*work.fields, *task.fields)))
    return task, work.model_copy(update={"params": params, "fields": fields})


def _has_part(like: Plan, work: Work) -> bool:
    """Whether a plan has the shards of the same part of the source; whether that has changed is found later."""
    return all(getattr(like.work, name) == getattr(work, name) for name in ("where", "take", "limit", "id", "query"))


def _repeat(shards: Sequence[Shard], work: Work) -> Sequence[Shard]:
    """The one shard of all rows as often as there are items of it; else the shards as they are."""
    if not (work.items and work.group_by):
        return shards
    return [replace(shards[0], index=index) for index in range(work.items)]


def _follow_model(work: Work, like: Plan | None) -> Work:
    """The work with the parameters by its model's own settings; without those that the plan `like` began without.

    The parameters of an edition are those of the one before.
    """
    if work.edition:
        return work
    begun = like.work.params if like is not None and like.work.task == work.task else None
    found = {
        name: value
        for name, value in open_task(work.task, work.params).follow_model().items()
        if name not in work.params and (begun is None or name in begun)
    }
    return work.model_copy(update={"params": {**work.params, **found}}) if found else work


def settle_like(work: Work, like: Plan) -> Work:
    """The work of a command with the parameters that planning settled for a plan, if all others are the same.

    What the plan left open, before it could be settled, stays open.
    """
    return _settle_fields(_follow_model(work, like), like, like.stat.format)[1]


def _settle_fields(work: Work, like: Plan | None, read_as: str | None) -> tuple[Task, Work]:
    """The task and its work, with parameters that the existing plan `like` settled, or all columns as its fields."""
    task, params = open_task(work.task, work.params), dict(work.params)
    missing = [name for name in task.settles if name not in params]
    if not missing:
        return task, work
    if like is not None and {n: v for n, v in like.work.params.items() if n not in missing} == params:
        params |= {name: like.work.params[name] for name in missing if name in like.work.params}
    elif "fields" in missing:
        params["fields"] = [] if work.group_by else list(list_columns(work.source, work.query, read_as, work.config))
    return open_task(work.task, params), work.model_copy(update={"params": params})


def _is_settled(work: Work, like: Plan | None) -> bool:
    """Whether a run began with these parameters: what it left open, before that could be settled, stays open."""
    return bool(work.edition) or (like is not None and like.work.task == work.task and like.work.params == work.params)


def _rate(task: Task, device: Device, digest: str, precision: str, share: float) -> float:
    """Source bytes per second of a worker: as measured by an earlier run on this machine, or as the task expects.

    `share` is what the source has of the bytes that the task gets.
    """
    measured = recall_rate(Rated.on(device.name, digest, precision))
    return measured.bytes_per_s * device.share if measured is not None else share * task.bytes_per_s(device.kind)


def _has_groups(like: Plan, work: Work, stat: SourceStat) -> bool:
    """Whether a plan has the groups of the same rows, sorted when it was made."""
    same = ("group_by", "text", "keep", "fields", "max_item_bytes")
    if any(getattr(like.work, name) != getattr(work, name) for name in same) or like.stat.columns != stat.columns:
        return False
    old, new = ([(f.name, *f.identity[1:]) for f in each.files] for each in (like.stat, stat))
    return old == new and bool(like.stat.files[0].index)


def _print_notes(source: Source, shards: int, workers: int) -> None:
    """Print the source's notes on how it is cut."""
    notes = list(source.notes)
    if notes and shards < workers:
        notes.append(f"Only {shards} of the {workers} workers will have work.")
    for note in notes:
        say(note)


class _LateBar(ExitStack):
    """A progress bar that appears at its first update."""

    def __init__(self, label: str, quiet: bool) -> None:
        super().__init__()
        self._label, self._quiet = label, quiet
        self._bar: Bar | None = None

    def at(self, share: float, note: str) -> None:
        self._bar = self._bar or self.enter_context(Bar(self._label, quiet=self._quiet))
        self._bar.at(share, note)


def _check_names(task: Task, columns: Iterable[str], *, numbered: bool) -> None:
    taken = {ROW, *task.written.names, *([ITEM] if numbered else [])}
    for name in columns:
        if name in taken:
            raise SpecError(
                f"The column {name!r} has the name of one of the result's own columns.",
                hint="Leave it out of --id and --keep, or rename it in the source.",
            )
