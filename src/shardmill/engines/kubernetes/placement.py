"""Watches the Job of a run. The cluster replaces pods; this process reports, judges deaths, and may go at any time."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable

from shardmill.core.console import say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import EngineRefused, EngineSilent, StoreError, WorkerFailed
from shardmill.engines.deaths import Deaths
from shardmill.engines.kubernetes.api import ApiRefused, ClusterApi, Json
from shardmill.engines.kubernetes.job import JOBS, RunJob
from shardmill.engines.kubernetes.mirror import GONE, Mirror
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.start import StartWatch
from shardmill.engines.kubernetes.state import (
    OOM,
    PodEnd,
    describe,
    end_of_pod,
    has_begun,
    index_of,
    is_suspended,
    job_end,
)
from shardmill.engines.stuck import find_stuck
from shardmill.ledger import Ledger
from shardmill.plan.spec import Execution

_LOOK_S, _STUCK_LOOK_S, _SAY_AGAIN_S = 2.0, 10.0, 20.0
# How long a command that leaves its workers waits for the first of them, unless the Job is suspended.
_BEGINS_S, _POLL_S = 50.0, 0.2
_LOG_LINES = 100
_LEAST_READ_AHEAD = 0.125


class JobPlacement:
    def __init__(self, run: str, api: ClusterApi, job: RunJob, options: PodOptions, execution: Execution) -> None:
        self._run, self._api, self._job, self._options = run, api, job, options
        self._stuck_s = execution.stuck_s
        self._ledger = Ledger(run)
        self._deaths = Deaths(self._ledger, execution.max_restarts)
        self._workers, self._acts = execution.workers or 1, execution.acts
        self._pods: dict[str, Json] = {}
        self._judged: set[str] = set()
        self._begun: dict[str, float] = {}
        self._failed: dict[int, WorkerFailed] = {}
        self._state: Json | None = None
        self._gone = self._is_over = False
        self._looked_at = self._stuck_looked_at = self._said_at = 0.0
        self._line = ""
        self._pod_mirror = Mirror(api, api.path("pods"), labelSelector=f"batch.kubernetes.io/job-name={job.name}")
        self._job_mirror = Mirror(api, api.path(JOBS), fieldSelector=f"metadata.name={job.name}")
        self._start = StartWatch(api, job.name, options.wait_s)
        # Shown on the progress bar.
        self.note = ""

    def start(self, manifest: Json) -> None:
        """Create the Job or adopt it, and watch it. Pods that ended before are not judged again."""
        adopted = self._job.place(manifest, self._workers, self._options.grace_s)
        try:
            self._job_mirror.start()
            self._pod_mirror.start()
            if adopted:
                self._take_in(judge=False)
        except BaseException:
            if not adopted:
                self.stop()
            raise

    def detach(self) -> None:
        """Wait until a worker has begun, or is known to wait for something that comes; raise why none can."""
        deadline = time.monotonic() + _BEGINS_S
        while self.poll() and not self._begun and time.monotonic() < deadline:
            if self._state is not None and is_suspended(self._state):
                break
            time.sleep(_POLL_S)
        self._look()
        self._end_watches()

    def leave(self) -> None:
        """Leave the workers to the cluster, as the user does, and say how to come back."""
        self._end_watches()
        say(f"The workers go on without this command ({self._line or f'kubernetes job {self._job.name}'}).")
        resume, stop = (shell_command(verb, self._run) for verb in ("resume", "stop"))
        say(f"Come back: {resume}   End them: {stop}")

    def poll(self) -> bool:
        self._take_in()
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._look()
        if now - self._stuck_looked_at >= _STUCK_LOOK_S:
            self._stuck_looked_at = now
            self._end_stuck()
        if self._gone or self._is_over:
            return False
        if self._state is not None and (end := job_end(self._state))[0]:
            return self._end(*end)
        if len(self._failed) >= self._workers:
            raise next(iter(self._failed.values()))
        return True

    def stop(self) -> None:
        """Delete the Job; its pods give their leases back."""
        self._end_watches()
        alive = [name for name in self._begun if name not in self._judged]
        try:
            self._job.delete(self._options.grace_s)
        except EngineSilent as error:
            if self._deaths.all_done():
                # The cluster deletes the Job of a finished run by itself.
                return
            raise EngineSilent(
                f"The workers could not be ended and still run: {error.message}",
                hint=f"Once the cluster answers: kubectl -n {self._api.namespace} delete job {self._job.name}",
            ) from error
        with contextlib.suppress(StoreError):
            for name in alive:
                self._each_worker(name, self._ledger.excuse)
        self._say("")
        self._is_over = True

    # what the cluster reports

    def _take_in(self, judge: bool = True) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                change = self._job_mirror.changes.get_nowait()
                self._gone, self._state = change.what == GONE, change.object
        with contextlib.suppress(queue.Empty):
            while True:
                change = self._pod_mirror.changes.get_nowait()
                self._notice(change.object, change.what == GONE, judge)

    def _notice(self, pod: Json, gone: bool, judge: bool) -> None:
        name = pod["metadata"]["name"]
        self._workers = max(1, int(self._state["spec"]["parallelism"])) if self._state is not None else self._workers
        if has_begun(pod):
            self._begun.setdefault(name, time.time())
        end = end_of_pod(pod, gone)
        if end is None:
            self._pods[name] = pod
            return
        self._pods.pop(name, None)
        if name in self._judged:
            return
        self._judged.add(name)
        if judge and name in self._begun:
            self._judge(pod, name, end)

    def _judge(self, pod: Json, name: str, end: PodEnd) -> None:
        if end.disrupted:
            self._each_worker(name, self._ledger.excuse)
            return
        if self._deaths.is_peaceful(name, end.status):
            return
        lines = self._keep_log(name, end)
        if end.reason == OOM:
            self._lower_memory()
        self._each_worker(name, self._ledger.leases.record_death)
        try:
            failed = self._deaths.judge(index_of(pod), name, end.status, lines)
        except WorkerFailed as error:
            raise self._seen_from_pods(error) from None
        if failed is None:
            self._failed.pop(index_of(pod), None)
        elif end.reason == OOM:
            self._failed[index_of(pod)] = WorkerFailed(
                f"Worker {index_of(pod)} needed more memory than its pod may use ({OOM}).",
                hint="Allow more: --set memory=32Gi. Committed shards are kept.",
            )
        else:
            self._failed[index_of(pod)] = failed

    def _seen_from_pods(self, failed: WorkerFailed) -> WorkerFailed:
        """An error of the store, with the command that tries the store from a pod: this one has other keys."""
        if not failed.message.startswith("/".join(self._run.split("/")[:3])):
            return failed
        options = self._options
        given = {"secret": options.secret, "service_account": options.service_account}
        words = [f"--namespace {self._api.namespace} --image {options.image} --out {self._run}"]
        words += [f"--set {name}={value}" for name, value in given.items() if value]
        words += ["--device cpu"] * (not options.gpus)
        told = WorkerFailed(failed.message, hint=f"Try it from a pod: shardmill kubernetes check {' '.join(words)}")
        told.cure = failed.cure
        return told

    def _keep_log(self, name: str, end: PodEnd) -> list[str]:
        """The last lines of a pod, which are kept in the run folder: the cluster forgets them with the pod."""
        log: list[str] = []
        with contextlib.suppress(EngineSilent, EngineRefused):
            path = f"{self._api.path('pods', name)}/log"
            log = self._api.read_text(path, container="worker", tailLines=_LOG_LINES).splitlines()
        lines = [*log, *(line for line in end.lines if line not in log)]
        reason = f"the pod ended: {end.reason or 'unknown reason'}, status {end.status}"
        with contextlib.suppress(StoreError):
            self._ledger.store.put(f"logs/{name}.log", "\n".join([*lines, reason, ""]).encode())
        return lines

    def _lower_memory(self) -> None:
        """Let the workers of this run read half as far ahead: those that start from now on see it in the settings."""
        settings = self._ledger.execution()
        now = float(settings.get("read_ahead") or 1.0)
        if settings and now > _LEAST_READ_AHEAD:
            self._ledger.put_execution({**settings, "read_ahead": now / 2})

    def _each_worker(self, pod: str, do: Callable[[str], object]) -> None:
        """Do something for each worker of a pod; one with several GPUs has several."""
        do(pod)
        if self._options.gpus > 1:
            for beat in self._ledger.workers.read():
                if beat["id"].startswith(f"{pod}-"):
                    do(beat["id"])

    # what this process does about it

    def _end(self, how: str, said: str) -> bool:
        self._is_over = True
        if how == "Complete" or self._deaths.all_done():
            return False
        raise next(
            iter(self._failed.values()),
            WorkerFailed(
                f"The Job {self._job.name} failed: {said}",
                hint=f"See logs/ of the run folder, or: kubectl -n {self._api.namespace} describe job {self._job.name}",
            ),
        )

    def _look(self) -> None:
        trouble = self._job_mirror.trouble or self._pod_mirror.trouble
        if trouble is not None:
            self._say(f"kubernetes job {self._job.name}: {trouble.message}")
            return
        if self._gone or self._is_over or self._state is None or job_end(self._state)[0]:
            return
        suspended = is_suspended(self._state)
        # Of pods with several workers the number is not that of the workers.
        if self._acts and not suspended and self._options.gpus <= 1:
            self._follow(self._state)
        troubles = [] if suspended else self._start.look(list(self._pods.values()), bool(self._begun), self._workers)
        self._say(describe(self._job.name, self._pods.values(), troubles, suspended))

    def _follow(self, job: Json) -> None:
        """Have as many pods as are wanted for the run's deadline. Only this command may, pods have no right to."""
        with contextlib.suppress(StoreError, EngineSilent, ApiRefused):
            log = self._ledger.staff.look()
            wanted = 0 if log is None or log.now is None else log.now.wanted
            if wanted and wanted != int(job["spec"]["parallelism"]):
                self._job.resize(wanted, job)

    def _end_stuck(self) -> None:
        """Delete pods whose workers make no progress: the cluster places others."""
        placed = {name: at for name, at in self._begun.items() if name in self._pods}
        if self._options.gpus > 1 or not placed:
            return
        for name in find_stuck(self._ledger, placed, self._stuck_s):
            with contextlib.suppress(EngineSilent, ApiRefused):
                self._api.ask("DELETE", self._api.path("pods", name))

    def _end_watches(self) -> None:
        self._job_mirror.end()
        self._pod_mirror.end()

    def _say(self, line: str) -> None:
        """Store the line for people who watch; no run ends because of it."""
        now = time.monotonic()
        # Without a living worker the bar shows the line anyway.
        self.note = f" · {line}" if " running, " in line else ""
        if line != self._line or now - self._said_at > _SAY_AGAIN_S:
            self._line, self._said_at = line, now
            with contextlib.suppress(StoreError):
                self._ledger.notes.put_placement(line)
