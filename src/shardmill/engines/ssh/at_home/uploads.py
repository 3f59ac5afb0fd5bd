"""Uploads to a host: byte ranges of line files as its shards need them; other files and models as a whole.

The host verifies each piece by its digest and records it beside the copy, so that an interrupted upload resumes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardmill.core.errors import HostError, SpecError
from shardmill.core.ranges import Range, join, subtract
from shardmill.engines.ssh.at_home.earlier import EarlierEdition
from shardmill.engines.ssh.at_home.link import Link, lost
from shardmill.plan import Plan
from shardmill.sources.files import check_unchanged, file_name
from shardmill.sources.formats import find_format
from shardmill.sources.spans import extents, is_ranged
from shardmill.store import LocalStore, Store, is_url
from shardmill.store.clients import BUCKETS

_PIECE_BYTES = 8 << 20
_TRIES = 3
_RECORDS_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """One local file and the path of its copy on the host."""

    here: Path
    there: str
    size_bytes: int


@dataclass(slots=True)
class UploadProgress:
    """Bytes to send to all hosts, bytes sent so far, and the current step."""

    doing: str = ""
    wanted_bytes: int = 0
    sent_bytes: int = 0

    def add(self, wanted: int, sent: int) -> None:
        self.wanted_bytes += wanted
        self.sent_bytes += sent


class Uploads:
    """The files of one run for one host."""

    def __init__(self, plan: Plan, store: Store, progress: UploadProgress) -> None:
        self._plan, self._store, self._progress = plan, store, progress
        self._copies: dict[int, Copy] = {}
        self._have: dict[str, list[Range]] = {}
        self._turn = asyncio.Lock()

    def lay_out(self, work: str, folder: str, run: str = "") -> tuple[Plan, list[Copy]]:
        """The plan with the host's paths, and the files that the host needs as a whole before it starts.

        They go into `folder` there; the run is that, or the folder of an edition in it.
        """
        plan, whole = self._plan, []
        files = []
        self._have.clear()
        for number, file in enumerate(plan.stat.files):
            if is_remote(plan, file.place):
                files.append(replace(file, index=_index_key(file.index)))
                continue
            copy = Copy(Path(file.place), f"{folder}/source/{number:06d}/{file_name(file.name)}", file.size_bytes)
            self._copies[number] = copy
            # No tag: home checks its own file at each read, and the copy is verified piece by piece.
            files.append(replace(file, place=copy.there, tag="", index=_index_key(file.index)))
            if not is_ranged(plan.stat, file):
                whole.append(copy)
        for file in files:
            if file.index:
                assert isinstance(self._store, LocalStore)
                here = self._store.path(file.index)
                whole.append(Copy(here, f"{run or folder}/{file.index}", here.stat().st_size))
        params, models = self._lay_out_params(work)
        work_there = plan.work.model_copy(update={"params": params})
        return replace(plan, work=work_there, stat=replace(plan.stat, files=tuple(files))), [*whole, *models]

    def _lay_out_params(self, work: str) -> tuple[dict[str, Any], list[Copy]]:
        """Replace local folders in the task's parameters, and in those of a trial's task, by copies on the host."""
        mark = hashlib.sha256(json.dumps(self._plan.fingerprint, sort_keys=True).encode()).hexdigest()[:16]
        copies: list[Copy] = []

        def lay_out(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: lay_out(each) for name, each in value.items()}
            folder = Path(value).expanduser() if isinstance(value, str) and value else None
            if folder is None or not _is_folder(folder):
                return value
            folder = folder.resolve()
            there = f"{work}/models/{mark}/{folder.name}"
            for path in sorted(folder.rglob("*")):
                relative = path.relative_to(folder)
                if path.is_file() and not any(part.startswith(".") for part in relative.parts):
                    copies.append(Copy(path, f"{there}/{relative.as_posix()}", path.stat().st_size))
            return there

        return lay_out(self._plan.work.params), copies

    async def send_earlier(self, link: Link, earlier: EarlierEdition, there: Plan, folder: str) -> None:
        """Send what the run is made from: many small records at once, and each part as a file."""
        held: dict[str, str] = {}
        for key, data in await asyncio.to_thread(list, earlier.records(dict(enumerate(there.stat.files)))):
            held[key] = data.decode()
            if sum(map(len, held.values())) > _RECORDS_BYTES:
                await link.ask("keep", folder=folder, records=held)
                held = {}
        await link.ask("keep", folder=folder, records=held)
        for key, here in (await asyncio.to_thread(earlier.parts)).items():
            await self.send_whole(link, Copy(here, f"{folder}/{key}", here.stat().st_size))

    async def send_whole(self, link: Link, copy: Copy) -> None:
        await self._send(link, copy, [(0, copy.size_bytes)])

    async def send_shard(self, link: Link, shard: int) -> None:
        """Send the bytes of a shard that the host does not have yet."""
        cut = self._plan.shards[shard]
        for number in range(cut.file, cut.file + cut.files):
            copy, file = self._copies.get(number), self._plan.stat.files[number]
            if copy is not None and copy.size_bytes and is_ranged(self._plan.stat, file):
                await asyncio.to_thread(check_unchanged, file)
                await self._send(link, copy, await asyncio.to_thread(extents, self._plan.stat, cut, number))
                await asyncio.to_thread(check_unchanged, file)

    async def _send(self, link: Link, copy: Copy, wanted: list[Range]) -> None:
        async with self._turn:
            if copy.there not in self._have:
                total = sum(stop - start for start, stop in wanted)
                answer = await link.ask("covered", path=copy.there, size=copy.size_bytes, more_bytes=total)
                self._have[copy.there] = [(start, stop) for start, stop in answer["ranges"]]
            missing = _pieces(subtract(wanted, self._have[copy.there]))
            self._progress.add(sum(stop - start for start, stop in missing), 0)
            for _ in range(_TRIES):
                missing = await self._send_pieces(link, copy, missing)
                if not missing:
                    return
        raise HostError(f"Host {link.host.name}: data sent to {copy.there} arrives damaged.")

    async def _send_pieces(self, link: Link, copy: Copy, pieces: list[Range]) -> list[Range]:
        """Send pieces; returns those that arrived damaged."""
        if not pieces:
            return []
        bad: list[Range] = []
        with lost(link.host):
            async with link.sftp.open(copy.there, "rb+", encoding=None) as remote:
                for start, stop in pieces:
                    data = await asyncio.to_thread(_read, copy.here, start, stop)
                    await remote.write(data, start)
                    proof = (start, stop, hashlib.sha256(data).hexdigest())
                    if (await link.ask("cover", path=copy.there, ranges=[proof]))["bad"]:
                        bad.append((start, stop))
                        continue
                    self._have[copy.there] = join([*self._have[copy.there], (start, stop)])
                    self._progress.add(0, stop - start)
        return bad


def is_remote(plan: Plan, place: str) -> bool:
    """Whether a host reads this place of the source directly, without a copy."""
    return is_url(place) or find_format(plan.stat.format).reach != "files"


def check_reach(plan: Plan, shared: bool, in_store: bool) -> None:
    """Refuse a source that hosts cannot reach and that cannot be sent to them."""
    reach = find_format(plan.stat.format).reach
    if plan.work.root and not shared:
        raise SpecError(
            f"--root {plan.work.root}: the files that the source names are not sent to hosts.",
            hint="If hosts see the folder at the same path, write shared = true in the hosts file. Or keep the "
            "pictures in the source, as a column of bytes.",
        )
    if shared or reach == "network":
        return
    for file in plan.stat.files:
        if reach == "machine" and file.place.partition("://")[0] not in BUCKETS:
            raise SpecError(
                f"{file.name}: hosts cannot reach this {'database' if plan.work.query else 'source'}, and it cannot be "
                "sent to them.",
                hint="Write its rows to files with `shardmill split`, or use --engine local.",
            )
        if is_url(file.place):
            continue
        if in_store:
            raise SpecError(
                f"The run is in a store that hosts reach, but {file.place} is only on this machine.",
                hint="Put the source into the store too, or use a local folder as --out: then hosts are sent what they "
                "read. If they see the source at the same path, write shared = true in the hosts file.",
            )


def _is_folder(path: Path) -> bool:
    """Whether a path is a folder. A text that cannot be a path, such as code, is not."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _index_key(index: str) -> str:
    """The key of an index in the run; the loaded plan has its path."""
    return f"index/{index.rpartition('/')[2]}" if index else ""


def _pieces(ranges: list[Range]) -> list[Range]:
    return [(at, min(at + _PIECE_BYTES, stop)) for start, stop in ranges for at in range(start, stop, _PIECE_BYTES)]


def _read(path: Path, start: int, stop: int) -> bytes:
    with open(path, "rb") as file:
        data = os.pread(file.fileno(), stop - start, start)
    if len(data) != stop - start:
        raise SpecError(f"{path} is shorter than it was.", hint="Start over with --fresh.")
    return data
