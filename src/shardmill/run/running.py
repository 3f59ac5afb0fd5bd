"""A run from start to end, for Python and the command line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from shardmill.core import permission
from shardmill.core.console import Bar, is_quiet
from shardmill.core.devices import Device, use_first
from shardmill.core.errors import (
    Cure,
    Preempted,
    ShardmillError,
    StoreError,
    TooManyErrors,
    UsageError,
    WorkerFailed,
    too_many_errors,
)
from shardmill.engines import check_stored, end_workers
from shardmill.engines.base import Engine
from shardmill.engines.local import LocalEngine
from shardmill.engines.process import name_worker
from shardmill.ledger import STOPPED, Editions, Ledger, name_person
from shardmill.plan import Plan
from shardmill.plan.sizing import SHARDS_PER_WORKER
from shardmill.plan.spec import SERVER, ErrorLimit, Execution, Spec, make_execution
from shardmill.plugins import check_packages
from shardmill.run.costs.rates import expect, learn
from shardmill.run.costs.within import keep_within
from shardmill.run.here import WorkerHere, is_done_here
from shardmill.run.in_memory import choose_one, is_in_memory
from shardmill.run.planner import result_schema
from shardmill.run.planning import (
    check_installed,
    open_placer,
    permit,
    prepare_deliveries,
    refuse_another_model,
    settle_by_task,
    write_plan,
)
from shardmill.run.result import Run
from shardmill.run.status.state import Status, read_status
from shardmill.run.working import check_wanted, work
from shardmill.sinks.address import find_table
from shardmill.tasks import open_task
from shardmill.tasks.context import LongTask
from shardmill.tasks.kept import KEPT
from shardmill.worker.staff import StaffDesk, end_at_budget
from shardmill.worker.steps import begin_again, end_trace, finish, record_failure

__all__ = ["Run", "StoppedRun", "prepare", "resume", "start", "stop", "work"]

_POLL_S = 0.1
_SHOW_EVERY_S = 0.5
_ASK_EVERY_S = 2.0
# How long the store may fail while the run is watched.
_STORE_AWAY_S = 300.0
_Answer = TypeVar("_Answer")


def start(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    fresh: bool = False,
    resume: bool = False,
    quiet: bool | None = None,
    engine: Engine | None = None,
    allow_code: bool = False,
    asked_at: float | None = None,
    before: Callable[[Plan], None] = lambda plan: None,
) -> Run:
    """Make a plan or find the existing one, place workers, and wait until the run is complete.

    If the spec's execution says `detach`, it returns once the workers are placed, and they do the rest.
    `before` is called with the plan of an incomplete load, before its table is created. Code that comes with the model
    is run only with `allow_code`. The time of the run counts from `asked_at`, by default from now.
    Progress is shown unless it is `quiet`, which it is by default except in a notebook.
    """
    quiet, asked_at = is_quiet(quiet), asked_at or time.time()
    permit(spec, of_model=allow_code)
    ledger = _open_folder(out, engine, fresh=fresh)
    placer, devices = open_placer(spec, engine, quiet)
    if is_in_memory(ledger.url):
        devices = choose_one(devices, spec.execution.device)
    if placer is None:
        check_installed(spec.work, spec.execution, devices)
    spec = settle_by_task(spec)
    plan = write_plan(ledger, spec, devices, fresh=fresh, resume=resume, quiet=quiet, before=before)
    return finish_run(ledger, plan, spec, placer, devices, asked_at, quiet)


def prepare(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    fresh: bool = False,
    quiet: bool = True,
    allow_code: bool = False,
    before: Callable[[Plan], None] = lambda plan: None,
) -> Run:
    """Write the run folder that `start` would write, and place nobody: `work` or `resume` does the rest.

    A run that is already there stays as it is.
    """
    permit(spec, of_model=allow_code)
    ledger = _open_folder(out, None, fresh=fresh)
    _, devices = open_placer(spec, None, quiet)
    spec = settle_by_task(spec)
    write_plan(ledger, spec, devices, fresh=fresh, keep_settings=True, quiet=quiet, before=before)
    return Run(ledger.url)


def _open_folder(out: str | os.PathLike[str], engine: Engine | None, *, fresh: bool) -> Ledger:
    """The current edition of a run; to start over, the first, which holds the others."""
    ledger = Ledger(Editions(out).open(1) if fresh else out)
    if engine is None and ledger.url.startswith("memory:") and not is_in_memory(ledger.url):
        raise UsageError(
            f"{out}: workers are other processes and cannot see this one's memory.", hint="Use a path or a URL."
        )
    return ledger


def resume(
    place: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    *,
    allow_code: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Resume a run from its folder, on any machine that can read it.

    `changes` are keys of `[execution]`: another engine, more workers, another server. The source is not scanned
    again: workers refuse files that have changed since the run was planned. Code and commands that the folder names
    are run only with `allow_code`.
    """
    quiet, asked_at = is_quiet(quiet), time.time()
    ledger = Ledger(place)
    plan, settings = ledger.settle()
    own = {name: value for name, value in settings.items() if name not in ("places", "to_url")}
    changes = {"detach": False, **(changes or {})}
    if changes.get("engine", own.get("engine")) != own.get("engine"):
        own |= {"engine_options": {}, "workers": None}
    spec = Spec(work=plan.work, execution=make_execution({**own, **changes}))
    server = {name: getattr(spec.execution, name) for name in SERVER if changes.get(name)}
    if server:
        if not plan.work.params.get("endpoint"):
            raise UsageError(
                f"{ledger.url} was planned with a model in a folder, not with a server's.",
                hint="Leave out --endpoint and --key-variable.",
            )
        plan = plan.relocated(server)
        permission.allow(plan.work.keys)
    if allow_code:
        permission.allow(plan.code)
    permission.check(plan.code)
    check_packages(plan.packages)
    if not allow_code and "engine_options" not in changes:
        check_stored(spec.execution, ledger.url)
    refuse_another_model(ledger, plan)
    placer, devices = open_placer(spec, None, quiet)
    if {"deadline", "budget_usd"} & set(changes) or spec.execution.acts:
        spec = keep_within(ledger, plan, spec, devices)
    if placer is None and len(ledger.commits.shards()) < len(plan.shards):
        check_installed(plan.work, spec.execution, devices)
    if plan.work.to is not None:
        find_table(plan.work).prepare(plan, result_schema(plan))
    prepare_deliveries(plan, spec.execution)
    kept = {name: value for name, value in settings.items() if name in ("places", "to_url")}
    ledger.put_execution({**spec.execution.to_settings(), **kept})
    return finish_run(ledger, plan, spec, placer, devices, asked_at, quiet)


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """The result of `stop`: how many workers were running, and how many have not ended yet."""

    run: str
    state: str
    workers: int
    living: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def stop(place: str | os.PathLike[str], *, patience_s: float = 30.0) -> StoppedRun:
    """End the workers of a run, wherever they are and whoever placed them; committed shards stay."""
    ledger = Ledger(place)
    plan, settings = ledger.plan(), ledger.execution()
    before = read_status(ledger, plan)
    if before.state == "complete":
        return StoppedRun(ledger.url, before.state, 0, 0)
    was_wanted = ledger.state.is_wanted()
    ledger.state.stop(name_person())
    stopped = _end_workers(ledger, plan, make_execution(settings), _count_live(before), patience_s)
    if was_wanted:
        end_trace(ledger, plan, STOPPED)
    return stopped


