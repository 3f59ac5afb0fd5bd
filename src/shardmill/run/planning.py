"""From a spec to a run folder that workers can begin on: its plan, its settings and its table. Nobody is placed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from shardmill.core import permission
from shardmill.core.devices import Device
from shardmill.core.dialect import shell_command
from shardmill.core.errors import RunExists, SpecError, StaleResume, UsageError
from shardmill.core.functions import changed_parts, refuse_while_importing
from shardmill.core.telemetry import open_trace
from shardmill.engines import LOCAL, check_detachable, check_device, find_kind, open_engine
from shardmill.engines.base import Engine, check_options
from shardmill.ledger import ORIGIN, Editions, Ledger
from shardmill.plan import NEW_NUMERICS, Plan, is_spilled, new_numerics
from shardmill.plan.shared import refuse_several
from shardmill.plan.spec import Execution, Spec, Work
from shardmill.run.changes import differences
from shardmill.run.costs.within import keep_within
from shardmill.run.planner import devices_for, make_plan, result_schema
from shardmill.run.status.state import read_status
from shardmill.sinks.address import find_delivery, find_table, find_writer
from shardmill.sources import kept_schema
from shardmill.tasks import open_task
from shardmill.tasks.context import LongTask
from shardmill.worker.wanted import is_precise


def permit(spec: Spec, *, of_model: bool) -> None:
    """Whoever names a task or a source allows its code; code that comes with a model is allowed only `of_model`."""
    refuse_while_importing()
    permission.allow(spec.work.code)
    if of_model:
        permission.allow(open_task(spec.work.task, spec.work.params).model_code)


def settle_by_task(spec: Spec) -> Spec:
    """The spec with its task's own limit of failed rows, unless the user gave one; workers that the task can use."""
    task = open_task(spec.work.task, spec.work.params)
    together = isinstance(task, LongTask) and task.gang
    if spec.execution.min_workers and not (together or spec.execution.deadline or spec.execution.budget_usd):
        raise SpecError(
            f"The workers of {spec.work.task!r} do not work on one item together.",
            hint="Give a number of --workers; MIN:MAX goes with --deadline or --budget.",
        )
    limit = task.max_errors
    if not limit or "max_errors" in spec.execution.model_fields_set:
        return spec
    return spec.model_copy(update={"execution": spec.execution.model_copy(update={"max_errors": limit})})


def write_plan(
    ledger: Ledger,
    spec: Spec,
    devices: Sequence[Device],
    *,
    fresh: bool = False,
    resume: bool = False,
    keep_settings: bool = False,
    quiet: bool = True,
    before: Callable[[Plan], None] = lambda plan: None,
    edition_before: Plan | None = None,
) -> Plan:
    """Write the folder of a run, or find the run there: its plan, its table if it loads one, and its settings.

    `keep_settings` leaves those of an existing run alone. `before` is called with the plan of an incomplete load,
    before its table is created. Files that are as they were in the `edition_before` are cut as they were there.
    """
    refuse_several(fresh=fresh, resume=resume)
    began = time.time()
    like = None if fresh else ledger.find_plan()
    if like is not None and like.work.edition:
        spec = spec.model_copy(update={"work": spec.work.model_copy(update={"edition": like.work.edition})})
    new = make_plan(spec, devices, like=like, before=edition_before, quiet=quiet)
    spec = keep_within(None if fresh else ledger, new, spec, devices)
    plan = _settle_plan(ledger, new, fresh=fresh, resume=resume)
    if (trace := open_trace(plan.id, plan.generation)) is not None:
        ledger.notes.put_began(began)
        trace.add("plan", began, time.time(), shards=len(plan.shards))
    if plan.work.to is not None:
        if len(ledger.commits.shards()) < len(plan.shards):
            before(new)
        find_table(new.work).prepare(new, result_schema(new), fresh=fresh)
    prepare_deliveries(plan, spec.execution)
    if not (keep_settings and ledger.execution()):
        places = [f.place for f in new.stat.files]
        to_url = new.work.to.url if new.work.to is not None else ""
        moved = {"root": new.work.root} if new.work.root else {}
        ledger.put_execution({**spec.execution.to_settings(), "places": places, "to_url": to_url, **moved})
    return plan


def prepare_deliveries(plan: Plan, execution: Execution) -> None:
    """Create what the rows go into, or refuse it, before anything is computed.

    A path of the machines that the workers are on means nothing here: it is not opened, and only columns that such a
    store cannot hold are refused.
    """
    import pyarrow as pa

    from shardmill.results.delivery import prepare_delivery

    for address in execution.into:
        schema = pa.schema([*kept_schema(plan), *open_task(plan.work.task, plan.work.params).output])
        is_seen = "://" in address or find_kind(execution.engine).stays_here
        prepare_delivery(plan, schema, address, opens=is_seen)


