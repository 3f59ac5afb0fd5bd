"""Ray places actors. The run proceeds with those that have a node; deaths are judged as on every engine."""

from __future__ import annotations

import re
import signal
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError, RuntimeEnvSetupError

from shardmill.core.devices import Device
from shardmill.core.errors import ShardmillError, SpecError, StoreError, UsageError
from shardmill.engines.adopted import end_of
from shardmill.engines.deaths import Deaths
from shardmill.engines.process import handed_on, name_worker
from shardmill.engines.ray.cluster import Connection, is_alive
from shardmill.engines.ray.demand import Demand
from shardmill.engines.ray.detached import CALLS_AT_ONCE, DetachedPost, find_left, namespace_of
from shardmill.engines.ray.gauges import Gauges
from shardmill.engines.ray.options import RayOptions, read_options
from shardmill.engines.ray.post import Birth, End, Post, installed
from shardmill.engines.stuck import find_stuck
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution

_LOOK_EVERY_S = 5.0
_STOP_S, _KILL_S = 10.0, 2.0
# How long a command that leaves its actors waits for the others, once one of them works.
_BEGINS_S, _POLL_S = 30.0, 0.2
# How long to wait for a lost node to come back, unless `wait_s` is given.
_COMES_BACK_S = 60.0


class RayEngine:
    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._options = read_options(execution.engine_options)
        self._connection = Connection(self._options.address, lasting=execution.detach)
        self._demand = Demand.of(self._options, execution.device, execution.workers)
        self._workers = execution.workers or self._demand.room()

    @property
    def devices(self) -> Sequence[Device]:
        return [self._demand.device(seat) for seat in range(self._workers)]

    def start(self, run: str) -> RayPlacement:
        placement = RayPlacement(run, self._workers, self._demand, self._options, self._execution, self._connection)
        placement.start()
        return placement


@dataclass(slots=True)
class _Seat:
    """One place for a worker. Its actor waits until Ray has room, then checks its node, then works."""

    number: int
    actor: Any = None
    answer: Any = None
    node: str = ""
    worker: str = ""
    placed_at: float = 0.0
    lines: list[str] = field(default_factory=list)
    # An earlier program left the actor, which started its worker by itself.
    adopted: bool = False


