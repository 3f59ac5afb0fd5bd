"""A map of a result: fit it once, then place every vector in a run of its own, which ends with the page."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from shardmill.core.console import count, say
from shardmill.core.errors import UsageError, nearest
from shardmill.core.template import NO_TEXT
from shardmill.engines.base import Engine
from shardmill.engines.process import name_worker
from shardmill.ledger import Ledger
from shardmill.plan import RUN, Plan
from shardmill.plan.options import read_options
from shardmill.plan.spec import make_spec
from shardmill.plugins import find_by_scheme, find_verb
from shardmill.postgres.places import find_table, is_table
from shardmill.run import Run, start
from shardmill.run.spilling import keep_source
from shardmill.sources import Fields, discover, list_columns
from shardmill.sources.sql.query import quote
from shardmill.store import is_url
from shardmill.tasks import open_here, open_task
from shardmill.verbs.map.fitting import fit_source
from shardmill.verbs.map.layout.fitting import versions
from shardmill.verbs.map.layout.saved import find_fit
from shardmill.verbs.map.marks import Mark, write_marks
from shardmill.verbs.map.params import FitOptions
from shardmill.worker.steps import do_first

_LEASE_S = 60.0
# The column of vectors in a table that `shardmill load` made. Databases do not say that a column has vectors.
_LOADED = "embedding"
# The result's own columns.
_OWN = ("row", "x", "y", "distance", "excerpt", "cluster", "cluster_name")


@dataclass(frozen=True, slots=True)
class MapSource:
    """What is mapped: where it is, and the columns with the vectors, the texts, the ids, and those to keep.

    `text` is empty if no column has the texts.
    """

    places: tuple[str, ...]
    vector: str
    text: str
    id: tuple[str, ...]
    keep: tuple[str, ...]
    query: str = ""
    format: str | None = None
    split: str = ""
    config: str = ""

    @property
    def fields(self) -> Fields:
        return Fields(NO_TEXT, self.id, self.keep, self.query, (self.vector,), config=self.config, split=self.split)


def make_map(
    work: Mapping[str, Any],
    execution: dict[str, Any],
    out: str | os.PathLike[str],
    *,
    fresh: bool = False,
    resume: bool = False,
    quiet: bool = True,
    engine: Engine | None = None,
) -> Run:
    """Map the vectors of a run, of files or of a query into the folder `out`. The same call resumes."""
    asked_at = time.time()
    given = {name: work[name] for name in FitOptions.model_fields if work.get(name) is not None}
    options = read_options(FitOptions, given)
    place = _absolute(os.fspath(out))
    source = find_columns(keep_source(dict(work), place, fresh=fresh))
    fitted = _fit(source, options, place, quiet)
    how: dict[str, Any] = {"fresh": fresh, "resume": resume, "quiet": quiet, "engine": engine}
    marks = _embed_marks(source, work.get("marks") or (), quiet)
    if marks and write_marks(fitted, marks) and (ledger := Ledger(place)).find_plan() is not None:
        ledger.steps.forget("map")
    done = _place(source, fitted, execution, place, asked_at=asked_at, **how)
    for points in _names(work.get("points")):
        done = _add_points(points, source, fitted, execution, place, **how)
    return done


def _place(source: MapSource, fitted: str, execution: dict[str, Any], place: str, **how: Any) -> Run:
    """The run that places every vector, and ends with the page."""
    spec = {
        "source": source.places,
        "text": NO_TEXT,
        "id": source.id,
        "keep": source.keep,
        "query": source.query,
        "format": source.format,
        "config": source.config,
        "split": source.split,
        "task": "map",
        "params": {"fit": fitted, "vector": source.vector, **({"text": source.text} if source.text else {})},
    }
    return start(make_spec(spec, {"device": "cpu", **execution}), place, **how)


def _add_points(points: str, source: MapSource, fitted: str, execution: dict[str, Any], place: str, **how: Any) -> Run:
    """Lay other items onto the same map: embed them as the run did, in MAP/vectors, then place both, in MAP/points."""
    below = _plan_of(source, "--points")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(points.removeprefix(RUN)).stem) or "points"
    added = _find_run([points])
    if added is None:
        work = {"source": points, **{key: getattr(below.work, key) for key in ("text", "id", "keep", "task", "params")}}
        vectors = start(make_spec(work, {**execution, "then": ()}), f"{place}/vectors/{name}", **how).ledger.url
    else:
        vectors = _absolute(points.removeprefix(RUN))
        changed = [key for key in below.fingerprint if below.fingerprint[key] != added.fingerprint.get(key)]
        if changed:
            raise UsageError(f"{points} was not embedded with the model of {source.places[0].removeprefix(RUN)}.")
    both = replace(source, places=(*source.places, f"{RUN}{vectors}"))
    return _place(both, fitted, execution, f"{place}/points/{name}", **how)


def _embed_marks(source: MapSource, texts: Sequence[str], quiet: bool) -> list[Mark]:
    """The texts with their vectors, by the model of the run that is mapped."""
    texts = [text.strip() for text in texts if text.strip()]
    if not texts:
        return []
    plan = _plan_of(source, "--mark")
    task = open_task(plan.work.task, plan.work.params)
    if task.embed_query is None:
        raise UsageError(f"The task {plan.work.task!r} embeds no texts.", hint="Leave out --mark.")
    device = open_here(task, precise=True)
    if not quiet:
        say(f"Embedding {count(len(texts), 'mark')} with the model on {device.name}.")
    assert task.embed_query is not None
    marks = [Mark(text, tuple(task.embed_query(text).tolist())) for text in texts]
    task.close()
    return marks


def _plan_of(source: MapSource, flag: str) -> Plan:
    """The plan of the embed run that is mapped: it says which model made the vectors."""
    plan = _find_run(source.places) if source.places[0].startswith(RUN) else None
    if plan is None or not find_verb(plan.work.task).makes_vectors:
        raise UsageError(
            f"{flag} needs the model of the vectors, and only an embed run names it.",
            hint="Embed the items with shardmill, and map that run.",
        )
    return plan


def _fit(source: MapSource, options: FitOptions, place: str, quiet: bool) -> str:
    """Fit the map unless it is there; returns the folder of the fitted map."""
    stat = discover(source.places, source.fields, source.format)
    files = [f.identity for f in stat.files]
    told = [files, source.query, source.vector, options.method, options.sample, options.seed, versions(options.method)]
    identity = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
    fitted = f"{place}/fit/{identity}"
    if find_fit(fitted) is None:
        ledger = Ledger(fitted)

        def fit() -> dict[str, Any]:
            record = find_fit(fitted) or fit_source(fitted, stat, source.fields, source.vector, options, quiet=quiet)
            return {"anchors": record.anchors, "digest": record.digest}

        do_first(ledger, "fit", name_worker(os.getpid()), _LEASE_S, fit)
    return fitted


def find_columns(work: Mapping[str, Any]) -> MapSource:
    """Choose the columns: those that are named, and otherwise those that the source has."""
    given, query, config = _names(work.get("source")), work.get("query") or "", work.get("config") or ""
    if not given:
        raise UsageError("Nothing to map was given.", hint="Name an embed run: shardmill map RUN --out MAP")
    if not query and len(given) == 1 and is_table(given[0]):
        found = find_table(given[0])
        given, query = (found.url,), f"SELECT * FROM {quote(found.schema)}.{quote(found.table)}"
    plan = None if query else _find_run(given)
    places = (f"{RUN}{_absolute(given[0].removeprefix(RUN))}",) if plan is not None else given
    columns = list_columns(places, query, work.get("format"), config)
    vector = work.get("vector") or (_LOADED if query and _LOADED in columns else _only_vector(columns))
    own = [vector, *([plan.work.text] if plan is not None and plan.work.text in columns else [])]
    text = work.get("text") or (own[1] if len(own) > 1 else "")
    id = _names(work.get("id")) or (plan.work.id if plan is not None else ())
    for name in (vector, *([text] if text else [])):
        if name not in columns:
            raise UsageError(f"The source has no column {name!r}.", hint=nearest(name, [*columns]))
    plain = [n for n, kind in columns.items() if not pa.types.is_nested(kind) and not pa.types.is_binary(kind)]
    offered = [n for n in plain if n not in (*id, vector, text, *_OWN)]
    keep = _names(work.get("keep")) or (() if query else tuple(offered))
    return MapSource(places, vector, text, id, keep, query, work.get("format"), work.get("split") or "", config)


def _find_run(places: Sequence[str]) -> Plan | None:
    """The plan of the run, if the one place is the folder of a run."""
    if len(places) != 1 or places[0].endswith((".parquet", ".jsonl")):
        return None
    place = places[0].removeprefix(RUN)
    if is_table(place) or find_by_scheme("sources", place) is not None:
        return None
    return Ledger(place).find_plan() if is_url(place) or Path(place).is_dir() else None


def _only_vector(columns: Mapping[str, pa.DataType]) -> str:
    found = [name for name, kind in columns.items() if _is_vectors(kind)]
    if len(found) == 1:
        return found[0]
    hint = "Embed the items first: shardmill embed SOURCE --text FIELD --out RUN"
    if found:
        raise UsageError(f"Several columns have vectors: {', '.join(found)}.", hint="Name one: --vector COLUMN")
    raise UsageError(
        "No column has vectors.", hint=f"Name it: --vector COLUMN (there are {', '.join(columns)}). {hint}"
    )


def _is_vectors(kind: pa.DataType) -> bool:
    listed = pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return bool(listed and pa.types.is_floating(kind.value_type))


def _names(value: Any) -> tuple[str, ...]:
    if not value:
        return ()
    values = [value] if isinstance(value, str | os.PathLike) else value
    return tuple(part.strip() for each in values for part in os.fspath(each).split(",") if part.strip())


def _absolute(place: str) -> str:
    return place.rstrip("/") if is_url(place) else str(Path(place).expanduser().absolute())
