"""The deterministic list of shards made from a spec and a source. Pure: nothing is read or written here."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import CorruptState, ShardmillError
from shardmill.core.permission import code_among
from shardmill.core.records import check_record, read_object
from shardmill.plan.sizing import SHARD_S, SHARDS_PER_WORKER
from shardmill.plugins import Group, find_by_scheme, packages_of

if TYPE_CHECKING:
    from shardmill.plan.spec import Work

# Version 0.1.0 reads the first format alone and refuses others by their number. A plan in the second format may have
# shards of several files, and records of its run may have keys that version 0.1.0 does not know.
FORMAT, _FIRST_FORMAT = 2, 1

# The entry of a fingerprint that changes when a version of shardmill corrects the vectors of a model.
NUMERICS = "numerics"
NEW_NUMERICS = "another version of shardmill began it, and this version corrects this model's vectors"

# Columns of a result that do not come from the source: the row's number and, for items with several rows, the number of
# the window (from 0) and the range of characters of the item's text that it covers.
ROW = "row"
WINDOW, START, STOP = "window", "start", "stop"
# A column of parts alone, where items may have no row: the number of a row's item in its shard.
ITEM = "item_in_shard"
# A column of numbers that grow along the run's items, for tasks that ask for it; a source hardly has one of that name.
NUMBER = "shardmill_item"

# A shard is no smaller than this, nor than a few seconds of dear work. More than the usual shards are
# made only where each would take longer than the longest.
_SMALLEST_SHARD_BYTES, _SMALLEST_S = 64 << 10, 3.3
_USUAL_SHARDS, _MOST_SHARDS = 100_000, 1_000_000
_LONGEST_S = 900.0

# Keys of the work that are left out if they are unused, so that plans made before they existed keep their id.
_NEW_KEYS = ("query", "fields", "group_by", "items", "wave", "where", "take", "limit")

# Begins the name of a run that is a source, and what identifies the content of its parts.
RUN = "run:"

# The end of a stream is unknown before it is read; this is beyond any.
STREAM_END = 1 << 62
_FILE_FIELDS = ("place", "size_bytes", "tag", "edges")
_DAMAGED = "Restore it, or choose another --out and run again."

# A value of the column that a query is cut by; None for an open end of a range.
KeyValue = int | float | str | None


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file and what identifies its content: size, the store's own tag, a digest of both edges.

    A compressed file also has its unpacked size, and `entries`: seek points, each a position in the file and one in its
    content, where decompression may start. Without entries it is read as a stream, and its size is an estimate. If
    seeking needs more than a position, `index` names the object that holds it.
    """

    place: str
    size_bytes: int
    tag: str
    edges: str
    compression: str = ""
    unpacked_bytes: int = 0
    entries: tuple[tuple[int, int], ...] = ()
    index: str = ""

    @property
    def name(self) -> str:
        """The name of the file, or of the database in a URL."""
        is_database = self.place.startswith(("postgres://", "postgresql://"))
        return PurePosixPath(self.place.partition("?")[0] if is_database else self.place).name

    @property
    def run(self) -> str:
        """The id of the plan that made it, if it is a part of a run; else empty."""
        return self.edges.split(":")[1] if self.edges.startswith(RUN) else ""

    @property
    def streamed(self) -> bool:
        return bool(self.compression) and not self.entries

    @property
    def content_bytes(self) -> int:
        """The unpacked size; an estimate for a stream, else exact."""
        return self.unpacked_bytes if self.compression else self.size_bytes

    @property
    def end(self) -> int:
        """An upper bound of where the content ends."""
        return STREAM_END if self.streamed else self.content_bytes

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {name: value for name, value in fields.items() if value or name in _FILE_FIELDS}