class RayPlacement:
    def __init__(
        self,
        run: str,
        workers: int,
        demand: Demand,
        options: RayOptions,
        execution: Execution,
        connection: Connection,
    ) -> None:
        self._run, self._demand, self._options, self._connection = run, demand, options, connection
        self._stuck_s, self._detached = execution.stuck_s, execution.detach
        self._ledger = Ledger(run)
        self._generation = self._ledger.plan().generation
        self._deaths = Deaths(self._ledger, execution.max_restarts)
        self._seats = [_Seat(i) for i in range(workers)]
        self._gauges = Gauges(run)
        self._failed: ShardmillError | None = None
        self._without_node_since: float | None = None
        self._looked_at = 0.0
        self._any_worked = self._nothing_left = False
        # Shown on the progress bar.
        self.note = ""

    def start(self) -> None:
        """Adopt the actors that an earlier program left, and place one in every other seat."""
        try:
            self._check_waiting()
            for number, actor in find_left(self._generation).items():
                self._adopt(number, actor)
            for seat in self._seats:
                if seat.actor is None:
                    self._place(seat)
        except BaseException:
            self.stop()
            raise

    def detach(self) -> None:
        """Wait until each actor for which Ray has room has begun, or raise why it cannot."""
        waiting_since = time.monotonic()
        while waiting := [s for s in self._seats if s.actor is not None and not s.worker]:
            if self._failed is not None or not self.poll():
                break
            if len(waiting) < len(self._seats) and time.monotonic() - waiting_since > _BEGINS_S:
                break
            time.sleep(_POLL_S)
        if self._failed is not None:
            raise self._failed
        self._connection.close()

    def poll(self) -> bool:
        self._collect_answers()
        if time.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._end_stuck()
            self._end_leftover()
            self._check_waiting()
            self._gauges.show(self._ledger)
        placed = any(s.actor is not None for s in self._seats)
        if not placed and self._failed is not None:
            raise self._failed
        return placed

    def stop(self) -> None:
        self._end_all()
        self._connection.close()

    def _adopt(self, number: int, actor: Any) -> None:
        if number >= len(self._seats):
            self._seats.append(_Seat(number))
            number = -1
        seat = self._seats[number]
        seat.actor, seat.answer, seat.adopted = actor, actor.look.remote(), True

    def _place(self, seat: _Seat) -> None:
        """Request an actor, without waiting until Ray has room for it."""
        folder = re.sub(r"[^A-Za-z0-9._-]", "-", self._run.rstrip("/").rpartition("/")[2])
        # The name of a dead actor stays taken for a while, so each actor gets a new one.
        name = f"shardmill-{folder}-{seat.number}-{uuid.uuid4().hex[:4]}"
        try:
            options = {"name": name, **self._demand.actor_options(self._options)}
            given = (self._run, self._generation, self._demand.device(seat.number), installed())
            if self._detached:
                lasting = {"namespace": namespace_of(self._generation), "lifetime": "detached"}
                post = ray.remote(DetachedPost).options(**{**options, **lasting, "max_concurrency": CALLS_AT_ONCE})
                seat.actor = post.remote(*given, seat.number, self._slot(seat), handed_on())
            else:
                seat.actor = ray.remote(Post).options(**options).remote(*given)
            seat.adopted = self._detached
        except (TypeError, ValueError) as error:
            raise SpecError(f"Ray rejects this: {error}", hint="See --set runtime_env=…, resources=….") from error
        seat.node = seat.worker = ""
        seat.lines = []
        seat.answer = seat.actor.look.remote()

    def _collect_answers(self) -> None:
        asked = {s.answer: s for s in self._seats if s.actor is not None}
        if not asked:
            return
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for answer in ready:
            seat = asked[answer]
            if seat.actor is None:
                continue
            try:
                said = ray.get(answer)
            except RayError as error:
                self._lost(seat, error)
                continue
            if isinstance(said, Birth):
                self._begin(seat, said)
            elif isinstance(said, End):
                self._ended(seat, said.status, [*said.lines, *seat.lines])
            else:
                seat.answer = seat.actor.wait.remote()

    def _begin(self, seat: _Seat, birth: Birth) -> None:
        if birth.trouble is not None:
            self._leave_node(seat, birth.trouble)
            return
        seat.node, seat.placed_at = birth.node, time.time()
        seat.worker = birth.worker or name_worker(seat.number, birth.host)
        if seat.adopted:
            seat.answer = seat.actor.wait.remote()
        else:
            seat.answer = seat.actor.work.remote(seat.worker, seat.number, self._slot(seat), handed_on())
        self._any_worked = True

    def _slot(self, seat: _Seat) -> float:
        return seat.number / len(self._seats)

    def _leave_node(self, seat: _Seat, trouble: ShardmillError) -> None:
        """Place a worker again that cannot run on its node: Ray may choose another one, and one bad node is no reason
        to end the run."""
        _kill(seat)
        if self._deaths.forgives_node(seat.number):
            self._place(seat)
        else:
            self._failed = trouble

    def _ended(self, seat: _Seat, status: int, lines: Sequence[str]) -> None:
        peaceful = self._deaths.is_peaceful(seat.worker, status)
        failed = None if peaceful else self._deaths.judge(seat.number, seat.worker, status, lines)
        # Only now: after a store error, the next poll judges this death again.
        _kill(seat)
        if peaceful:
            self._end_waiting()
        elif failed is None:
            self._place(seat)
        else:
            # Other workers may finish without this seat; if none is left, this error is raised.
            self._failed = failed

    def _lost(self, seat: _Seat, error: RayError) -> None:
        """Handle an actor that died or could not start. The loss of its node does not count against the worker."""
        if isinstance(error, RuntimeEnvSetupError):
            why = f"The runtime_env cannot be set up: {_last_line(error)}"
            self._leave_node(seat, SpecError(why, hint="Try it with a small Ray task."))
            return
        if "No module named 'shardmill'" in str(error):
            hint = 'Install it on the nodes, or with --set runtime_env=\'{"pip": ["shardmill"]}\'.'
            why = "shardmill is not installed on a node of the Ray cluster."
            self._leave_node(seat, UsageError(why, hint=hint))
        elif isinstance(error, ActorDiedError) and seat.node and not is_alive(seat.node):
            self._ledger.excuse(seat.worker)
            _kill(seat)
            self._place(seat)
            self._looked_at = 0.0
        elif isinstance(error, RayActorError) and seat.adopted and seat.worker:
            self._ended(seat, end_of(self._ledger, seat.worker), [*str(error).splitlines(), *seat.lines])
        elif isinstance(error, RayActorError):
            self._ended(seat, -signal.SIGKILL, [*str(error).splitlines(), *seat.lines])
        else:
            self._ended(seat, 1, str(error).splitlines())

    def _check_waiting(self) -> None:
        """Report the workers that wait for a node. If no node can ever hold one, raise, at once or after `wait_s`."""
        working = any(s.worker for s in self._seats if s.actor is not None)
        waiting = sum(not s.worker for s in self._seats if s.actor is not None)
        missing = self._demand.missing() if waiting or not self._any_worked else ""
        why = f": {missing}" if missing else ""
        self.note = f" · {waiting} of {len(self._seats)} workers are waiting for a node{why}" if waiting else ""
        if working or not missing:
            self._without_node_since = None
            return
        self._without_node_since = self._without_node_since or time.monotonic()
        patience_s = self._options.wait_s
        if patience_s is None:
            patience_s = _COMES_BACK_S if self._any_worked else 0.0
        if time.monotonic() - self._without_node_since >= patience_s:
            raise UsageError(
                f"No node of the Ray cluster can hold a worker: {missing}.",
                hint="See `ray status`. Ask for less with --set num_gpus=… or num_cpus=…, or wait: --set wait_s=600",
            )

    def _end_stuck(self) -> None:
        placed = {s.worker: s.placed_at for s in self._seats if s.worker and s.actor is not None}
        stuck = find_stuck(self._ledger, placed, self._stuck_s)
        for seat in self._seats:
            if seat.worker in stuck and seat.actor is not None:
                seat.lines.append(f"no progress for {stuck[seat.worker]:.0f} s: killed")
                seat.actor.tell.remote(signal.SIGKILL)

    def _end_leftover(self) -> None:
        """Stop workers that still run although the run is complete, after giving them time to end by themselves."""
        if self._nothing_left:
            self._end_all()
        self._nothing_left = self._deaths.all_done()

    def _end_waiting(self) -> None:
        """Once the run is complete, drop the actors that still wait for a node."""
        waiting = [s for s in self._seats if s.actor is not None and not s.worker]
        if waiting and self._deaths.all_done():
            for seat in waiting:
                _kill(seat)

    def _end_all(self) -> None:
        working = [s for s in self._seats if s.actor is not None and s.worker]
        deaf = _send_signal(working, signal.SIGTERM, _STOP_S)
        _send_signal(deaf, signal.SIGKILL, _KILL_S)
        for seat in deaf:
            with suppress(StoreError):
                self._ledger.excuse(seat.worker)
        for seat in self._seats:
            _kill(seat)


def _send_signal(seats: Sequence[_Seat], number: int, wait_s: float) -> list[_Seat]:
    """Send workers a signal and wait for them to end. Returns those that did not report their end."""
    with suppress(RayError):
        for seat in seats:
            seat.actor.tell.remote(number)
        if seats:
            ray.wait([s.answer for s in seats], num_returns=len(seats), timeout=wait_s)
    return [seat for seat in seats if not _has_ended(seat)]


def _has_ended(seat: _Seat) -> bool:
    try:
        return isinstance(ray.get(seat.answer, timeout=0), End)
    except RayError:
        return False


def _kill(seat: _Seat) -> None:
    """Kill an actor and free its resources."""
    if seat.actor is not None:
        with suppress(RayError):
            ray.kill(seat.actor)
    seat.actor = seat.answer = None


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1].strip()
