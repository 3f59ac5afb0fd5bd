"""Home's side of a run on hosts without a shared folder: done shards, the shards of each host, fetched parts."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import asyncssh

from shardmill.core.errors import CorruptState, HostError, RunExists, ShardmillError
from shardmill.core.records import check_record
from shardmill.engines.ssh.at_home.link import Link, lost
from shardmill.ledger import Claim, Commit, Ledger
from shardmill.store import LocalStore
from shardmill.store.local import explain_os_error, try_lock

_BLOCK_BYTES = 4 << 20
_LOOK_S = 1.0
FINISH, STOP = "finish", "stop"


@dataclass(slots=True, eq=False)
class Share:
    """The shards assigned to one host. `ready` ones have their bytes there; on `begun` ones a worker works."""

    name: str
    seats: int = 0
    held: dict[int, Claim] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    finished: list[float] = field(default_factory=list)

    def rate(self, now: float, over_s: float = 60.0) -> float:
        """Shards per second, recently."""
        self.finished = [at for at in self.finished if now - at < over_s]
        began = min(self.finished, default=now)
        return (len(self.finished) - 1) / max(now - began, 1.0) if len(self.finished) > 1 else 0.0

    def waiting(self) -> list[int]:
        return [shard for shard in self.held if shard not in self.begun]

    def let_go(self, shard: int) -> Claim | None:
        self.ready.discard(shard)
        return self.held.pop(shard, None)


class Home:
    def __init__(self, ledger: Ledger, lease_s: float) -> None:
        self.ledger, self.lease_s = ledger, lease_s
        self.plan = ledger.plan()
        self._lock = _lock(ledger)
        self.shares: list[Share] = []
        self.failures: list[ShardmillError] = []
        self.seconds: list[float] = []
        self.over = ""
        self.heard_at = time.monotonic()
        self.looked_up: list[asyncio.Event] = []
        self.pulled_bytes = 0
        self.part_bytes = 0
        self._done = ledger.commits.shards()
        self._looked_at = 0.0
        self._pulling: set[int] = set()
        path = ledger.folder.log_path("ssh")
        self._log: IO[str] | None = open(path, "a", buffering=1) if path is not None else None  # noqa: SIM115
        self.log("home begins")

    def log(self, text: str) -> None:
        if self._log is not None:
            print(time.strftime("%Y-%m-%dT%H:%M:%S"), text, file=self._log)

    async def done(self) -> set[int]:
        """The committed shards, whoever committed them; read at most once per second."""
        if time.monotonic() - self._looked_at > _LOOK_S:
            self._looked_at = time.monotonic()
            self._done |= await asyncio.to_thread(self.ledger.commits.shards)
        return self._done

    def slow_s(self) -> float:
        """How long a shard may stay with one host, queueing included, before another host also runs it."""
        middle = sorted(self.seconds)[len(self.seconds) // 2] if self.seconds else 0.0
        return max(self.lease_s, 6 * middle)

    def take_back(self, share: Share) -> Claim | None:
        """Move a shard to a host with too little work, from the host that would take longest to start it."""
        now = time.monotonic()
        if len(share.held) >= share.seats:
            return None
        donors = [s for s in self.shares if s is not share and s.waiting() and self._has_too_much(s, share, now)]
        if not donors:
            return None
        donor = max(donors, key=lambda s: len(s.waiting()) / (s.rate(now) or 1e-9))
        shard = donor.waiting()[-1]
        claim = donor.let_go(shard)
        if claim is not None:
            self.ledger.leases.release(claim, donor.name)
        self.log(f"{share.name} takes shard {shard} over from {donor.name}")
        return self.ledger.claim(share.name, len(self.plan.shards), lease_s=self.lease_s, among=[shard])

    def _has_too_much(self, donor: Share, share: Share, now: float) -> bool:
        return len(donor.held) > donor.seats or share.rate(now) > 3 * donor.rate(now) > 0

    async def fetch(self, link: Link, share: Share, folder: str, record: dict[str, Any]) -> bool:
        """Fetch a finished part and commit it, unless that is done; False while another host's is being fetched."""
        commit = self._check(link, record)
        if commit.shard in await self.done():
            return True
        if commit.shard in self._pulling:
            return False
        self._pulling.add(commit.shard)
        try:
            if commit.part and not await self._pull(link, f"{folder}/{commit.part}", commit):
                self.log(f"shard {commit.shard} of {share.name} arrived damaged: it is run again")
                return True
            if commit.errors_file:
                with lost(link.host):
                    async with link.sftp.open(f"{folder}/{commit.errors_file}", "rb", encoding=None) as file:
                        errors = cast(bytes, await file.read())
                await asyncio.to_thread(self.ledger.store.put, commit.errors_file, errors)
            await asyncio.to_thread(self._commit, commit)
        except asyncssh.SFTPNoSuchFile:
            return True
        finally:
            self._pulling.discard(commit.shard)
        self._done.add(commit.shard)
        self.seconds = [*self.seconds[-99:], commit.seconds]
        return True

    def _check(self, link: Link, record: dict[str, Any]) -> Commit:
        """Refuse a commit whose files are not those of its attempt: a host must not choose what home writes."""
        clean = "Find out who writes to its work folder, and remove the run there: shardmill hosts clean."
        try:
            commit = check_record(Commit, record, "a commit")
        except CorruptState as error:
            raise HostError(f"{link.host.name} sent {error.message}", hint=clean) from error
        stem = f"{commit.shard:06d}.{commit.attempt}"
        if (
            not 0 <= commit.shard < len(self.plan.shards)
            or not is_plain_name(commit.attempt)
            or commit.part not in ("", f"parts/{stem}.parquet")
            or commit.errors_file not in ("", f"errors/{stem}.jsonl")
        ):
            raise HostError(
                f"{link.host.name} sent a commit that it cannot have made (shard {commit.shard}, {commit.part!r}).",
                hint=clean,
            )
        return commit

    def _commit(self, commit: Commit) -> None:
        store = self.ledger.store
        if commit.part and isinstance(store, LocalStore):
            store.rename(_staged(commit.part), commit.part)
        won = self.ledger.commits.add(commit)
        if not won:
            for key in filter(None, (commit.part, commit.errors_file)):
                store.delete(key)
        self.part_bytes += commit.part_bytes * won
        self.log(f"shard {commit.shard} {'is committed' if won else 'was already committed'}")

    async def _pull(self, link: Link, there: str, commit: Commit) -> bool:
        """Fetch a part, resuming an interrupted fetch; False if its digest is not the committed one."""
        store = self.ledger.store
        assert isinstance(store, LocalStore)
        here = store.path(_staged(commit.part))
        await asyncio.to_thread(here.parent.mkdir, parents=True, exist_ok=True)
        at = here.stat().st_size if here.exists() else 0
        self.log(f"pulling {commit.part_bytes - at} bytes of shard {commit.shard} from {link.host.name}")
        with lost(link.host):
            async with link.sftp.open(there, "rb", encoding=None) as remote:
                while at < commit.part_bytes:
                    data = cast(bytes, await remote.read(min(_BLOCK_BYTES, commit.part_bytes - at), at))
                    if not data:
                        break
                    await asyncio.to_thread(_append, here, data)
                    at += len(data)
                    self.pulled_bytes += len(data)
        if await asyncio.to_thread(_seal, here) == commit.digest:
            return True
        here.unlink(missing_ok=True)
        return False

    def close(self) -> None:
        self.log(f"pulled {self.pulled_bytes} bytes for {self.part_bytes} bytes of parts")
        store = self.ledger.store
        if isinstance(store, LocalStore):
            for left in store.path("parts").glob(".*.pulled"):
                if self.over == FINISH:
                    left.unlink(missing_ok=True)
        for file in (self._log, self._lock):
            if file is not None:
                file.close()


def _lock(ledger: Ledger) -> IO[bytes] | None:
    """Lock the run: two coordinators would overwrite each other's assignments."""
    if not isinstance(ledger.store, LocalStore):
        return None
    lock = open(ledger.store.path(".ssh.lock"), "ab")  # noqa: SIM115
    # On a mount without locks nothing is lost: what two coordinators assign twice is committed once.
    if try_lock(lock.fileno()) is False:
        lock.close()
        raise RunExists(
            f"{ledger.url}: another process already assigns this run to hosts.",
            hint="Wait for it, or stop it first. Other engines may work on the run at the same time.",
        )
    return lock


def is_plain_name(name: str) -> bool:
    """Whether a name from a host is one part of a path."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None


def _staged(part: str) -> str:
    folder, _, name = part.rpartition("/")
    return f"{folder}/.{name}.pulled"


def _append(path: Path, data: bytes) -> None:
    try:
        with open(path, "ab") as file:
            file.write(data)
    except OSError as error:
        raise explain_os_error(error, str(path)) from error


def _seal(path: Path) -> str:
    """Sync a file to disk; returns its digest."""
    if not path.exists():
        path.touch()
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
