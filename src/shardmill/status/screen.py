"""The state of a run on the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardmill.console import count, duration
from shardmill.errors import UsageError
from shardmill.ledger import Ledger, Step
from shardmill.plan import Plan
from shardmill.status.load import TableLoad
from shardmill.status.state import Status

_REFRESH_S = 1.0
_OVER = ("complete", "failed")


def show(status: Status) -> None:
    Console(highlight=False, soft_wrap=True).print(render(status))


def follow(read: Callable[[], Status], *, as_json: bool = False) -> None:
    """Show the state every second until the run is complete or has failed; Ctrl-C does not stop the run."""
    status = read()
    if as_json:
        print(json.dumps(status.to_json()), flush=True)
        while status.state not in _OVER:
            time.sleep(_REFRESH_S)
            status = read()
            print(json.dumps(status.to_json()), flush=True)
        return
    with Live(render(status), console=Console(highlight=False), auto_refresh=False) as live:
        while status.state not in _OVER:
            time.sleep(_REFRESH_S)
            status = read()
            live.update(render(status), refresh=True)


def render(status: Status) -> Group:
    head = Text(f"{status.run}  {status.state}  {100 * status.share:.1f}%")
    line = Text(
        f"{status.shards_done} of {status.shards} shards · "
        f"{count(status.rows, 'row')} · {count(status.errors, 'error')} · "
        f"{status.truncated:,} truncated · {status.rows_per_s:,.0f} rows/s · {status.tokens_per_s:,.0f} tokens/s"
        + (" on average" if status.shards_done == status.shards else f" · {duration(status.eta_s)} left")
    )
    shown = [w for w in status.workers if w["live"] or w["state"] == "failed"]
    placement = [Text(status.placement)] if status.placement else []
    lines = [head, *_render_end(status), line, *placement, *map(_render_step, _shown_steps(status))]
    load = [] if status.load is None else _render_load(status.load)
    if not shown:
        return Group(*lines, *load)
    table = Table(box=None)
    for name in ("worker", "device", "state", "shards", "rows", "rows/s", "memory", "beat"):
        table.add_column(name)
    for w in shown:
        table.add_row(
            w["id"],
            f"{w['device']}, CPUs {w['cpus']}" if w.get("cpus") else w["device"],
            w["state"] if w["live"] or w["state"] == "failed" else "gone",
            ", ".join(w["open"]),
            f"{w['rows']:,}",
            f"{w['rows_per_s']:,.0f}",
            f"{w['rss_bytes'] / 2**20:,.0f} MiB",
            f"{w['beat_age_s']:.0f} s ago",
        )
    return Group(*lines, table, *load)


def _shown_steps(status: Status) -> list[Step]:
    """Every run is swept; only trouble with it is worth a line."""
    return [step for step in status.steps if (step.step, step.state) != ("sweep", "done")]


def _render_step(step: Step) -> Text:
    return Text(f"{step.step}: {step.state}" + (f" by {step.worker}" if step.state == "taken" else ""))


def _render_end(status: Status) -> list[Text]:
    """Who stopped the run, or why it failed."""
    if status.cause:
        return [Text(f"failed: {status.cause}"), *([Text(status.hint)] if status.hint else [])]
    return [Text(f"stopped by {status.by}")] if status.by else []


def _render_load(load: TableLoad) -> list[RenderableType]:
    if load.trouble:
        return [Text(f"{load.table}: {load.trouble}")]
    line = Text(
        f"{load.table}: {load.rows:,} rows loaded · {load.inserted:,} inserted · {load.updated:,} updated · "
        f"{load.errors:,} errors · {load.rows_per_s:,.0f} rows/s"
    )
    table = Table(box=None)
    for name in ("loader", "batches", "rows", "inserted", "updated", "errors", "rows/s"):
        table.add_column(name, justify="left" if name == "loader" else "right")
    for each in load.loaders:
        counts = (each.batches, each.rows, each.inserted, each.updated, each.errors, round(each.rows_per_s))
        table.add_row(each.worker, *(f"{count:,}" for count in counts))
    return [line, table] if load.loaders else [line]


def describe_shard(ledger: Ledger, plan: Plan, index: int) -> dict[str, Any]:
    """Everything the folder knows about one shard."""
    if not 0 <= index < len(plan.shards):
        raise UsageError(f"--shard {index}: this run has shards 0 to {len(plan.shards) - 1}.")
    shard = plan.shards[index]
    commit, lease = ledger.commits.read().get(index), ledger.leases.read().get(index)
    return {
        "shard": index,
        "file": plan.stat.files[shard.file].place,
        "start": shard.start,
        "stop": shard.stop,
        **({"files": shard.files} if shard.files > 1 else {}),
        **({"low": shard.low, "high": shard.high} if shard.high is not None else {}),
        "commit": asdict(commit) if commit else None,
        "lease": asdict(lease) if lease else None,
        "errors": list(ledger.errors.read(commit)) if commit else [],
        "first_rows": _first_rows(ledger, commit.part, 3) if commit and commit.part else [],
    }


def _first_rows(ledger: Ledger, part: str, count: int) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from shardmill.sinks.parquet import readable_part

    with readable_part(ledger.store, part), ledger.store.reader(part) as file:
        opened = pq.ParquetFile(file)
        names = [f.name for f in opened.schema_arrow if not pa.types.is_fixed_size_list(f.type)]
        if not names:
            return []
        first = next(opened.iter_batches(batch_size=count, columns=names), None)
        return list(first.to_pylist()) if first is not None else []