def open_placer(spec: Spec, engine: Engine | None, quiet: bool) -> tuple[Engine | None, list[Device]]:
    """The engine, unless it is the local one, and the devices of its workers; their number sets the size of shards."""
    check_detachable(spec.execution)
    check_device(spec.execution)
    _check_reach(spec)
    if engine is None and spec.execution.engine != LOCAL:
        engine = open_engine(spec.execution, quiet)
        return engine, list(engine.devices)
    check_options(LOCAL, spec.execution.engine_options, ())
    return engine, devices_for(spec, quiet=quiet)


def check_installed(work: Work, execution: Execution, devices: Sequence[Device]) -> None:
    """Refuse a task for which a library is missing here: its workers would end at their start."""
    task = open_task(work.task, work.params)
    is_precise(execution, task)
    for kind in sorted({device.kind for device in devices}):
        task.check_installed(kind)


def _check_reach(spec: Spec) -> None:
    """Refuse a store that the workers do not reach, or that cannot be delivered to."""
    addresses, to = spec.execution.into, spec.work.to
    if addresses and to is not None:
        raise UsageError("Both --to and --into are given.", hint="Rows go into one of them.")
    for sink, address in [(find_writer(spec.work), ""), *((find_delivery(each), each) for each in addresses)]:
        if sink.reach == "machine" and not find_kind(spec.execution.engine).stays_here:
            deliver = shell_command("resume", "RUN", "--engine", "local", "--into", address)
            raise UsageError(
                f"The sink {sink.name!r} reaches one machine; the engine {spec.execution.engine!r} runs workers on "
                "others.",
                hint=f"Deliver it here afterwards: {deliver}" if address else "Use --engine local.",
            )


def refuse_another_model(ledger: Ledger, plan: Plan) -> None:
    here = open_task(plan.work.task, plan.work.params).fingerprint()
    if new_numerics(plan.fingerprint, here):
        raise StaleResume(
            f"{ledger.url} cannot be resumed: {NEW_NUMERICS}.",
            hint="Start over with --fresh, or choose another --out.",
        )
    if changed := changed_parts(plan.fingerprint, here):
        what = "function" if "function" in plan.fingerprint else "model"
        raise StaleResume(
            f"{ledger.url}: the {what} here is not the one that it was planned with ({', '.join(changed)} differ).",
            hint=f"Resume on a machine that has the planned {what}, or start over with --fresh.",
        )


def _settle_plan(ledger: Ledger, plan: Plan, *, fresh: bool, resume: bool) -> Plan:
    found = ledger.find_plan()
    if found is not None and fresh:
        _refuse_if_busy(ledger, found)
        found = ledger.start_over(plan)
    if found is None:
        if resume:
            raise UsageError(f"{ledger.url}: there is no run to resume.", hint="Leave out --resume to start one.")
        # Indexes of files, the fitted map, spilled data and what an edition is made from are written before the plan.
        if any(not (e.key.startswith(("index/", "fit/", ORIGIN)) or is_spilled(e.key)) for e in ledger.store.list("")):
            raise RunExists(f"{ledger.url} is not empty and holds no run.", hint="Choose another folder with --out.")
        found = ledger.create(plan)
    changes = differences(found, plan)
    if changes:
        raise StaleResume(
            f"{ledger.url} holds a different run: {'; '.join(changes)}.",
            hint=_how_to_go_on(ledger, found, plan),
        )
    return ledger.grow(plan) if (plan.work.items or 0) > (found.work.items or 0) else found


def _how_to_go_on(ledger: Ledger, found: Plan, plan: Plan) -> str:
    """The hint for a run that is another; one of the same work over a source that has changed can be refreshed."""
    hint = "Choose another --out, or start over with --fresh, which deletes the existing run."
    is_same_work = not differences(found, Plan.of(plan.work, found.stat, plan.fingerprint, found.shards))
    if found.work.to is not None or found.work.group_by or not is_same_work:
        return hint
    return f"To compute only what is new or changed: {shell_command('refresh', Editions(ledger.url).run)}. {hint}"


def _refuse_if_busy(ledger: Ledger, found: Plan) -> None:
    live = [w["id"] for w in read_status(ledger, found).workers if w["live"]]
    if live:
        raise RunExists(
            f"{ledger.url}: {len(live)} workers are working on it ({live[0]}).",
            hint="Stop them before you use --fresh.",
        )
