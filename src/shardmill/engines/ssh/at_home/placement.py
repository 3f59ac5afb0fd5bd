"""Runs all hosts of a run, on one thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from shardmill.core.console import Bar, say
from shardmill.core.errors import HostError, StoreError
from shardmill.engines.ssh.at_home.home import FINISH, STOP, Home
from shardmill.engines.ssh.at_home.host import HostAtWork
from shardmill.engines.ssh.at_home.uploads import UploadProgress
from shardmill.engines.ssh.cluster import Cluster
from shardmill.plan.spec import Execution

_LOOK_S = 0.2
_END_S = 40.0
_GIVE_UP_S = 300.0
_STAFF_LOOK_S = 5.0


class SshPlacement:
    def __init__(self, home: Home, cluster: Cluster, execution: Execution, *, common: bool, quiet: bool) -> None:
        self._home, self._quiet = home, quiet
        self._progress = UploadProgress()
        self._hosts = [
            HostAtWork(
                host,
                home,
                execution,
                slot=number / len(cluster.hosts),
                common=common,
                progress=self._progress,
                tell=self._tell,
            )
            for number, host in enumerate(cluster.hosts)
        ]
        home.shares = [host.share for host in self._hosts]
        home.looked_up = [host.looked_up for host in self._hosts]
        self._thread = threading.Thread(target=self._run, name="ssh", daemon=True)
        self._failed: BaseException | None = None
        self._stop = False
        self._acts, self._looked_at = execution.acts, 0.0

    def start(self) -> None:
        """Start, and show progress while hosts are set up; hosts that are ready already work."""
        self._thread.start()
        try:
            self._show_setting_up()
        except BaseException:
            self.stop()
            raise

    def _show_setting_up(self) -> None:
        count = len(self._hosts)
        with Bar("setting up hosts", quiet=self._quiet) as bar:
            while self._thread.is_alive() and (ready := sum(h.is_settled for h in self._hosts)) < count:
                time.sleep(_LOOK_S)
                sent, wanted = self._progress.sent_bytes, self._progress.wanted_bytes
                note = f"{ready} of {count} hosts · {self._progress.doing}"
                if wanted:
                    note += f" · {sent / 1e6:,.1f} of {wanted / 1e6:,.1f} MB"
                bar.at((ready + sent / max(1, wanted)) / (count + 1), note)

    def poll(self) -> bool:
        if self._thread.is_alive():
            if self._acts and time.monotonic() - self._looked_at >= _STAFF_LOOK_S:
                self._looked_at = time.monotonic()
                # At the budget home claims no more for its hosts.
                with contextlib.suppress(StoreError):
                    self._home.ledger.staff.look()
            return True
        if self._failed is not None:
            raise self._failed
        return False

    def stop(self) -> None:
        self._stop = True
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._drive())
        except BaseException as error:
            self._failed = error

    async def _drive(self) -> None:
        tasks = [asyncio.create_task(host.work()) for host in self._hosts]
        try:
            while not self._stop and not await self._is_done():
                if all(task.done() for task in tasks):
                    break
                for task in tasks:
                    if task.done():
                        task.result()
                if time.monotonic() - self._home.heard_at > max(_GIVE_UP_S, 5 * self._home.lease_s):
                    raise HostError(
                        "No host has answered for minutes.", hint="Run the same command once they answer: it resumes."
                    )
                await asyncio.sleep(_LOOK_S)
        finally:
            self._home.over = FINISH if await self._is_done() else STOP
            for host, task in zip(self._hosts, tasks, strict=True):
                if not host.is_at_work:
                    task.cancel()
            _, late = await asyncio.wait(tasks, timeout=_END_S)
            for task in late:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            self._home.close()
        for result in ended:
            if isinstance(result, Exception):
                raise result
        if self._home.over == STOP and not self._stop and self._home.failures:
            raise self._home.failures[-1]

    async def _is_done(self) -> bool:
        return len(await self._home.done()) >= len(self._home.plan.shards)

    def _tell(self, text: str) -> None:
        if not self._quiet:
            say(text)
