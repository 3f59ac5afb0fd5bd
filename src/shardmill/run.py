"""A run from start to end, for Python and the command line."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from shardmill import permission
from shardmill.console import Bar, duration, say
from shardmill.costs.rates import expect, learn
from shardmill.devices import Device
from shardmill.engines import LOCAL, check_stored, end_workers, open_engine
from shardmill.engines.base import Engine, check_options
from shardmill.engines.local import LocalEngine
from shardmill.errors import Preempted, RunExists, StaleResume, StoreError, UsageError, nearest, too_many_errors
from shardmill.ledger import Ledger
from shardmill.plan import NEW_NUMERICS, ROW, Plan, differences, new_numerics
from shardmill.planner import devices_for, make_plan, result_schema
from shardmill.spec import ErrorLimit, Spec, make_execution
from shardmill.status.load import read_load
from shardmill.status.state import Status, read_status
from shardmill.tasks import open_here, open_task

if TYPE_CHECKING:
    import pyarrow as pa

    from shardmill.costs.cost import Cost
    from shardmill.results.merge import Merged
    from shardmill.results.search import Hit
    from shardmill.results.verify import Report

_POLL_S = 0.1
_SHOW_EVERY_S = 0.5
_ASK_EVERY_S = 2.0
# How long the store may fail while the run is watched.
_STORE_AWAY_S = 300.0
_Answer = TypeVar("_Answer")


class Run:
    """A run folder: its status, its verification and its result. `allow_code` lets it name code that runs here."""

    def __init__(self, place: str | os.PathLike[str], *, allow_code: bool = False) -> None:
        self.ledger = Ledger(place)
        self.plan: Plan = self.ledger.plan()
        if allow_code:
            permission.allow(self.plan.code)

    def __repr__(self) -> str:
        return f"Run({self.ledger.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the folder's URL; another process opens the folder itself, with the same permission."""
        return partial(Run, allow_code=all(map(permission.is_allowed, self.plan.code))), (self.ledger.url,)

    def status(self) -> Status:
        """The state of the run, from its folder and, for a load, from the batch records in the database."""
        return replace(read_status(self.ledger, self.plan), load=read_load(self.plan))

    def verify(
        self, *, sample: int = 64, rows: int | None = None, dims: int | None = None, quiet: bool = True
    ) -> Report:
        """Check the result against plan and source, and optionally against expected rows and dimensions.

        The report is also saved in the run folder.
        """
        from shardmill.results.verify import Expected, verify

        return verify(self.ledger, self.plan, sample=sample, expected=Expected(rows, dims), quiet=quiet)

    def cost(self, usd_per_hour: float | None = None) -> Cost:
        """What the run has cost so far, at `usd_per_hour` or the catalogue's price."""
        from shardmill.costs.cost import read_cost

        return read_cost(self.ledger, self.plan, usd_per_hour)

    def merge(self, out: str | os.PathLike[str], *, quiet: bool = True) -> Merged:
        """Write the result as one .parquet or .npy file, in source order."""
        from shardmill.results.merge import merge

        return merge(self.ledger, self.plan, os.fspath(out), quiet=quiet)

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The result in source order, batch by batch. The first column is always `row`."""
        from shardmill.results.merge import part_schema, read_rows

        names = [ROW, *part_schema(self.ledger, self.plan).names]
        for name in columns or ():
            if name not in names:
                raise UsageError(f"The result has no column {name!r}.", hint=nearest(name, names))
        stored = None if columns is None else [name for name in columns if name != ROW]
        return read_rows(self.ledger, self.plan, stored)

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """The whole result as one Arrow table, in memory."""
        import pyarrow as pa

        return pa.Table.from_batches(self.batches(columns))

    def search(self, text: str, k: int = 5, *, quiet: bool = True) -> list[Hit]:
        """The items nearest in meaning to a text, nearest first."""
        return self.search_many([text], k, quiet=quiet)[0]

    def search_many(self, texts: Sequence[str], k: int = 5, *, quiet: bool = True) -> list[list[Hit]]:
        """Several searches with the model loaded once."""
        from shardmill.results.search import check_request, search

        task = open_task(self.plan.work.task, self.plan.work.params)
        embed_query = task.embed_query
        if embed_query is None:
            raise UsageError(f"The result of the task {self.plan.work.task!r} cannot be searched.")
        check_request(self.ledger, self.plan, texts, k)
        device = open_here(task, precise=self.ledger.execution().get("precision") == "float32")
        if not quiet:
            say(f"Searching with the model on {device.name}.")
        return [search(self.ledger, self.plan, embed_query(text), k, quiet=quiet) for text in texts]

    def errors(self) -> Iterator[dict[str, Any]]:
        """The rows that failed, with their line in the file and row in the source where known."""
        commits = self.ledger.commits.read()
        row: int | None = 0
        lines: dict[int, int | None] = {}
        for shard in self.plan.shards:
            commit = commits.get(shard.index)
            before = lines.get(shard.file, 0)
            if commit is None:
                row, lines[shard.file] = None, None
                continue
            for record in self.ledger.errors.read(commit):
                yield {
                    **record,
                    "line": None if before is None else before + record["line_in_shard"],
                    "row": None if row is None else row + record["row_in_shard"],
                }
            lines[shard.file] = None if before is None else before + commit.lines
            row = None if row is None else row + commit.rows


def start(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    fresh: bool = False,
    resume: bool = False,
    quiet: bool = True,
    engine: Engine | None = None,
    before: Callable[[Plan], None] = lambda plan: None,
) -> Run:
    """Make a plan or find the existing one, place workers, and wait until the run is complete.

    `before` is called with the plan of an incomplete load, before its table is created.
    """
    permission.allow(spec.work.code)
    ledger = Ledger(out)
    if engine is None and ledger.url.startswith("memory:"):
        raise UsageError(
            f"{out}: workers are other processes and cannot see this one's memory.", hint="Use a path or a URL."
        )
    placer, devices = _place(spec, engine, quiet)
    new = make_plan(spec, devices, like=None if fresh else ledger.find_plan(), quiet=quiet)
    plan = _settle_plan(ledger, new, fresh=fresh, resume=resume)
    if plan.work.to is not None:
        from shardmill.sinks.table import prepare

        if len(ledger.commits.shards()) < len(plan.shards):
            before(new)
        prepare(new, result_schema(new), fresh=fresh)
    places = [f.place for f in new.stat.files]
    to_url = new.work.to.url if new.work.to is not None else ""
    ledger.put_execution({**spec.execution.model_dump(mode="json"), "places": places, "to_url": to_url})
    return _finish(ledger, plan, spec, placer, devices, quiet)


def resume(
    place: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    *,
    allow_code: bool = False,
    quiet: bool = True,
) -> Run:
    """Resume a run from its folder, on any machine that can read it.

    `changes` are keys of `[execution]`: another engine, more workers, a smaller batch. The source is not scanned
    again: workers refuse files that have changed since the run was planned. Code and commands that the folder names
    are run only with `allow_code`.
    """
    ledger = Ledger(place)
    plan, settings = ledger.plan(), ledger.execution()
    own = {name: value for name, value in settings.items() if name not in ("places", "to_url")}
    changes = dict(changes or {})
    if changes.get("engine", own.get("engine")) != own.get("engine"):
        own |= {"engine_options": {}, "workers": None}
    spec = Spec(work=plan.work, execution=make_execution({**own, **changes}))
    if allow_code:
        permission.allow(plan.code)
    permission.check(plan.code)
    if not allow_code and "engine_options" not in changes:
        check_stored(spec.execution)
    _refuse_another_model(ledger, plan)
    placer, devices = _place(spec, None, quiet)
    if plan.work.to is not None:
        from shardmill.sinks.table import prepare

        prepare(plan, result_schema(plan))
    ledger.put_execution({**settings, **spec.execution.model_dump(mode="json", exclude={"places", "to_url"})})
    return _finish(ledger, plan, spec, placer, devices, quiet)


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
    ledger.stop(f"{getpass.getuser()}@{socket.gethostname()}")
    live = _count_live(before)
    ended = end_workers(make_execution(settings), ledger.url, plan)
    if ended is not None:
        return StoppedRun(ledger.url, "stopped", max(live, ended), 0)
    status, deadline = read_status(ledger, plan), time.monotonic() + patience_s
    while status.state == "running" and time.monotonic() < deadline:
        time.sleep(_SHOW_EVERY_S)
        status = read_status(ledger, plan)
    return StoppedRun(ledger.url, status.state, live, _count_live(status))


def _count_live(status: Status) -> int:
    return sum(worker["live"] for worker in status.workers)


def _refuse_another_model(ledger: Ledger, plan: Plan) -> None:
    here = open_task(plan.work.task, plan.work.params).fingerprint()
    if new_numerics(plan.fingerprint, here):
        raise StaleResume(
            f"{ledger.url} cannot be resumed: {NEW_NUMERICS}.",
            hint="Start over with --fresh, or choose another --out.",
        )
    changed = [name for name in {*here, *plan.fingerprint} if here.get(name) != plan.fingerprint.get(name)]
    if changed:
        raise StaleResume(
            f"{ledger.url}: the model here is not the one that the run was planned with ({', '.join(changed)} differ).",
            hint="Resume on a machine that has the planned model, or start over with --fresh.",
        )


def _place(spec: Spec, engine: Engine | None, quiet: bool) -> tuple[Engine | None, list[Device]]:
    """The engine, unless it is the local one, and the devices of its workers."""
    if engine is None and spec.execution.engine != LOCAL:
        engine = open_engine(spec.execution, quiet)
        return engine, list(engine.devices)
    check_options(LOCAL, spec.execution.engine_options, ())
    return engine, devices_for(spec)


def _finish(ledger: Ledger, plan: Plan, spec: Spec, engine: Engine | None, devices: list[Device], quiet: bool) -> Run:
    """Place workers for the shards that are left, wait for them, and check the outcome."""
    if len(ledger.commits.shards()) < len(plan.shards):
        began, precision = time.time(), spec.execution.precision
        if (expected := expect(plan, devices, precision, began)) is not None:
            ledger.notes.put_forecast(expected)
        placed = engine or LocalEngine(
            devices, max_restarts=spec.execution.max_restarts, stuck_s=spec.execution.stuck_s
        )
        _watch(placed, ledger, plan, spec, quiet)
        learn(ledger, plan, devices, precision, began)
    run = Run(ledger.url)
    _check_outcome(run, spec)
    with suppress(FileNotFoundError):
        run.ledger.sweep()
    return run


def _settle_plan(ledger: Ledger, plan: Plan, *, fresh: bool, resume: bool) -> Plan:
    found = ledger.find_plan()
    wiped = fresh and found is not None
    if found is not None and fresh:
        _refuse_if_busy(ledger, found)
        ledger.wipe()
        found = None
    if found is None:
        if resume:
            raise UsageError(f"{ledger.url}: there is no run to resume.", hint="Leave out --resume to start one.")
        if not wiped and any(not e.key.startswith("index/") for e in ledger.store.list("")):
            raise RunExists(f"{ledger.url} is not empty and holds no run.", hint="Choose another folder with --out.")
        found = ledger.create(plan)
    changes = differences(found, plan)
    if changes:
        raise StaleResume(
            f"{ledger.url} holds a different run: {'; '.join(changes)}.",
            hint="Choose another --out, or start over with --fresh, which deletes the existing run.",
        )
    return found


def _refuse_if_busy(ledger: Ledger, found: Plan) -> None:
    live = [w["id"] for w in read_status(ledger, found).workers if w["live"]]
    if live:
        raise RunExists(
            f"{ledger.url}: {len(live)} workers are working on it ({live[0]}).",
            hint="Stop them before you use --fresh.",
        )


def _watch(engine: Engine, ledger: Ledger, plan: Plan, spec: Spec, quiet: bool) -> None:
    limit = ErrorLimit.parse(spec.execution.max_errors)
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
                    watching.ask(lambda: _check_stopped(ledger), None)
                status = watching.ask(lambda: read_status(ledger, plan), None)
                if status is None:
                    continue
                bar.at(status.share, describe(status) + getattr(placement, "note", ""))
                if limit.exceeded(status.errors, max(status.rows, 1000)):
                    raise too_many_errors(status.errors, status.rows, spec.execution.max_errors)
            if (status := watching.ask(lambda: read_status(ledger, plan), None)) is not None:
                bar.at(*_finished(status))
    finally:
        placement.stop()


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


def _check_stopped(ledger: Ledger) -> None:
    if by := ledger.stopped_by():
        raise Preempted(f"The run was stopped by {by}.", hint=f"Resume it with: shardmill resume {ledger.url}")


def describe(status: Status) -> str:
    """The state of a run in one line."""
    loading = [w for w in status.workers if w["live"] and w["state"] in ("starting", "loading")]
    if not status.rows and loading:
        return "loading the model"
    if status.placement and not any(w["live"] for w in status.workers):
        return status.placement
    errors = f" · {status.errors:,} errors" if status.errors else ""
    return f"{status.rows:,} rows · {status.rows_per_s:,.0f}/s{errors} · {duration(status.eta_s)} left"


def _finished(status: Status) -> tuple[float, str]:
    return status.share, f"{status.rows:,} rows · {status.errors:,} errors"


def _check_outcome(run: Run, spec: Spec) -> None:
    status = read_status(run.ledger, run.plan)
    if status.shards_done < status.shards:
        raise Preempted(
            f"The workers were told to stop; {status.shards - status.shards_done} of {status.shards} shards are left.",
            hint="Run the same command again: it resumes.",
        )
    if ErrorLimit.parse(spec.execution.max_errors).exceeded(status.errors, status.rows):
        raise too_many_errors(status.errors, status.rows, spec.execution.max_errors)
