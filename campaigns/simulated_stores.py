"""Stores on which things go wrong, seeded: an object store under the real client code, and a real folder on a disk.

Every request takes time, and may be lost, have its answer lost, arrive late, or be the last thing that its process
does. What the stores promise still holds: conditional writes are atomic, and a listing is in key order.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from obstore.exceptions import AlreadyExistsError, GenericError, NotModifiedError, PreconditionError

from campaigns.simulated import Killed, Objects
from campaigns.simulated_os import Machines, Process, _Like
from shardmill.store import LocalStore, ObjectStore
from shardmill.store.clients import Clients
from shardmill.store.local import try_lock

_MODIFIED = datetime(2026, 1, 1, tzinfo=UTC)
# Pages are small, so that others write between two of them.
_PAGE = 4
# Writes that decide something are few among the requests of a run, so trouble comes this many times as often there.
_DECISIVE = ("plan.json", "execution.json", "commits/", "parts/", "errors/")
_DECISIVE += ("edition.json", "origin.json", "pruned.json")
_DECISIVE_TIMES = 6.0
_WRITES = ("PUT", "LINK", "RENAME")
_EDITION = re.compile(r"editions/[0-9]{6}/")


@dataclass(slots=True)
class Weather:
    """How likely it is, at each request, that something goes wrong; at most requests only `elsewhere` as likely."""

    dies: float = 0.0
    fails: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    freezes: float = 0.0
    elsewhere: float = 1.0
    troubled: float = field(init=False)

    KINDS: ClassVar = ("dies", "fails", "answer_lost", "late", "slow", "freezes")

    def __post_init__(self) -> None:
        self.troubled = sum(getattr(self, name) for name in self.KINDS)

    def calm_down(self) -> None:
        self.troubled = 0.0


class Line:
    """The way to a store. `ask` lets time pass and decides what becomes of a request."""

    def __init__(self, machines: Machines, weather: Weather, chance: random.Random) -> None:
        self._machines, self._weather, self._chance = machines, weather, chance
        self.requests = 0
        self.seen = hashlib.sha256()
        # What must never happen, whatever goes wrong, and did.
        self.violations: list[str] = []

    def ask(self, kind: str, key: str, effect: Callable[[], Any], error: Callable[[], Exception]) -> Any:
        """Do `effect` once, after a while; or raise Killed, or `error` with or without having done it."""
        machines, chance = self._machines, self._chance
        process, turns = machines.here, machines.turns
        if process is None:
            return effect()
        self.requests += 1
        took = chance.expovariate(20)
        self.seen.update(f"{process.name} {kind} {key} {turns.now:.6f}\n".encode())
        machines.note(process, f"{kind} {key}")
        name = self._fate(process, decides=kind in _WRITES and _within(key).startswith(_DECISIVE))
        if not name:
            turns.pause(turns.now + took)
            return effect()
        if name == "slow":
            took += chance.uniform(1, 20)
        elif name == "freezes":
            process.frozen_until = turns.now + chance.uniform(1, 90)
        machines.note(process, f"  {name}: {kind} {key}")
        turns.pause(turns.now + took)
        if name == "fails":
            turns.pause(turns.now + chance.uniform(0, 10))
            raise error()
        if name == "late" and kind == "PUT":
            turns.at(turns.now + chance.uniform(0, 20), lambda: self._arrive(effect))
            raise error()
        if name == "dies" and (end := chance.random()) < 0.5:
            if kind == "PUT" and end < 0.2:
                turns.at(turns.now + chance.uniform(0, 20), lambda: self._arrive(effect))
            process.end(-9)
            raise Killed
        done = effect()
        if name == "dies":
            process.end(-9)
            raise Killed
        turns.pause(turns.now + chance.expovariate(2))
        if name == "answer_lost":
            raise error()
        return done

    def _fate(self, process: Process, *, decides: bool) -> str:
        """What goes wrong with a request; nothing if empty."""
        if decides:
            process.frozen_until = max(process.frozen_until, process.drowsy_until)
            process.writes_left -= 1
            if process.writes_left < 0:
                return "dies"
        weather = self._weather
        fate = self._chance.random() / (_DECISIVE_TIMES if decides else weather.elsewhere)
        if fate >= weather.troubled:
            return ""
        for name in Weather.KINDS:
            fate -= getattr(weather, name)
            if fate < 0:
                break
        return name

    def check_final(self, key: str, before: bytes | None, after: bytes, *, swapped: bool) -> None:
        """Commits and roll-ups never change, and a plan is only swapped for the next one, never overwritten."""
        own = _within(key)
        final = own.startswith(("commits/", "segments/", "rolled/")) or (own == "plan.json" and not swapped)
        if final and before is not None and before != after:
            self.violations.append(f"{key} was overwritten")

    def _arrive(self, effect: Callable[[], Any]) -> None:
        """A write that arrives after its sender has given up; nobody hears whether it was refused."""
        with suppress(AlreadyExistsError, PreconditionError, FileNotFoundError):
            effect()


class ObjectServer:
    """The functions of obstore, over objects that all processes share. Some servers list the keys of a page anyhow."""

    def __init__(self, line: Line, order: random.Random) -> None:
        self._line, self._objects = line, Objects()
        self._order = order if order.random() < 0.2 else None

    def store(self, folder: str = "") -> ObjectStore:
        """The store of a run, or of a folder in it, such as `editions/000002/`."""
        return ObjectStore(f"s3://simulated/{folder}", Clients(self, self), folder)

    def patches(self) -> list[tuple[str, str, Any]]:
        names = ("get", "put", "head", "list", "delete", "open_writer")
        return [("obstore", name, getattr(self, name)) for name in names]

    def _ask(self, kind: str, key: str, effect: Callable[[], Any]) -> Any:
        return self._line.ask(kind, key, effect, lambda: GenericError(f"error sending request for {key}: timed out"))

    def _meta(self, key: str) -> dict[str, Any]:
        data, tag = self._objects.data[key]
        return {"path": key, "size": len(data), "e_tag": tag, "version": None, "last_modified": _MODIFIED}

    def get(self, client: Any, key: str, *, options: dict[str, Any] | None = None) -> Any:
        options = options or {}

        def effect() -> Any:
            if key not in self._objects.data:
                raise FileNotFoundError(key)
            data, tag = self._objects.data[key]
            if options.get("if_none_match", "").strip('"') == tag:
                raise NotModifiedError(key)
            if "if_match" in options and options["if_match"].strip('"') != tag:
                raise PreconditionError(key)
            start, stop = options.get("range", (0, len(data)))
            stop = min(stop, len(data))
            return SimpleNamespace(bytes=lambda: data[start:stop], meta=self._meta(key), range=(start, stop))

        return self._ask("GET", key, effect)

    def head(self, client: Any, key: str) -> dict[str, Any]:
        def effect() -> dict[str, Any]:
            if key not in self._objects.data:
                raise FileNotFoundError(key)
            return self._meta(key)

        found: dict[str, Any] = self._ask("HEAD", key, effect)
        return found

    def put(self, client: Any, key: str, data: bytes, *, mode: Any = None, use_multipart: bool = False) -> None:
        data = bytes(data)

        def effect() -> None:
            found = self._objects.data.get(key)
            if mode == "create" and found is not None:
                raise AlreadyExistsError(key)
            if isinstance(mode, dict) and (found is None or found[1] != mode["e_tag"]):
                raise PreconditionError(key)
            self._line.check_final(key, found[0] if found else None, data, swapped=isinstance(mode, dict))
            self._objects.put(key, data)

        self._ask("PUT", key, effect)

    def list(self, client: Any, prefix: str | None = None, offset: str | None = None) -> Iterator[list[dict[str, Any]]]:
        last, folder = offset or "", f"{prefix}/" if prefix else ""

        def effect() -> list[dict[str, Any]]:
            keys = sorted(key for key in self._objects.data if key.startswith(folder))
            first = bisect_right(keys, last)
            return [self._meta(key) for key in keys[first : first + _PAGE]]

        while page := self._ask("LIST", f"{folder}>{last}", effect):
            last = page[-1]["path"]
            if self._order is not None:
                self._order.shuffle(page)
            yield page
            if len(page) < _PAGE:
                return

    def delete(self, client: Any, keys: str | list[str]) -> None:
        for key in [keys] if isinstance(keys, str) else keys:
            self._ask("DELETE", key, lambda key=key: self._objects.delete(key))

    def open_writer(self, client: Any, key: str) -> Any:
        """An upload: nothing is there until it is closed, and nothing ever if its process dies before."""
        held: list[bytes] = []
        return SimpleNamespace(
            write=lambda data: held.append(bytes(data)), close=lambda: self.put(client, key, b"".join(held))
        )


class SimulatedDisk(LocalStore):
    """A real folder. Each operation, and each step of it that others can see, is a request on the line."""

    def __init__(self, root: Path, line: Line, machines: Machines) -> None:
        super().__init__(root)
        self._line, self._machines = line, machines
        self._replacing: dict[int, tuple[Path, str]] = {}
        self._folder = ""

    def store(self, folder: str = "") -> SimulatedDisk:
        """The store of the folder, or of a folder in it; `patches` are those of the whole."""
        found = SimulatedDisk(self.root / folder, self._line, self._machines)
        found._replacing, found._folder = self._replacing, folder
        return found

    def patches(self) -> list[tuple[str, str, Any]]:
        module = "shardmill.store.local"
        own = {"link": self._link, "replace": self._rename, "rename": self._rename, "fsync": self._fsync}
        # A lock is waited for as long as it is held here, so nobody asks how long that was.
        return [(module, "os", _Like(os, own)), (module, "time", SimpleNamespace(monotonic=lambda: 0.0))]

    def _step(self, kind: str, key: object, effect: Callable[[], Any] = lambda: None) -> Any:
        path = Path(str(key))
        # The random part of a hidden name is no news.
        name = f"{self._folder}{key}".removeprefix(f"{self.root}/")
        name = path.name.rpartition(".")[2] if path.name.startswith(".") else name
        return self._line.ask(kind, name, effect, lambda: OSError(5, "Input/output error", str(key)))

    def _fsync(self, handle: int) -> None:
        self._step("FSYNC", "")

    def _link(self, source: Any, target: Any) -> None:
        """NFS sends a link again whose answer was lost, and then reports that it exists."""
        done = False

        def effect() -> None:
            nonlocal done
            os.link(source, target)
            done = True

        try:
            self._step("LINK", target, effect)
        except OSError as error:
            if done and not isinstance(error, FileExistsError):
                raise FileExistsError(str(target)) from error
            raise

    def _rename(self, source: Any, target: Any) -> None:
        turn = self._machines.turns.current
        held = self._replacing.get(id(turn))

        def effect() -> None:
            before = Path(target).read_bytes() if Path(target).exists() else None
            if held is not None and held[0] == target and (before is None or _tag(before) != held[1]):
                self._line.violations.append(f"{target.name} was replaced, but was not what was to be replaced")
            key = Path(target).relative_to(self.root).as_posix()
            self._line.check_final(key, before, Path(source).read_bytes(), swapped=held is not None)
            os.replace(source, target)

        self._step("RENAME", target, effect)

    def _wait_for_lock(self, file: int, folder: Path) -> bool:
        pause = 0.005
        while not try_lock(file):
            self._machines.sleep(pause)
            pause = min(1.0, pause * 2)
        return True

    def get(self, key: str) -> bytes:
        with self._explained(key):
            self._step("GET", key)
        return super().get(key)

    def get_if_changed(self, key: str, tag: str) -> tuple[bytes, str] | None:
        with self._explained(key):
            self._step("GET", key)
        return super().get_if_changed(key, tag)

    def head(self, key: str) -> Any:
        with self._explained(key):
            self._step("HEAD", key)
        return super().head(key)

    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool:
        turn = id(self._machines.turns.current)
        self._replacing[turn] = (self.path(key), tag)
        try:
            return super().replace_if_same(key, data, tag)
        finally:
            del self._replacing[turn]

    def list(self, prefix: str = "", after: str = "") -> Iterator[Any]:
        with self._explained(prefix):
            self._step("LIST", prefix)
        for count, entry in enumerate(super().list(prefix, after)):
            if count % _PAGE == _PAGE - 1:
                with self._explained(prefix):
                    self._step("LIST", entry.key)
            yield entry

    def delete(self, key: str) -> None:
        with self._explained(key):
            self._step("DELETE", key)
        super().delete(key)

    def writer(self, key: str) -> Any:
        with self._explained(key):
            self._step("OPEN", key)
        return super().writer(key)


def _within(key: str) -> str:
    """The key in the edition of a run that it is in."""
    return _EDITION.sub("", key, count=1)


def _tag(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def draw_weather(chance: random.Random) -> Weather:
    """Most days some things go wrong, some days many do; on others only what decides, so that commands come further."""
    base = Weather(dies=0.004, fails=0.004, answer_lost=0.01, late=0.004, slow=0.01, freezes=0.002)
    scale = {name: chance.choice((0.0, 1.0, 1.0, 4.0)) for name in base.KINDS}
    likely = {name: getattr(base, name) * scale[name] for name in base.KINDS}
    return Weather(**likely, elsewhere=chance.choice((0.1, 1.0)))
