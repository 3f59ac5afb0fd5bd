"""The deterministic list of shards made from a spec and a source. Pure: nothing is read or written here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import CorruptState, ShardmillError
from shardmill.core.permission import code_among
from shardmill.core.records import check_record, read_object
from shardmill.plan.pieces import Shard, ShardRows, SourceStat, shard_row
from shardmill.plan.sizing import SHARD_S, SHARDS_PER_WORKER
from shardmill.plugins import Group, find_by_scheme, packages_of

if TYPE_CHECKING:
    from shardmill.plan.spec import Work

# Version 0.1.0 reads the first format alone and refuses others by their number. A plan in the second format may have
# shards of several files, and records of its run may have keys that version 0.1.0 does not know.
FORMAT, _FIRST_FORMAT = 2, 1
# That of a run with several editions, which earlier versions would take for another.
EDITIONS_FORMAT = 3

# The entry of a fingerprint that changes when a version of shardmill corrects the vectors of a model.
NUMERICS = "numerics"
NEW_NUMERICS = "another version of shardmill began it, and this version corrects this model's vectors"

# Columns of a result that do not come from the source: the row's number and, for items with several rows, the number of
# the window (from 0) and the range of characters of the item's text that it covers.
ROW = "row"
WINDOW, START, STOP = "window", "start", "stop"
# A column of parts alone, where items may have no row: the number of a row's item in its shard.
ITEM = "item_in_shard"
# A column of the bytes of items that are bytes, for their task.
BYTES = "shardmill_bytes"
# A column of numbers that grow along the run's items, for tasks that ask for it; a source hardly has one of that name.
NUMBER = "shardmill_item"

# A shard is no smaller than this, nor than a few seconds of dear work. More than the usual shards are
# made only where each would take longer than the longest.
_SMALLEST_SHARD_BYTES, _SMALLEST_S = 64 << 10, 3.3
_USUAL_SHARDS, _MOST_SHARDS = 100_000, 1_000_000
_LONGEST_S = 900.0

# Keys of the work that are left out if they are unused, so that plans made before they existed keep their id.
_NEW_KEYS = (
    *("query", "fields", "group_by", "items", "wave", "config", "split", "where", "take", "limit", "edition"),
    *("changed_since", "follow", "picture", "root"),
)

_DAMAGED = "Restore it, or choose another --out and run again."


@dataclass(frozen=True, slots=True)
class Plan:
    """The work, cut into shards. `id` identifies the work.

    `generation` is drawn at random when the plan is written to a run folder, and is part of the name of every commit,
    so that a worker left over from before a --fresh cannot commit to the new run. `format` says which versions of
    shardmill may work on the run. `packages` are those that bring its task, its source or its sink, with their
    versions; they are no part of the id.
    """

    id: str
    work: Work
    stat: SourceStat
    fingerprint: dict[str, str]
    shards: Sequence[Shard]
    generation: str = ""
    format: int = FORMAT
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def knows_new_keys(self) -> bool:
        """Whether all versions that may work on this run read records with keys that 0.1.0 does not know."""
        return self.format > _FIRST_FORMAT

    @property
    def code(self) -> tuple[str, ...]:
        """The names of code that a worker imports for it."""
        places = (*self.work.source, *(file.place for file in self.stat.files))
        return (*code_among(self.work.task, places, self.fingerprint), *self.work.calls, *self.work.keys)

    @property
    def kept(self) -> dict[str, str]:
        """The columns of the source that the result keeps, with their types: without those that only the task reads."""
        stays = {*self.work.id, *self.work.keep, *(entry.rpartition(":")[0] for entry in self.work.keep)}
        unkept = {*self.work.fields} - stays
        return {name: kind for name, kind in self.stat.columns.items() if name not in unkept}

    @property
    def weights(self) -> list[int]:
        """The weight of each shard, in bytes."""
        return self.shards.weights() if isinstance(self.shards, ShardRows) else [s.weight_bytes for s in self.shards]

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "id": self.id,
            "generation": self.generation,
            "work": _dump(self.work),
            "source": self.stat.to_json(),
            "fingerprint": self.fingerprint,
            "shards": [shard_row(s) for s in self.shards],
            **({"packages": dict(self.packages)} if self.packages else {}),
        }

    @classmethod
    def of(cls, work: Work, stat: SourceStat, fingerprint: dict[str, str], shards: Sequence[Shard]) -> Plan:
        """Make a plan whose id depends on the content of all parts, and on no path."""
        work_json = _dump(work)
        for name in ("source", "items", "changed_since", "follow"):
            work_json.pop(name, None)
        if work.root:
            # Texts are paths, wherever their folder is.
            work_json["root"] = ""
        if work.to is not None:
            del work_json["to"]["url"]
        work_json["params"] = without_server(work_json["params"])
        # A database is identified by its tag, not by its address; the bounds decide what is read.
        bounds = [[s.low, s.high] for s in shards]
        files = [f.identity for f in stat.files]
        identity = {
            "work": work_json,
            "files": [[f.tag for f in stat.files], bounds] if work.query else [] if work.counts_alone else files,
            "columns": stat.columns,
            "fingerprint": fingerprint,
        }
        used: list[tuple[Group, str]] = [("verbs", work.task), ("sources", stat.format)]
        if work.to is not None and (sink := find_by_scheme("sinks", work.to.url)) is not None:
            used.append(("sinks", sink.name))
        packages = packages_of(used)
        format = EDITIONS_FORMAT if work.edition else FORMAT
        return cls(_hash(identity), work, stat, fingerprint, tuple(shards), format=format, packages=packages)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Plan:
        from shardmill.plan.spec import Work

        data = read_object(raw if isinstance(raw, bytes) else raw.encode(), "plan.json", _DAMAGED)
        if data.get("format") not in (_FIRST_FORMAT, FORMAT, EDITIONS_FORMAT):
            raise ShardmillError(
                f"plan.json has format {data.get('format')!r}; this version reads formats 1 to {EDITIONS_FORMAT}.",
                hint="Use the version of shardmill that made the run, or start over with --fresh.",
            )
        try:
            stat = check_record(SourceStat, data["source"], "plan.json", _DAMAGED)
            shards = ShardRows([*data["shards"]])
            names = str(data["id"]), str(data["generation"])
            work, fingerprint = Work(**data["work"]), dict(data["fingerprint"])
            packages = {str(name): str(package) for name, package in dict(data.get("packages") or {}).items()}
            plan = cls(names[0], work, stat, fingerprint, shards, names[1], data["format"], packages)
            if not shards.are_pieces(files := len(stat.files)):
                wrong = next(i for i, row in enumerate(data["shards"]) if not ShardRows([row]).are_pieces(files))
                raise CorruptState(f"plan.json is damaged: shard {wrong} is not a piece of a file.", hint=_DAMAGED)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptState(f"plan.json is damaged: {type(error).__name__}.", hint=_DAMAGED) from error
        plan._check_names()
        return plan

    def _check_names(self) -> None:
        """Refuse indexes that are not in the run folder, columns without a type, and a generation that is no name."""
        for file in self.stat.files:
            if file.index and not re.fullmatch(r"index/[A-Za-z0-9][A-Za-z0-9._-]*", file.index):
                raise CorruptState(f"plan.json names an index outside the run: {file.index!r}.", hint=_DAMAGED)
        columns = self.stat.columns
        for name in (*self.work.id, *self.work.keep, *self.work.fields):
            if name not in columns and name.rpartition(":")[0] not in columns:
                raise CorruptState(f"plan.json is damaged: no type for the column {name!r}.", hint=_DAMAGED)
        if not re.fullmatch(r"[A-Za-z0-9]*", self.generation):
            raise CorruptState(f"plan.json is damaged: generation {self.generation!r}.", hint=_DAMAGED)

    def relocated(self, settings: Mapping[str, Any]) -> Plan:
        """The same plan with its files, its table and its server where the settings of the run have them now."""
        from shardmill.plan.spec import SERVER

        work, places = self.work, settings.get("places")
        if settings.get("to_url") and work.to is not None:
            work = work.model_copy(update={"to": work.to.model_copy(update={"url": settings["to_url"]})})
        server = {name: str(settings[name]) for name in SERVER if settings.get(name)}
        if server and work.params.get("endpoint"):
            work = work.model_copy(update={"params": {**work.params, **server}})
        if settings.get("root") and work.root:
            work = work.model_copy(update={"root": str(settings["root"])})
        if not places or work.counts_alone:
            return replace(self, work=work)
        if len(places) != len(self.stat.files):
            raise CorruptState(
                f"execution.json has {len(places)} places for {len(self.stat.files)} files.",
                hint="Delete it, then run the command that started the run again.",
            )
        files = tuple(replace(f, place=place) for f, place in zip(self.stat.files, places, strict=True))
        return replace(self, work=work, stat=replace(self.stat, files=files))

    @property
    def places(self) -> list[str]:
        """Where its files are."""
        return [file.place for file in self.stat.files]

    def placed_at(self, places: Sequence[str]) -> Plan:
        """The same plan with its files at these places."""
        if list(places) == self.places:
            return self
        files = tuple(replace(f, place=place) for f, place in zip(self.stat.files, places, strict=True))
        return replace(self, stat=replace(self.stat, files=files))

    def indexed_at(self, places: Sequence[str]) -> Plan:
        """The same plan with the indexes of its files at these places."""
        files = tuple(replace(f, index=place) for f, place in zip(self.stat.files, places, strict=True))
        return replace(self, stat=replace(self.stat, files=files))

    def encode(self) -> bytes:
        return json.dumps(self.to_json(), separators=(",", ":")).encode()


def _dump(work: Work) -> dict[str, Any]:
    """The work as JSON. Unused keys are left out, so that plans made before a key existed keep their id."""
    # Products are loaded by their own run.
    unused: dict[str, Any] = {"to": {"metadata"}} if work.to is not None else {"to": True}
    unused |= {name: True for name in _NEW_KEYS if not getattr(work, name)}
    return work.model_dump(mode="json", exclude=unused)


def without_server(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that the result depends on: not where a server is and which key it takes."""
    from shardmill.plan.spec import SERVER

    return {name: value for name, value in params.items() if name not in SERVER}


def shard_target_bytes(total_bytes: int, rates: Sequence[float]) -> int:
    """The target size of a shard: about ninety seconds of work, and enough shards to keep all workers busy.

    `rates` has the source bytes per second of each worker.
    """
    slowest = min(rates)
    by_share = total_bytes / (len(rates) * SHARDS_PER_WORKER)
    smallest = min(_SMALLEST_SHARD_BYTES, slowest * _SMALLEST_S)
    usual = min(total_bytes / _USUAL_SHARDS, slowest * _LONGEST_S)
    return max(1, int(max(min(slowest * SHARD_S, by_share), smallest, usual, total_bytes / _MOST_SHARDS)))


def new_numerics(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether two fingerprints are of versions of shardmill that compute the model differently."""
    return old.get(NUMERICS) != new.get(NUMERICS)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":"), sort_keys=True).encode()).hexdigest()[:16]
