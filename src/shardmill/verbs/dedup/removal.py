"""Removes duplicates from a source: signatures, the groups that share one, and a filter; each a run that resumes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardmill.core.console import say
from shardmill.core.errors import UsageError
from shardmill.core.template import NO_TEXT, TextTemplate
from shardmill.engines import LOCAL, find_kind
from shardmill.engines.base import Engine
from shardmill.ledger import Ledger
from shardmill.plan import ITEM, NUMBER, ROW
from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.run.result import Run
from shardmill.run.spilling import keep_source
from shardmill.sources import list_columns
from shardmill.verbs.dedup.functions import (
    PAIRS,
    SHARD_BITS,
    SIGNATURE,
    Numbers,
    join_pairs,
    load_datasketch,
    pack_items,
    similarity,
)

# The name under which plans know the functions, wherever the module is.
_CALLS = "shardmill.texts.duplicates"
# All numbers of a group are one text.
_GROUP_BYTES = 1 << 30
# Options of what is read, which are for the first of the runs.
_OF_SOURCE = ("source", "query", "format", "where", "take", "limit")
_OWN = ("digest", ROW, ITEM, NUMBER, SIGNATURE)


@dataclass(frozen=True, slots=True)
class Deduplicated:
    """The run without duplicates, how many items there were and were removed, `exact` of them equal to another."""

    run: Run
    items: int
    dropped: int
    exact: int

    @property
    def pairs(self) -> str:
        """The file that says which item each dropped one is like."""
        return f"{self.run.ledger.url}/{PAIRS}"

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run.ledger.url,
            "items": self.items,
            "kept": self.items - self.dropped,
            "dropped": self.dropped,
            "exact": self.exact,
            "pairs": self.pairs,
        }


def remove_duplicates(
    work: dict[str, Any],
    execution: dict[str, Any],
    out: str | os.PathLike[str],
    *,
    threshold: float = 0.8,
    exact: bool = False,
    markup: bool = True,
    fresh: bool = False,
    resume: bool = False,
    quiet: bool = True,
    engine: Engine | None = None,
) -> Deduplicated:
    """Keep the first of all items whose texts are alike, into OUT. The same call resumes.

    Texts are alike if they are equal but for case and marks or, unless only `exact` ones are wanted, if the estimated
    share of equal shingles is at least `threshold`. Without `markup`, they are compared as if they had no tags of HTML
    or XML. OUT-signatures, OUT-bands and OUT-pairs are runs on the way.
    """
    if not 0 < threshold <= 1:
        raise UsageError(
            f"The threshold must be more than 0 and at most 1 (got {threshold:g}).", hint="For example: --threshold 0.8"
        )
    if not work.get("text"):
        raise UsageError("No text was given.", hint="Name the field whose texts are compared: --text body")
    if execution.get("detach"):
        raise UsageError(
            "--detach cannot be used with dedup: each step is planned when the one before it is done.",
            hint="Leave it out; after a kill, the same command resumes.",
        )
    if not exact and engine is None and find_kind(execution.get("engine") or LOCAL).stays_here:
        load_datasketch()
    place = os.fspath(out).rstrip("/")
    work = keep_source(work, f"{place}-signatures", fresh=fresh)
    each = {"device": "cpu", **execution, "then": ()}
    how: dict[str, Any] = {"fresh": fresh, "quiet": quiet, "engine": engine}
    kept = _columns_to_keep(work, quiet)
    own = {name: work[name] for name in (*_OF_SOURCE, "id", "max_item_bytes") if work.get(name)}
    fields = TextTemplate.parse(work["text"]).names
    call = "exact_signatures" if exact else "Signatures"
    arguments = _settle_arguments(f"{place}-signatures", exact=exact, markup=markup, fresh=fresh)
    work_of_signatures = {**own, "text": NO_TEXT, "keep": kept}
    spec = _spec(work_of_signatures, call, each, fields, arguments, template=work["text"], number=True)
    signed = start(spec, f"{place}-signatures", resume=resume, **how)
    grouped, key = signed, "digest"
    if not exact:
        source = {"source": f"run:{signed.ledger.url}", "text": NO_TEXT}
        spec = _spec(source, "Bands", each, [NUMBER, SIGNATURE], {"threshold": threshold})
        grouped = start(spec, f"{place}-bands", **how)
        key = "key"
    groups: dict[str, Any] = {
        "source": f"run:{grouped.ledger.url}",
        "text": f"{{{NUMBER}}}",
        "group_by": key,
        "id": key,
    }
    groups |= {"max_item_bytes": _GROUP_BYTES}
    # Rows that failed are one group, which has no numbers.
    paired = start(_spec(groups, "pair_up", {**each, "max_errors": "1"}, [], text=True), f"{place}-pairs", **how)
    found = _find_duplicates(signed, paired, None if exact else threshold)
    names = [name for name in signed.plan.kept if name not in signed.plan.work.id]
    last = {"source": f"run:{signed.ledger.url}", "text": NO_TEXT, "id": signed.plan.work.id, "keep": names}
    dropped = {"dropped": pack_items(found.column("dropped").to_numpy())}
    run = start(_spec(last, "WithoutDuplicates", each, [NUMBER, "digest"], dropped), place, **how)
    _write_pairs(signed, run.ledger, found)
    if then := execution.get("then"):
        # One of these steps may be the proof, which looks at the pairs.
        spec = _spec(last, "WithoutDuplicates", {**each, "then": then}, [NUMBER, "digest"], dropped)
        run = start(spec, place, **{**how, "fresh": False})
    equal = int(np.count_nonzero(found.column("equal").to_numpy(zero_copy_only=False)))
    return Deduplicated(
        run, sum(c.rows - c.dropped for c in signed.ledger.commits.read().values()), found.num_rows, equal
    )


def _spec(
    work: dict[str, Any],
    call: str,
    execution: dict[str, Any],
    fields: Sequence[str],
    arguments: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    params = {"call": f"{_CALLS}:{call}", "fields": list(fields), "arguments": arguments or {}, **more}
    return make_spec({**work, "task": "apply", "params": params}, execution)


def _settle_arguments(place: str, *, exact: bool, markup: bool, fresh: bool) -> dict[str, Any]:
    """How texts are compared: as the run of signatures at `place` began to, if there is one."""
    asked: dict[str, Any] = {} if markup else {"markup": False}
    before = None if fresh or exact else Ledger(place).find_plan()
    if before is not None and "characters" not in (before.work.params.get("arguments") or {}):
        # An earlier version began it, to which a clause without spaces was one word.
        return asked
    return asked if exact else {"characters": True, **asked}


def _columns_to_keep(work: dict[str, Any], quiet: bool) -> list[str]:
    """The columns that the user named, or all that the source has."""
    if keep := work.get("keep"):
        return [part for each in ([keep] if isinstance(keep, str) else keep) for part in each.split(",")]
    source = work.get("source") or ()
    places = [source] if isinstance(source, str) else list(source)
    ids = work.get("id") or ()
    columns = list_columns(places, work.get("query", ""), work.get("format"), work.get("config", ""))
    found = [name for name in columns if name not in (ids.split(",") if isinstance(ids, str) else ids)]
    for name in found:
        if name in _OWN and not quiet:
            say(f"The column {name!r} is left out: the result has one of its own. Rename it in the source to keep it.")
    return [name for name in found if name not in _OWN]


def _find_duplicates(signed: Run, paired: Run, threshold: float | None) -> pa.Table:
    """Which item each dropped one is like, by their numbers, with their similarity, and whether they are equal."""
    table = paired.table(["kept", "dropped"]).drop_columns(["row"]).drop_null()
    pairs = np.stack([table.column(n).to_numpy() for n in ("kept", "dropped")], axis=1)
    pairs = np.unique(pairs, axis=0) if len(pairs) else pairs
    items, digests, signatures = _signatures_of(signed, np.unique(pairs), near=threshold is not None)
    if threshold is not None and len(pairs):
        alike = similarity(signatures, *np.searchsorted(items, pairs).T) >= threshold
        pairs = pairs[alike]
    kept, dropped = join_pairs(pairs[:, 0], pairs[:, 1])
    a, b = np.searchsorted(items, kept), np.searchsorted(items, dropped)
    equal = digests[a] == digests[b]
    like = similarity(signatures, a, b) if threshold is not None and len(a) else np.ones(len(a))
    return pa.table({"kept": kept, "dropped": dropped, "similarity": np.where(equal, 1.0, like), "equal": equal})


def _signatures_of(run: Run, wanted: Numbers, *, near: bool) -> tuple[Numbers, Any, pa.Array]:
    """Numbers, digests and signatures of these items, in order; nothing else is held in memory."""
    names = [NUMBER, "digest", *([SIGNATURE] if near else [])]
    batches = [batch.filter(_among(batch, wanted)) for batch in run.batches(names)]
    found = pa.Table.from_batches(batches).combine_chunks()
    signatures = found.column(SIGNATURE).combine_chunks() if near else pa.array([], pa.binary())
    return found.column(NUMBER).to_numpy(), found.column("digest").to_numpy(), signatures


def _among(batch: pa.RecordBatch, wanted: Numbers) -> pa.Array:
    return pa.array(np.isin(batch.column(NUMBER).fill_null(-1).to_numpy(), wanted))


def _write_pairs(signed: Run, ledger: Ledger, found: pa.Table) -> None:
    """Write which row each dropped one is like, by their numbers in the source and their ids."""
    commits = signed.ledger.commits.read()
    firsts = np.cumsum([0, *(commits[shard].rows for shard in sorted(commits))])
    columns: dict[str, Any] = {}
    for name in ("kept", "dropped"):
        items = found.column(name).to_numpy()
        columns[name] = firsts[items >> SHARD_BITS] + (items & ((1 << SHARD_BITS) - 1))
    columns["similarity"] = found.column("similarity")
    columns |= dict(_ids_of(signed, columns["kept"], columns["dropped"]))
    file = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), file, compression="zstd", write_page_checksum=True)
    ledger.store.put(PAIRS, bytes(file.getvalue()))


def _ids_of(signed: Run, kept: Numbers, dropped: Numbers) -> Iterator[tuple[str, pa.Array]]:
    if not (names := list(signed.plan.work.id)):
        return
    wanted = np.unique(np.concatenate([kept, dropped]))
    batches = [b.filter(pa.array(np.isin(b.column("row").to_numpy(), wanted))) for b in signed.batches(names)]
    found = pa.Table.from_batches(batches).combine_chunks()
    for name in names:
        for side, rows in (("kept", kept), ("dropped", dropped)):
            yield f"{side}_{name}", found.column(name).take(pa.array(np.searchsorted(wanted, rows)))
