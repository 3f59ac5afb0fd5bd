"""One host of a run: set up, supplied with shards, polled, and reconnected after a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import asyncssh

from shardmill.core.errors import HostError, HostLost, ShardmillError, StoreError, WorkerFailed
from shardmill.engines.process import handed_on
from shardmill.engines.ssh.at_home.earlier import find_earlier, path_in_run
from shardmill.engines.ssh.at_home.environment import check_look, prepare
from shardmill.engines.ssh.at_home.home import FINISH, Home, Share, is_plain_name
from shardmill.engines.ssh.at_home.link import Link, connect, lost
from shardmill.engines.ssh.at_home.uploads import UploadProgress, Uploads
from shardmill.engines.ssh.cluster import Host
from shardmill.engines.ssh.on_host.bare import MARK
from shardmill.ledger import Claim
from shardmill.plan import Plan
from shardmill.plan.spec import Execution
from shardmill.plugins import find_verb

_ROUND_S, _SHORTEST_ROUND_S = 1.0, 0.2
_PULLS = 4
# One on the device, one being read, one being sent.
_QUEUED_PER_SEAT = 3
_AHEAD_S = 10.0
_MOST_PER_SEAT = 64
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
# How long workers wait for home to come back.
_PATIENCE_S = 1800.0
_FORWARDED = ("AWS_", "AZURE_", "GOOGLE_", "HF_TOKEN")
_TIMES = ("at", "progress_at", "started", "began")


class HostAtWork:
    """A host and its assigned shards. With a `common` folder it claims shards itself, and nothing is copied."""

    def __init__(
        self,
        host: Host,
        home: Home,
        execution: Execution,
        *,
        slot: float,
        common: bool,
        progress: UploadProgress,
        tell: Callable[[str], None],
    ) -> None:
        self.host, self._home, self._execution, self._slot, self._common = host, home, execution, slot, common
        self._progress, self._tell = progress, tell
        self.share = Share(f"ssh-{host.name}")
        self.looked_up, self._news = asyncio.Event(), asyncio.Event()
        self.is_at_work = self.is_settled = False
        self._uploads = Uploads(home.plan, home.ledger.store, progress)
        briefing = find_verb(home.plan.work.task).part("briefing")
        self._briefing = None if briefing is None else briefing(home.ledger, home.plan)
        self._finished: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._forget: set[int] = set()
        self._reached = self._is_missed = False
        self._pause_s = _PAUSE_S
        self._renewed_at = 0.0
        self._mirrored: dict[str, float] = {}
        self._skew_s = 0.0

    async def work(self) -> None:
        """Work until the run is over, or this host fails."""
        try:
            while not self._home.over:
                try:
                    async with contextlib.AsyncExitStack() as stack:
                        await self._serve(await self._connect(stack))
                    return
                except HostLost as error:
                    self._miss(error)
                finally:
                    self.is_at_work, self.is_settled = False, True
                    self.looked_up.set()
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S, self._home.lease_s)
        except (HostError, WorkerFailed) as error:
            self._home.log(str(error))
            self._home.failures.append(error)
            self._tell(f"{error.message} The other hosts continue without it.")
        finally:
            await asyncio.to_thread(self._give_back)

    async def _connect(self, stack: contextlib.AsyncExitStack) -> Link:
        try:
            return await stack.enter_async_context(connect(self.host, self._home.lease_s))
        except HostError as error:
            # A host that accepted us before may do so again.
            if self._reached:
                raise HostLost(error.message) from error
            raise

    def _miss(self, error: ShardmillError) -> None:
        self._home.log(error.message)
        if not self._is_missed:
            self._is_missed = True
            self._tell(f"{error.message} Trying again; if it stays away, its shards go to other hosts.")

    def _give_back(self) -> None:
        for claim in list(self.share.held.values()):
            with contextlib.suppress(StoreError):
                self._home.ledger.leases.release(claim, self.share.name)
        self.share.held.clear()
        self.share.ready.clear()

    # setting up

    async def _serve(self, link: Link) -> None:
        found = await link.look()
        check_look(self.host, found)
        self._reached, self._skew_s = True, found.skew_s
        with lost(self.host):
            await link.sftp.makedirs(found.work, exist_ok=True)
            async with link.sftp.open(f"{found.work}/{MARK}", "wb"):
                pass
        plan = self._home.plan
        self._folder = f"{found.work}/runs/{folder_name(plan)}"
        self._run = f"{self._folder}{path_in_run(self._home.ledger)}"
        if not self._common:
            await self._adopt(link)
        self.looked_up.set()
        self._progress.doing = f"preparing the environment on {self.host.name}"
        await link.start_agent(await prepare(link, found, plan, self._execution.device))
        self._progress.doing = f"sending to {self.host.name}"
        there = None
        settings = self._execution.model_dump(mode="json")
        if not self._common:
            branch, whole = self._uploads.lay_out(found.work, self._folder, self._run)
            for copy in whole:
                await self._uploads.send_whole(link, copy)
            if (earlier := await asyncio.to_thread(find_earlier, self._home.ledger, plan)) is not None:
                await self._uploads.send_earlier(link, earlier, branch, self._folder)
            there = json.dumps(branch.to_json())
            settings |= {"places": [f.place for f in branch.stat.files]}
        opened = await link.ask(
            "open",
            folder=self._folder,
            run=self._home.ledger.url if self._common else self._run,
            host=self.host.name,
            plan=there,
            execution=settings,
            gpus=self.host.gpus,
            workers=self.host.workers,
            environment={
                **handed_on(),
                **{k: v for k, v in os.environ.items() if k.startswith(_FORWARDED)},
            },
        )
        self.share.seats = len(opened["devices"])
        self._home.log(f"{self.host.name} is ready with {self.share.seats} workers")
        self.is_at_work = self.is_settled = True
        await self._go_on(link)

    async def _adopt(self, link: Link) -> None:
        """Keep the shards that were assigned to this host before home restarted or the connection broke."""
        with lost(self.host):
            try:
                async with link.sftp.open(f"{self._run}/hand.json", "rb", encoding=None) as file:
                    hand = set(json.loads(await file.read())["shards"])
            except asyncssh.SFTPNoSuchFile:
                hand = set()
        ledger, name = self._home.ledger, self.share.name
        leases = await asyncio.to_thread(ledger.leases.read)
        for shard in [s for s in self.share.held if s not in leases or leases[s].worker != name]:
            self.share.let_go(shard)
        for shard in sorted(hand - self.share.held.keys()):
            claim = await asyncio.to_thread(self._claim, [shard])
            if claim is not None:
                self.share.held[shard] = claim

    # at work

    async def _go_on(self, link: Link) -> None:
        self._finished = asyncio.Queue()
        # Files sent before the connection was lost may be gone: the host may be cleaned or replaced.
        self.share.ready.clear()
        if self._briefing is not None:
            self._briefing.arrived(())
        for shard in sorted(self.share.held):
            await self._make_ready(link, shard)
        loops: list[Coroutine[Any, Any, None]] = [self._rounds(link)]
        if not self._common:
            loops += [self._feed(link), *(self._pull(link) for _ in range(_PULLS))]
        try:
            await _until_first(loops)
        except (HostError, WorkerFailed):
            with contextlib.suppress(ShardmillError):
                await link.ask("stop")
            raise

    async def _rounds(self, link: Link) -> None:
        while not self._home.over:
            await self._round(link)
            await asyncio.sleep(_SHORTEST_ROUND_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _ROUND_S - _SHORTEST_ROUND_S)
            self._news.clear()
        if self._home.over == FINISH:
            await link.ask("finish", folder=self._folder)
        else:
            await link.ask("stop")

    async def _round(self, link: Link) -> None:
        done = await self._home.done()
        for shard in [s for s in self.share.held if s in done]:
            claim = self.share.let_go(shard)
            if claim is not None:
                await asyncio.to_thread(self._home.ledger.leases.release, claim, self.share.name)
        forget = sorted(self._forget)
        hand = None if self._common else sorted(self.share.ready)
        trials = None
        if self._briefing is not None and hand:
            trials = await asyncio.to_thread(self._briefing.brief, hand)
        answer = await link.ask("round", hand=hand, patience_s=_PATIENCE_S, forget=forget, trials=trials)
        if self._briefing is not None:
            self._briefing.arrived(hand or ())
        self._forget.difference_update(forget)
        self._home.heard_at = time.monotonic()
        self._is_missed, self._pause_s = False, _PAUSE_S
        self.share.begun = set(answer["begun"]) | {commit["shard"] for commit in answer["commits"]}
        for commit in answer["commits"]:
            self._finished.put_nowait(commit)
            self.share.finished.append(time.monotonic())
        await asyncio.to_thread(self._note, answer["beats"])

    def _note(self, beats: list[dict[str, Any]]) -> None:
        """Renew this host's leases, and copy its workers' heartbeats to the run folder."""
        ledger = self._home.ledger
        with contextlib.suppress(StoreError):
            for beat in beats:
                if is_plain_name(beat["id"]) and self._mirrored.get(beat["id"]) != beat["at"]:
                    self._mirrored[beat["id"]] = beat["at"]
                    times = {name: beat[name] - self._skew_s for name in _TIMES if beat.get(name)}
                    ledger.workers.beat(beat["id"], {**beat, **times, "host": self.host.name})
            if time.monotonic() - self._renewed_at > self._home.lease_s / 4:
                self._renewed_at = time.monotonic()
                for claim in list(self.share.held.values()):
                    ledger.leases.renew(claim, self.share.name, self._home.lease_s)

    async def _feed(self, link: Link) -> None:
        """Keep the host's queue just long enough: a slow host should hold few shards."""
        for looked_up in self._home.looked_up:
            await looked_up.wait()
        while True:
            claim = None
            if self._room() > 0:
                claim = await asyncio.to_thread(self._claim) or self._home.take_back(self.share)
            if claim is None:
                await asyncio.sleep(0.2 if self._room() <= 0 else 1.0)
                continue
            self.share.held[claim.shard] = claim
            await self._make_ready(link, claim.shard)

    async def _make_ready(self, link: Link, shard: int) -> None:
        await self._uploads.send_shard(link, shard)
        if shard in self.share.held:
            self.share.ready.add(shard)
            self._news.set()

    def _room(self) -> int:
        seats, now = self.share.seats, time.monotonic()
        rate = self.share.rate(now)
        few = _QUEUED_PER_SEAT * seats * (1.0 if rate else self.host.weight)
        wanted = max(seats, math.ceil(few), math.ceil(rate * _AHEAD_S))
        return min(wanted, _MOST_PER_SEAT * seats) - len(self.share.held)

    def _claim(self, among: list[int] | None = None) -> Claim | None:
        return self._home.ledger.claim(
            self.share.name,
            len(self._home.plan.shards),
            lease_s=self._home.lease_s,
            slot=self._slot,
            slow_s=self._home.slow_s(),
            held=self.share.held,
            among=among,
            wave=self._home.plan.work.wave,
        )

    async def _pull(self, link: Link) -> None:
        while True:
            record = await self._finished.get()
            shard = int(record["shard"])
            try:
                settled = await self._home.fetch(link, self.share, self._run, record)
            except BaseException:
                self._finished.put_nowait(record)
                raise
            if not settled:
                self._finished.put_nowait(record)
                await asyncio.sleep(_ROUND_S)
                continue
            self._forget.add(shard)
            claim = self.share.let_go(shard)
            if claim is not None:
                await asyncio.to_thread(self._home.ledger.leases.release, claim, self.share.name)


def folder_name(plan: Plan) -> str:
    """The name of a run's folder on its hosts; a run started over with --fresh gets another."""
    return f"{plan.id}-{plan.generation}"


async def _until_first(loops: list[Coroutine[Any, Any, None]]) -> None:
    """Run all until one ends, then cancel the others; an exception of the first is raised."""
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