@dataclass(frozen=True, slots=True)
class SourceStat:
    """What planning needs to know about a source, found by reading only the edges of its files.

    `columns` has the Arrow type of every id and kept column, fixed for the whole run.
    """

    format: str
    files: tuple[SourceFile, ...]
    columns: dict[str, str]

    @property
    def size_bytes(self) -> int:
        return sum(f.content_bytes for f in self.files)

    def to_json(self) -> dict[str, Any]:
        return {"format": self.format, "files": [f.to_json() for f in self.files], "columns": self.columns}


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of one file, or several whole small files, that one worker commits as a whole.

    [start, stop) are bytes of the unpacked content in line files, CSV and JSON arrays, row groups in Parquet, rows in
    Arrow and pickles; `weight_bytes` is its share of the work. A piece of a query covers the keys above `low` up to and
    including `high`; its [start, stop) are row numbers at planning time. With several `files`, the shard has those
    that follow `file`, each from its start to its end. The last shard of a limit ends with the item that is the `most`
    of those it takes.
    """

    index: int
    file: int
    start: int
    stop: int
    weight_bytes: int
    low: KeyValue = None
    high: KeyValue = None
    files: int = 1
    most: int = 0


class ShardRows(Sequence[Shard]):
    """The shards of a plan that was read, as its rows: each is made when it is asked for, since there may be many.

    More may be added to a plan later: all who hold it see them.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: list[Sequence[Any]]) -> None:
        if not all(4 <= len(row) <= 8 for row in rows):
            raise ValueError("a row of another length")
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        at = range(len(self._rows))[index]
        return tuple(map(self.__getitem__, at)) if isinstance(at, range) else Shard(at, *self._rows[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def grow(self, later: ShardRows) -> None:
        """Add the shards that a later version of the plan has."""
        self._rows.extend(later._rows[len(self._rows) :])

    def weights(self) -> list[int]:
        return [row[3] for row in self._rows]

    def are_pieces(self, files: int) -> bool:
        """Whether each shard is a piece of the files; by columns, which is fast."""
        several = [row[6] if len(row) > 6 else 1 for row in self._rows]
        most = [row[7] if len(row) > 7 else 0 for row in self._rows]
        columns = [*([row[i] for row in self._rows] for i in range(4)), several, most]
        plain = ({*map(type, c)} <= {int} and 0 <= min(c, default=0) <= max(c, default=0) <= 1 << 64 for c in columns)
        if not (all(plain) and all(several) and all(map(operator.le, *columns[1:3]))):
            return False
        return max(map(operator.add, columns[0], several), default=0) <= files


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
            "shards": [_row(s) for s in self.shards],
            **({"packages": dict(self.packages)} if self.packages else {}),
        }

    @classmethod
    def of(cls, work: Work, stat: SourceStat, fingerprint: dict[str, str], shards: Sequence[Shard]) -> Plan:
        """Make a plan whose id depends on the content of all parts, and on no path."""
        work_json = _dump(work)
        for name in ("source", "items"):
            work_json.pop(name, None)
        if work.to is not None:
            del work_json["to"]["url"]
        work_json["params"] = without_server(work_json["params"])
        # A database is identified by its tag, not by its address; the bounds decide what is read.
        bounds = [[s.low, s.high] for s in shards]
        # Parts of a run are named by attempts; what identifies their content is in their edges.
        files = [["" if f.run else f.name, f.size_bytes, f.tag, f.edges] for f in stat.files]
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
        return cls(_hash(identity), work, stat, fingerprint, tuple(shards), packages=packages)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Plan:
        from shardmill.plan.spec import Work

        data = read_object(raw if isinstance(raw, bytes) else raw.encode(), "plan.json", _DAMAGED)
        if data.get("format") not in (_FIRST_FORMAT, FORMAT):
            raise ShardmillError(
                f"plan.json has format {data.get('format')!r}; this version reads formats 1 to {FORMAT}.",
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
        if not places or work.counts_alone:
            return replace(self, work=work)
        if len(places) != len(self.stat.files):
            raise CorruptState(
                f"execution.json has {len(places)} places for {len(self.stat.files)} files.",
                hint="Delete it, then run the command that started the run again.",
            )
        files = tuple(replace(f, place=place) for f, place in zip(self.stat.files, places, strict=True))
        return replace(self, work=work, stat=replace(self.stat, files=files))

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


def _row(shard: Shard) -> list[Any]:
    row = [shard.file, shard.start, shard.stop, shard.weight_bytes]
    if shard.most:
        return [*row, shard.low, shard.high, shard.files, shard.most]
    if shard.files > 1:
        return [*row, None, None, shard.files]
    return row if shard.low is shard.high is None else [*row, shard.low, shard.high]


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