def _end_workers(ledger: Ledger, plan: Plan, execution: Execution, live: int, patience_s: float) -> StoppedRun:
    ended = end_workers(execution, ledger.url, plan)
    if ended is not None:
        return StoppedRun(ledger.url, "stopped", max(live, ended), 0)
    status, deadline = read_status(ledger, plan), time.monotonic() + patience_s
    while status.state == "running" and time.monotonic() < deadline:
        time.sleep(_SHOW_EVERY_S)
        status = read_status(ledger, plan)
    return StoppedRun(ledger.url, status.state, live, _count_live(status))


def _count_live(status: Status) -> int:
    return sum(worker["live"] for worker in status.workers)


def _as_many_as_needed(devices: list[Device], plan: Plan, spec: Spec, shards: int) -> list[Device]:
    """No more workers on GPUs than shards that are left, unless their number was asked for: each loads the model.

    Of those that would share a GPU one is enough if there is little to do.
    """
    together = isinstance(open_task(plan.work.task, plan.work.params), LongTask)
    if spec.execution.workers or together or any(device.kind != "cuda" for device in devices):
        return devices
    little = shards < SHARDS_PER_WORKER * len(devices)
    return use_first(devices, min(shards, len({device.visible for device in devices})) if little else shards)


def finish_run(
    ledger: Ledger,
    plan: Plan,
    spec: Spec,
    engine: Engine | None,
    devices: list[Device],
    asked_at: float,
    quiet: bool,
) -> Run:
    """Place workers for the shards that are left, wait for them, and check the outcome."""
    ledger.confirm()
    if spec.execution.acts:
        ledger.staff.begin_again()
    ledger.state.want(name_person(), asked_at)
    if left := len(plan.shards) - len(ledger.commits.shards()):
        check_wanted(ledger)
        devices = _as_many_as_needed(devices, plan, spec, left)
        began, precision = time.time(), spec.execution.precision
        if (expected := expect(plan, devices, precision, began)) is not None:
            ledger.notes.put_forecast(expected)
        ledger.workers.roll_up()
        if any(device.kind == "cuda" for device in devices):
            # A model that searches left on a GPU takes memory from its workers.
            KEPT.close()
        in_memory = is_in_memory(ledger.url)
        placed = engine or LocalEngine(
            devices,
            max_restarts=0 if in_memory else spec.execution.max_restarts,
            stuck_s=spec.execution.stuck_s,
            detached=spec.execution.detach,
            here=WorkerHere if in_memory or is_done_here(ledger, plan, spec.execution, devices) else None,
        )
        if spec.execution.detach:
            _leave(placed, ledger.url)
            return Run(ledger.url)
        try:
            _watch(placed, ledger, plan, spec, quiet)
        except (WorkerFailed, TooManyErrors) as error:
            _fail(ledger, plan, error)
            raise
        # The pace of an edition is that of copying.
        if not in_memory and not plan.work.edition:
            learn(ledger, plan, devices, precision, began)
    run = Run(ledger.url)
    _check_complete(run)
    begin_again(run.ledger, run.plan, spec.execution)
    if not finish(run.ledger, run.plan, spec.execution, name_worker(os.getpid()), stop=threading.Event(), quiet=quiet):
        check_wanted(run.ledger)
    return run


