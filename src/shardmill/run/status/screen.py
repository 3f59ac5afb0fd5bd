"""The state of a run on the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardmill.core.console import card, clean, count, duration
from shardmill.ledger import Step
from shardmill.results.pressure import describe
from shardmill.run.status.load import TableLoad
from shardmill.run.status.state import Status

_OVER = ("complete", "failed")
_REFRESH_S = 1.0
# A large run is looked at less often: its view changes every half minute.
_REFRESH_VIEW_S = 5.0
WIDTH = 80
# Workers and reasons that are listed: the worst first.
_WORKERS, _WATCHED_WORKERS, _REASONS = 40, 8, 5
_BAR = 40


def show(status: Status) -> None:
    Console(highlight=False, soft_wrap=True).print(render(status))


def follow(read: Callable[[], Status], *, as_json: bool = False) -> None:
    """Show the state again and again until the run is complete or has failed; Ctrl-C does not stop the run."""
    status = read()
    if as_json:
        print(json.dumps(status.to_json()), flush=True)
        while status.state not in _OVER:
            time.sleep(_pause_s(status))
            status = read()
            print(json.dumps(status.to_json()), flush=True)
        return
    console = Console(highlight=False)
    try:
        with Live(render(status, _WATCHED_WORKERS), console=console, auto_refresh=False) as live:
            while status.state not in _OVER:
                time.sleep(_pause_s(status))
                status = read()
                live.update(render(status, _WATCHED_WORKERS), refresh=True)
    finally:
        # Into a file, Live writes the last screen without the end of its last line.
        if not console.is_terminal:
            console.line()


def _pause_s(status: Status) -> float:
    return _REFRESH_S if status.view_age_s is None else _REFRESH_VIEW_S


def render(status: Status, workers: int = _WORKERS) -> Group:
    """One screen: what is done, how fast, until when, for how much, by whom, and what is wrong."""
    head = Text(clean(f"{status.run}  {status.state}  {100 * status.share:.1f}%"))
    end = [Text(clean(str(line))) for line in _render_end(status)]
    lines = [_bar(status.share), *_figures(status), *_errors(status)]
    said = (status.placement, "" if status.edition is None else status.edition.error)
    placement = [Text(clean(line)) for line in said if line]
    steps = map(_render_step, _shown_steps(status))
    table = [Text(fit(line)) for line in (*_reports(status, workers), *_workers(status, workers))]
    load = [] if status.load is None else _render_load(status.load)
    return Group(head, *end, *(Text(fit(line)) for line in lines), *placement, *steps, *table, *load)


def to_card(status: Status) -> str:
    """The state as a card for a notebook: the figures of the screen, and failed rows by reason."""
    lines = [*map(str, _render_end(status)), *_figures(status), *_errors(status)]
    named = [("", line.strip()) if line.startswith(" ") else line.partition(" ")[::2] for line in lines]
    return card(f"{status.run} · {status.state}", status.share, ((name, said.strip()) for name, said in named))


def fit(line: str) -> str:
    """A line cut to the width of the screen."""
    line = clean(line)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _bar(share: float) -> str:
    filled = int(_BAR * share)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"


def _figures(status: Status) -> list[str]:
    states = status.shard_states or {}
    of = f" of about {status.expected_rows:,}" if status.expected_rows and status.share < 1 else ""
    truncated = f" · {status.truncated:,} truncated" if status.truncated else ""
    tokens = f"{shortened(status.tokens)} read" + (
        f", {shortened(status.tokens_out)} made" if status.tokens_out else ""
    )
    lines = [f"items    {status.rows:,}{of} · {_rate(status, status.rows_per_s, status.mean_rows_per_s)}"]
    # Many tasks read none.
    if status.tokens or status.tokens_per_s:
        lines.append(f"tokens   {tokens} · {_rate(status, status.tokens_per_s, status.mean_tokens_per_s)}{truncated}")
    lines.append(
        "shards   " + " · ".join(f"{states.get(name, 0):,} {name}" for name in ("waiting", "running", "done", "failed"))
    )
    if status.state not in _OVER:
        lines += [f"end      {_end(status)}", *_deadline(status)]
    if status.times.elapsed_s:
        lines.append(f"time     {status.times.describe()}")
    lines += _money_lines(status)
    if status.staff is not None and status.staff.now is not None and status.state not in _OVER:
        now = status.staff.now
        lines += [f"wanted   {count(now.wanted, 'worker')}", *(f"         {part}" for part in now.reason.split("; "))]
    if status.bound is not None and status.state == "running":
        lines.append(f"speed    {_bound(status.bound)}")
    lines += _edition_lines(status)
    if status.view_age_s is not None:
        lines.append(f"seen     {duration(status.view_age_s)} ago, by the workers")
    return lines


def _edition_lines(status: Status) -> list[str]:
    """Which edition is read, whether the next is being made, and how the refreshes go."""
    seen = status.edition
    if seen is None:
        return []

    def ago(at: float) -> str:
        return f"{duration(max(0.0, status.at - at))} ago"

    made = "" if seen.made_at is None else f", made {ago(seen.made_at)}"
    fresh = "" if seen.fresh_at is None else f", as the source was {ago(seen.fresh_at)}"
    lines = [f"edition  {seen.edition}{made}{fresh}"]
    if seen.next:
        what = "is being made" if seen.next_state in ("running", "finishing") else f"was begun and is {seen.next_state}"
        lines.append(f"next     edition {seen.next} {what}, {100 * seen.next_share:.1f} % done")
    if seen.behind_since is not None:
        lines.append(f"behind   the source has been newer for {duration(seen.behind_s(status.at))}")
    if seen.failures:
        last = "" if seen.failed_at is None else f", the last {ago(seen.failed_at)}"
        lines.append(f"refresh  {count(seen.failures, 'failure')} in a row{last}")
    return lines


def _rate(status: Status, now: float, mean: float) -> str:
    at_present = "" if status.state in _OVER else f"{now:,.0f}/s now, "
    return f"{at_present}{mean:,.0f}/s on average"


def _end(status: Status) -> str:
    if status.eta_s is None or status.eta_low_s is None or status.eta_high_s is None:
        return "unknown: no worker has a pace yet"
    when = time.strftime("%H:%M", time.localtime(status.at + status.eta_s))
    return f"in {duration(status.eta_s)} ({duration(status.eta_low_s)} to {duration(status.eta_high_s)}), {when}"


def _deadline(status: Status) -> list[str]:
    if status.deadline_at is None:
        return []
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.deadline_at))
    # Without an expected end, the time that has passed tells whether it is missed already.
    past = status.past_deadline_s if status.past_deadline_s is not None else status.at - status.deadline_at
    if past > 0:
        return [f"deadline {when} · past the deadline by {duration(past)}"]
    return [f"deadline {when}" + (f" · {duration(-past)} to spare" if status.past_deadline_s is not None else "")]


def _money_lines(status: Status) -> list[str]:
    if status.usd is None:
        return [] if status.budget_usd is None else [f"cost     unknown · budget {_usd(status.budget_usd)}"]
    end = f" · {_usd(status.usd_at_end)} at the end" if status.usd_at_end is not None and status.share < 1 else ""
    budget = ""
    if status.budget_usd is not None:
        over = max(status.usd, status.usd_at_end or 0.0) - status.budget_usd
        budget = f" · budget {_usd(status.budget_usd)}" + (f", over by {_usd(over)}" if over > 0 else "")
    return [f"cost     {_usd(status.usd)} so far{end}{budget}"]


def _usd(usd: float) -> str:
    return f"${usd:,.4f}" if usd < 1 else f"${usd:,.2f}"


def _bound(bound: dict[str, Any]) -> str:
    what = {"device": "the device", "sink": "the sink"}.get(bound["by"], bound["by"])
    shares = [f"{100 * bound[name]:.0f} %" for name in ("device_busy", "waiting_for_input", "waiting_for_sink")]
    return "bounded by {}; device {} busy, {} without input, {} writing".format(what, *shares)


def _errors(status: Status) -> list[str]:
    lines = [f"errors   {status.errors:,}" + (" · reasons not recorded" if status.reasons is None else "")]
    for record in (status.reasons or [])[:_REASONS]:
        place = f"{record.get('file', '')}, shard {record.get('shard', '?')}, line {record.get('line_in_shard', '?')}"
        key = ",".join(map(str, record["id"].values())) if isinstance(record.get("id"), dict) else ""
        lines.append(f"  {record['count']:>7,}  {record['reason']}")
        lines.append(f"           {place}{f', id {key}' if key else ''}")
    return lines


def _reports(status: Status, most: int) -> list[str]:
    """What long items under way reported last."""
    said = status.said()
    return [f"shard    {shard} at {said[shard]}" for shard in sorted(said)[:most]]


def _workers(status: Status, most: int) -> list[str]:
    shown = sorted((w for w in status.workers if w["live"] or w["state"] not in ("done", "stopped")), key=_goodness)
    if not shown or status.state == "complete":
        return []
    live = sum(w["live"] for w in shown)
    lost = f" · {len(shown) - live:,} failed or lost" if live < len(shown) else ""
    rest = f" · the worst {most} of {len(shown):,}" if len(shown) > most else ""
    lines = [f"workers  {live:,} live{lost}{rest}"]
    if most:
        lines.append(_ROW.format("worker", "device", "state", "rows/s", "memory", "use", "shard", "beat"))
    for w in shown[:most]:
        memory = w.get("device_bytes") or w["rss_bytes"]
        use = "" if w.get("use") is None else f"{100 * w['use']:.0f}%"
        state = w["state"] if w["live"] or w["state"] == "failed" else "lost"
        device = f"{w['device']} {w['cpus']}" if w.get("cpus") else w["device"]
        held = ",".join(w["open"])
        lines.append(
            _ROW.format(
                cut_left(w["id"], 18),
                *(cut(each, width) for each, width in ((device, 14), (state, 8))),
                f"{w['rows_per_s']:,.0f}" if w["live"] else "",
                f"{memory / 2**20:,.0f}M",
                use,
                cut(held, 10),
                f"{max(0.0, w['beat_age_s']):.0f}s",
            ).rstrip()
        )
    return lines


_ROW = "  {:<18} {:<14} {:<8} {:>6} {:>7} {:>4} {:<10} {:>4}"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def cut_left(text: str, width: int) -> str:
    """The end of a name, which tells workers of one host apart."""
    return text if len(text) <= width else "…" + text[1 - width :]


def _goodness(worker: dict[str, Any]) -> tuple[bool, bool, float, float, str]:
    """The lost first, then those that do nothing, then the slowest."""
    return worker["live"], bool(worker["open"]), worker["rows_per_s"], -worker["beat_age_s"], str(worker["id"])


def shortened(number: float) -> str:
    """A large number in short form.

    >>> shortened(950), shortened(12_345), shortened(3_200_000_000)
    ('950', '12.3 k', '3.2 G')
    """
    thousands = min(4, max(0, (len(str(int(number))) - 1) // 3))
    return f"{number:,.0f}" if not thousands else f"{number / 1000**thousands:,.1f} {' kMGT'[thousands]}"


def _shown_steps(status: Status) -> list[Step]:
    """Every run is swept; only trouble with it is worth a line."""
    return [step for step in status.steps if (step.step, step.state) != ("sweep", "done")]


def _render_step(step: Step) -> Text:
    said = describe(step.result.get("pressure") or {})
    by = f" by {step.worker}" if step.state == "taken" else ""
    return Text(f"{step.step}: {step.state}{by}" + (f", {said}" if said else ""))


def _render_end(status: Status) -> list[Text]:
    """Who stopped the run, or why it failed."""
    if status.cause and status.state == "stopped":
        return [Text(f"stopped by {status.by}: {status.cause}"), Text(status.hint)]
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
