"""What a source, a sink, a task and an engine owe, as functions that the tests of a plug-in call.

Each returns the number of checks that it made, and raises AssertionError with what is wrong. Our own run through them.

    def test_mail_archives(tmp_path):
        check_source([archive], rows=[{"id": "<1@x>", "body": "Hello"}], text="body", id="id")
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import ShardmillError, SourceError
from shardmill.core.records import check_record
from shardmill.engines.base import Engine
from shardmill.plugins import find_by_scheme
from shardmill.sources import (
    Fields,
    Shard,
    SourceStat,
    count_lines,
    count_rows,
    discover,
    list_columns,
    open_source,
)
from shardmill.sources.formats import find_format
from shardmill.sources.origin import ORIGIN
from shardmill.sources.spans import extents, is_ranged
from shardmill.store import is_url, open_store
from shardmill.tasks.base import WINDOW, Output, Prepared, Task
from shardmill.tasks.context import LongTask, Stopped
from shardmill.testing.context import FakeContext
from shardmill.testing.delivering import check_sink
from shardmill.testing.writing import Checks, check_writer

__all__ = ["check_engine", "check_sink", "check_source", "check_task", "check_writer"]

_TARGETS = (97, 1_000, 1 << 40)
_NOWHERE = "no_such_field_of_any_source"


def check_source(
    places: Sequence[str | os.PathLike[str]],
    *,
    rows: Sequence[Mapping[str, Any]],
    text: str,
    id: str = "",
    format: str | None = None,
    query: str = "",
) -> int:
    """Check that a source gives exactly these rows, however it is cut, and refuses what it cannot give.

    `places` are files or addresses; the rows of a database are selected by `query`. `rows` have the field `text` and,
    if it is named, the field `id`, in the order of the source.
    """
    checks = Checks()
    names = [os.fspath(place) for place in places]
    fields = Fields(text, id=(id,) if id else (), query=query)
    stat = discover(names, fields, format)
    checks.that(bool(stat.files) and stat.size_bytes > 0, "a source has files, and they have a size")
    checks.that(discover(names, fields, format) == stat, "examined again, it is the same")
    again = check_record(SourceStat, json.loads(json.dumps(stat.to_json())), "plan.json", "")
    checks.that(again == stat, "its description comes back from plan.json")
    columns = list_columns(names, query, format)
    checks.that({text, *fields.id} <= {*columns}, "its columns are listed")
    wanted = [(None if row[text] is None else str(row[text]), row.get(id) if id else None) for row in rows]
    for target in _TARGETS:
        source = open_source(stat, fields)
        shards = source.shards(target)
        said = f"cut into shards of {target:,} bytes"
        checks.that([shard.index for shard in shards] == list(range(len(shards))), f"{said}: numbered in order")
        checks.that(all(shard.weight_bytes > 0 for shard in shards), f"{said}: each has a weight")
        kept = [Shard(**json.loads(json.dumps(asdict(shard)))) for shard in shards]
        checks.that(kept == list(shards), f"{said}: each comes back from plan.json")
        found = [_items(stat, fields, shard) for shard in shards]
        checks.that([item for items in found for item in items] == wanted, f"{said}: every row once, in order")
        checks.that(found == [_items(stat, fields, shard) for shard in shards], f"{said}: read again, the same")
        for shard in shards:
            lines = [line for batch in source.read(shard) for line in batch.lines]
            rising = shard.files > 1 or all(a < b for a, b in zip([0, *lines], lines, strict=False))
            checks.that(rising, f"{said}: the lines of shard {shard.index} rise from 1")
    if query:
        counted: list[int | None] = [count_rows(stat, fields, open_source(stat, fields).shards(1 << 40))]
    else:
        counted = [count_lines(stat, file) for file in stat.files]
    checks.that(None in counted or sum(filter(None, counted)) >= len(rows), "the rows of a file can be counted again")
    _check_extents(checks, stat, fields, wanted)
    if find_format(stat.format).located:
        own = [name for name in ORIGIN if name not in columns]
        _check_origin(checks, names, replace(fields, keep=tuple(own)), format)
    _check_refusals(checks, names, stat, fields, format)
    return checks.made


def _items(stat: SourceStat, fields: Fields, shard: Shard) -> list[tuple[str | None, Any]]:
    found = []
    for batch in open_source(stat, fields).read(shard):
        kept = batch.kept.column(0).to_pylist() if fields.id else [None] * len(batch)
        found += list(zip(batch.texts.to_pylist(), kept, strict=True))
    return found


def _check_origin(checks: Checks, places: list[str], fields: Fields, format: str | None) -> None:
    stat = discover(places, fields, format)
    told = []
    for target in _TARGETS:
        source = open_source(stat, fields)
        batches = [batch for shard in source.shards(target) for batch in source.read(shard)]
        told.append([row for batch in batches for row in batch.kept.to_pylist()])
    checks.that(all(each == told[0] for each in told), "however it is cut, rows tell the same file and line")


def _check_extents(checks: Checks, stat: SourceStat, fields: Fields, wanted: Sequence[Any]) -> None:
    """Read each shard from copies that have only the bytes that it says it needs."""
    if not all(is_ranged(stat, file) and not is_url(file.place) for file in stat.files):
        return
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for shard in open_source(stat, fields).shards(997):
            files = []
            for number, file in enumerate(stat.files):
                copy = Path(folder) / f"{shard.index}-{number}" / Path(file.place).name
                copy.parent.mkdir()
                data, kept = Path(file.place).read_bytes(), bytearray(file.size_bytes)
                if shard.file <= number < shard.file + shard.files:
                    for start, stop in extents(stat, shard, number):
                        kept[start:stop] = data[start:stop]
                copy.write_bytes(kept)
                shutil.copystat(file.place, copy)
                files.append(replace(file, place=str(copy)))
            found += _items(replace(stat, files=tuple(files)), fields, shard)
        checks.that(found == list(wanted), "a shard can be read from the bytes that it says it needs")


def _check_refusals(checks: Checks, places: list[str], stat: SourceStat, fields: Fields, format: str | None) -> None:
    # Where an item is nothing but its text, that may be called by any one name.
    both = f"{{{fields.text}}} {{{_NOWHERE}}}"
    for wrong in (replace(fields, text=both), replace(fields, keep=(_NOWHERE,))):
        try:
            discover(places, wrong, format)
        except SourceError as error:
            checks.that(_NOWHERE in error.message, "a missing field is named")
        else:
            checks.that(False, "a missing field is refused")
    kind = find_format(stat.format)
    if find_by_scheme("sources", places[0]) is not None:
        try:
            discover([*places, f"{_NOWHERE}.jsonl"], fields, format)
        except SourceError:
            checks.that(True, "")
        else:
            checks.that(False, "files beside its address are refused")
    if kind.reach == "files":
        _check_changed(checks, stat, fields)
    if kind.unit != "id":
        small = open_source(stat, fields, max_item_bytes=1)
        bad = [reason for batch in small.read(small.shards(1 << 40)[0]) for reason in batch.bad.values()]
        checks.that(bool(bad), "an item over the limit is a bad row, not an end")


def _check_changed(checks: Checks, stat: SourceStat, fields: Fields) -> None:
    shard = open_source(stat, fields).shards(1 << 40)[0]
    changed = replace(stat, files=tuple(replace(file, size_bytes=file.size_bytes + 1) for file in stat.files))
    try:
        _items(changed, fields, shard)
    except ShardmillError:
        checks.that(True, "")
    else:
        checks.that(False, "a file that changed since planning is refused")


def check_task(make: Callable[[], Task], texts: Sequence[str], fields: pa.RecordBatch | None = None) -> int:
    """Check that a task keeps its contract: the same rows for the same texts, whatever they are batched with.

    `fields` has a row per text: the columns that the task names in its `fields`. A `LongTask` works on each text in a
    `FakeContext`, and again, told to stop.
    """
    checks = Checks()
    task = make()
    said = task.fingerprint()
    checks.that(all(isinstance(k, str) and isinstance(v, str) for k, v in said.items()), "a fingerprint is of texts")
    checks.that(make().fingerprint() == said, "the same parameters have the same fingerprint")
    checks.that(isinstance(task.output, pa.Schema), "the columns are known before it is opened")
    task.open(Device("cpu", "cpu", 1))
    checks.that(task.batch_budget > 0, "a batch has a budget once it is open")

    def prepare(which: Sequence[int | None]) -> Prepared:
        own = fields.take(pa.array(which, pa.int64())) if fields is not None else None
        return task.prepare([None if i is None else texts[i] for i in which], own)

    every = range(len(texts))
    prepared = prepare([*every, None])
    checks.that(len(prepared.costs) == len(prepared.inputs), "every input has a cost")
    checks.that(bool((np.asarray(prepared.costs) >= 0).all()), "no cost is negative")
    if isinstance(task, LongTask):
        _check_long(checks, task, prepare(every).inputs)
        task.close()
        return checks.made

    def make_rows(which: Sequence[int]) -> Output:
        ready = prepare(which)
        output, combined = task.run(ready.inputs), task.combine(len(which))
        if combined is None:
            return output
        combined.add(np.arange(len(which)) if ready.owners is None else ready.owners, output.rows)
        return combined.finish()

    whole = make_rows(every)
    checks.that(whole.rows.schema.names == [n for n in task.output.names if n != WINDOW], "rows have its columns")
    checks.that(task.check_rows(whole.rows) is None, "its own check finds its rows good")
    if task.rows_vary:
        counts = whole.counts if whole.counts is not None else ()
        told = len(counts) == len(texts) and sum(counts) == whole.rows.num_rows
        checks.that(told, "it says how many rows each text gave")
    elif WINDOW not in task.output.names:
        checks.that(whole.rows.num_rows == len(texts), "one row per text")
    if task.agreement("float32") in ("exact", "close"):
        if task.most_distant("float32") is not None:
            same = [_is_near(task, whole.rows.slice(i, 1), make_rows([i]).rows) for i in every]
        else:
            again = pa.Table.from_batches([make_rows([i]).rows for i in every]).to_pylist()
            same = [_is_close(a, b) for a, b in zip(whole.rows.to_pylist(), again, strict=True)]
        checks.that(all(same), "a row does not depend on what is in its batch")
    task.close()
    return checks.made


def _check_long(checks: Checks, task: LongTask, items: Sequence[Mapping[str, Any]]) -> None:
    for shard, item in enumerate(items):
        row = task.work(item, FakeContext(shard))
        checks.that(set(row) == set(task.output.names), "a row has its columns")
        made = pa.RecordBatch.from_pylist([dict(row)], schema=task.output)
        checks.that(task.check_rows(made) is None, "its own check finds its rows good")
        context = FakeContext(shard)
        context.stop = True
        with suppress(Stopped):
            task.work(item, context)
        context.stop = False
        again = task.work(item, context)
        checks.that(set(again) == set(row), "who was told to stop goes on to the end")


def _is_near(task: Task, row: pa.RecordBatch, again: pa.RecordBatch) -> bool:
    """Whether a row agrees with the same one computed again, by the distances that the task tells."""
    most = task.most_distant("float32")
    for name in row.schema.names:
        distance = task.distance(name, row.column(name)[0], again.column(name)[0])
        if not (row.column(name).equals(again.column(name)) if distance is None else distance <= (most or 0.0)):
            return False
    return True


def _is_close(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    for name, value in one.items():
        if isinstance(value, list) and value and isinstance(value[0], float):
            if not np.allclose(value, other[name], atol=1e-3):
                return False
        elif value != other[name]:
            return False
    return True


def check_engine(execution: Mapping[str, Any], folder: str | os.PathLike[str], *, rows: int = 200) -> int:
    """Check that an engine, named with its options in an `[execution]`, brings a run to its end and leaves nobody.

    A second run is stopped when its first shard is committed, and resumed. `folder` may be a URL, for workers that
    share no disk with this machine.
    """
    from shardmill.engines import LOCAL, open_engine
    from shardmill.engines.local import LocalEngine
    from shardmill.plan.spec import make_spec
    from shardmill.run import Run, prepare, resume, start
    from shardmill.run.planner import devices_for

    checks = Checks()
    place = os.fspath(folder)
    open_store(place).put("items.jsonl", "".join(f'{{"id": {n}, "text": "item {n}"}}\n' for n in range(rows)).encode())
    options = {"engine_options": dict(execution.get("engine_options", {}))}
    source = f"{place}/items.jsonl"
    work = {"source": source, "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}

    def check_complete(run: Run) -> None:
        state = run.status()
        checks.that(state.state == "complete", "the run is complete")
        checks.that(run.table(["id"]).column("id").to_pylist() == list(range(rows)), "every row once, in order")
        checks.that(not any(worker["live"] for worker in state.workers), "no worker is left")
        checks.that(run.ledger.leases.read() == {}, "no lease is left")
        checks.that(run.verify(sample=8).verified, "the result is verified")

    run = start(make_spec(work, {"shard_bytes": 600, **execution}), f"{place}/run")
    check_complete(run)
    before = len(run.ledger.workers.read())
    resume(run.ledger.url, options)
    checks.that(len(Run(run.ledger.url).ledger.workers.read()) == before, "nobody is placed on a complete run")

    slow = make_spec({**work, "params": {"delay_s": 0.2}}, {"shard_bytes": 600, "batch_tokens": 50, **execution})
    engine: Engine = LocalEngine(devices_for(slow)) if execution["engine"] == LOCAL else open_engine(slow.execution)
    checks.that(len(engine.devices) > 0, "its devices are known before its workers start")
    run = prepare(slow, f"{place}/stopped")
    placement = engine.start(run.ledger.url)
    try:
        while placement.poll() and not run.ledger.commits.shards():
            time.sleep(0.1)
    finally:
        placement.stop()
    checks.that(bool(run.ledger.commits.shards()), "its workers commit shards before it says that they ended")
    checks.that(run.ledger.leases.read() == {}, "who is told to stop keeps no lease")
    done = run.ledger.commits.shards()
    check_complete(resume(run.ledger.url, options))
    checks.that(run.ledger.commits.shards() >= done, "what was committed stays")
    return checks.made