def _fail(ledger: Ledger, plan: Plan, error: ShardmillError) -> None:
    """Record that the run failed, unless the error is curable or workers of other parents get on well."""
    with suppress(StoreError):
        others = isinstance(error, WorkerFailed) and read_status(ledger, plan).workers
        if error.cure is Cure.FINAL and not any(w["live"] and w["commits"] for w in others or ()):
            record_failure(ledger, name_person(), error.message, error.hint, resumes=error.resumes)


def _watch(engine: Engine, ledger: Ledger, plan: Plan, spec: Spec, quiet: bool) -> None:
    limit = ErrorLimit.parse(spec.execution.max_errors)
    desk = StaffDesk(ledger, plan, spec.execution, name_person()) if spec.execution.acts else None
    few = open_task(plan.work.task, plan.work.params).few_rows
    placement = engine.start(ledger.url)
    shown = asked = 0.0
    polling, watching = _Patience(), _Patience()
    try:
        with Bar(spec.work.task, quiet=quiet) as bar:
            while polling.ask(placement.poll, True):
                time.sleep(_POLL_S)
                if time.monotonic() - shown < _SHOW_EVERY_S:
                    continue
                shown = time.monotonic()
                if shown - asked >= _ASK_EVERY_S:
                    asked = shown
                    watching.ask(lambda: check_wanted(ledger), None)
                    if desk is not None:
                        watching.ask(lambda: _follow_limits(ledger, desk), None)
                status = watching.ask(lambda: _look(ledger, plan), None)
                if status is None:
                    continue
                bar.at(status.share, status.describe() + getattr(placement, "note", ""))
                if limit.exceeded(status.errors, max(status.rows, few)):
                    raise too_many_errors(status.errors, status.rows, spec.execution.max_errors, run=ledger.url)
            if (status := watching.ask(lambda: _look(ledger, plan), None)) is not None:
                bar.at(status.share, f"{status.rows:,} rows · {status.errors:,} errors")
    except (KeyboardInterrupt, SystemExit):
        # Workers that need nobody go on without the user.
        if (leave := getattr(placement, "leave", None)) is None:
            placement.stop()
        else:
            leave()
        raise
    except BaseException:
        placement.stop()
        raise
    placement.stop()


def _follow_limits(ledger: Ledger, desk: StaffDesk) -> None:
    """Take part in deciding about the number of workers, and say so once the budget has ended the run."""
    desk.look()
    if ledger.staff.is_ending and end_at_budget(ledger, name_person()):
        check_wanted(ledger)


def _look(ledger: Ledger, plan: Plan) -> Status:
    """The state of the run; what was read for it is sealed for others, and a view of it is written now and then."""
    ledger.see_growth(plan)
    status = read_status(ledger, plan)
    ledger.segments.seal()
    workers = _count_live(status)
    if ledger.overview.is_turn(len(plan.shards), workers, workers * _SHOW_EVERY_S):
        ledger.overview.write(plan, name_person(), workers)
    return status


def _leave(engine: Any, run: str) -> None:
    """Place workers and leave them on their own; none is left if that fails."""
    placement = engine.start(run)
    try:
        placement.detach()
    except BaseException:
        placement.stop()
        raise


class _Patience:
    """Lets a store be away for a while: workers have their own retries, and their commits are what counts."""

    def __init__(self) -> None:
        self._away_since: float | None = None

    def ask(self, request: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            answer = request()
        except StoreError as error:
            self._away_since = self._away_since or time.monotonic()
            if not error.retryable or time.monotonic() - self._away_since >= _STORE_AWAY_S:
                raise
            return otherwise
        self._away_since = None
        return answer


def _check_complete(run: Run) -> None:
    status = read_status(run.ledger, run.plan)
    if status.shards_done < status.shards:
        if (log := run.ledger.staff.look()) is not None and log.now is not None and log.now.ends:
            end_at_budget(run.ledger, name_person())
        check_wanted(run.ledger)
        raise Preempted(
            f"The workers were told to stop; {status.shards - status.shards_done} of {status.shards} shards are left.",
            hint="Run the same command again: it resumes.",
        )
