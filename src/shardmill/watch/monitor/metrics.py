"""What Prometheus scrapes: a family of samples per fact, made anew from what the watcher last saw.

Labels are keys of runs, states of a fixed list and names of the file of the alerts: never data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardmill._version import __version__
from shardmill.core.extras import missing_package
from shardmill.run.status.edition import EditionState
from shardmill.run.status.state import Status
from shardmill.watch.monitor.backlog import Backlog
from shardmill.watch.monitor.description import is_lost
from shardmill.watch.monitor.reading import RunSeen

if TYPE_CHECKING:
    from prometheus_client import Metric

    from shardmill.watch.alerts import AlertDesk

RUN_STATES = ("planned", "running", "finishing", "complete", "stopped", "failed")
SHARD_STATES = ("waiting", "running", "done", "failed")
# Of more runs, those that are wanted or were seen last.
_MOST_RUNS = 500

# The values of a fact by the values of its label; None if there is no such value now.
Values = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class RunFact:
    """One metric of a run: its name without `shardmill_run_`, its meaning, its one label besides `run`, its values."""

    name: str
    help: str
    values: Callable[[Status], Values]
    label: str = ""

    @property
    def full_name(self) -> str:
        return f"shardmill_run_{self.name}"


def _one(value: Callable[[Status], float | None]) -> Callable[[Status], Values]:
    return lambda status: {"": value(status)}


def _live(status: Status) -> list[dict[str, Any]]:
    return [worker for worker in status.workers if worker["live"]]


def _sum(status: Status, name: str) -> float:
    return float(sum(worker[name] for worker in _live(status)))


def _workers(status: Status) -> Values:
    live, lost = len(_live(status)), sum(is_lost(worker) for worker in status.workers)
    failed = sum(1 for worker in status.workers if not worker["live"] and worker["state"] == "failed")
    return {"live": live, "lost": lost, "failed": failed}


def _mean_use(status: Status) -> float | None:
    uses = [float(worker["use"]) for worker in _live(status) if worker.get("use") is not None]
    return sum(uses) / len(uses) if uses else None


def _remaining(status: Status) -> Values:
    if status.state != "running":
        return {}
    return {"likely": status.eta_s, "low": status.eta_low_s, "high": status.eta_high_s}


def _last_sign(status: Status) -> float | None:
    return max((float(worker["at"]) for worker in status.workers), default=None)


def _edition(value: Callable[[EditionState, float], float | None]) -> Callable[[Status], Values]:
    """A fact of a run that was ever refreshed."""
    return lambda status: {"": None if status.edition is None else value(status.edition, status.at)}


RUN_FACTS = (
    RunFact("state", "1 for the state that the run is in.", lambda s: {n: s.state == n for n in RUN_STATES}, "state"),
    RunFact("wanted", "1 if the run is wanted: workers are to do what is left.", _one(lambda s: s.wanted)),
    RunFact("shards", "Shards by state.", lambda s: {n: (s.shard_states or {}).get(n) for n in SHARD_STATES}, "state"),
    RunFact("progress_ratio", "Share of the source's bytes that is done, from 0 to 1.", _one(lambda s: s.share)),
    RunFact("rows_total", "Rows of committed shards.", _one(lambda s: s.rows_committed)),
    RunFact("failed_rows_total", "Rows of committed shards that failed.", _one(lambda s: s.errors)),
    RunFact(
        "tokens_total",
        "Tokens of committed shards, read and made.",
        lambda s: {"read": s.tokens, "made": s.tokens_out},
        "direction",
    ),
    RunFact("elapsed_seconds", "How long the run took, by part.", lambda s: s.times.by_part(), "part"),
    RunFact("device_seconds_total", "Time of devices in committed shards.", _one(lambda s: s.device_s)),
    RunFact("rows_per_second", "Rows per second of the living workers now.", _one(lambda s: _sum(s, "rows_per_s"))),
    RunFact("tokens_per_second", "Tokens per second of the living workers.", _one(lambda s: _sum(s, "tokens_per_s"))),
    RunFact("mean_rows_per_second", "Rows per second over the time worked.", _one(lambda s: s.mean_rows_per_s)),
    RunFact("remaining_seconds", "Expected time until the last shard is committed.", _remaining, "estimate"),
    RunFact("deadline_timestamp_seconds", "The deadline of the run.", _one(lambda s: s.deadline_at)),
    RunFact("cost_dollars", "What the run has cost.", _one(lambda s: s.usd)),
    RunFact("expected_cost_dollars", "What the run is expected to cost in all.", _one(lambda s: s.usd_at_end)),
    RunFact("budget_dollars", "The budget of the run.", _one(lambda s: s.budget_usd)),
    RunFact("workers", "Workers that live, fell silent, or failed.", _workers, "state"),
    RunFact("worker_memory_bytes", "Memory of the living workers.", _one(lambda s: _sum(s, "rss_bytes"))),
    RunFact("device_use_ratio", "Mean use of the devices of the living workers, from 0 to 1.", _one(_mean_use)),
    RunFact("edition", "The edition of a refreshed run that is read.", _edition(lambda e, _: e.edition)),
    RunFact("edition_timestamp_seconds", "When the edition that is read was made.", _edition(lambda e, _: e.made_at)),
    RunFact(
        "edition_fresh_timestamp_seconds",
        "When the edition was last known to be what the source holds.",
        _edition(lambda e, _: e.fresh_at),
    ),
    RunFact(
        "edition_lag_seconds",
        "How long the source has been known to be newer than the edition.",
        _edition(lambda e, now: e.behind_s(now)),
    ),
    RunFact("refresh_failures", "Refreshes that failed in a row.", _edition(lambda e, _: e.failures)),
    RunFact("last_heartbeat_timestamp_seconds", "The last sign of life of any worker.", _one(_last_sign)),
)
# What is said of the monitor itself, by full name.
OWN_FACTS = {
    "shardmill_monitor_info": "The version of the monitor.",
    "shardmill_runs": "Runs that the monitor watches; of more than 500, the others have no metrics.",
    "shardmill_run_readable": "1 if the run could be read the last time; without that it has no other metrics.",
    "shardmill_run_read_timestamp_seconds": "When the run was last read.",
    "shardmill_backlog_shards": "Shards of wanted runs that are not committed, held ones included.",
    "shardmill_backlog_held_shards": "Those of them that a worker holds.",
    "shardmill_backlog_runs": "Wanted runs with such shards.",
    "shardmill_alerts_open": "Alerts that hold now.",
    "shardmill_alert_messages_waiting": "Messages that a target has not taken yet.",
    "shardmill_alert_target_failing": "1 if a target did not take the last message.",
}


def write_metrics(
    seen: Iterable[RunSeen], backlog: Backlog | None, desk: AlertDesk | None, accept: str
) -> tuple[bytes, str]:
    """The text of a scrape and its type, in the format that the scraper accepts."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
    except ImportError as error:
        raise missing_package("prometheus-client") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected([*_collect(list(seen), backlog), *_collect_alerts(desk)]))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> list[Metric]:
        return self._families


def _collect(seen: list[RunSeen], backlog: Backlog | None) -> Iterator[Metric]:
    here = [run for run in seen if not run.gone]
    shown = sorted(here, key=_importance, reverse=True)[:_MOST_RUNS]
    yield _own("shardmill_monitor_info", ["version"], {(__version__,): 1})
    yield _own("shardmill_runs", [], {(): len(here)})
    yield _own("shardmill_run_readable", ["run"], {(run.key,): not run.trouble for run in shown})
    read = {(run.key,): run.read_at for run in shown if run.read_at is not None}
    yield _own("shardmill_run_read_timestamp_seconds", ["run"], read)
    if backlog is not None:
        yield _own("shardmill_backlog_shards", [], {(): backlog.unfinished})
        yield _own("shardmill_backlog_held_shards", [], {(): backlog.held})
        yield _own("shardmill_backlog_runs", [], {(): backlog.runs})
    sound = [(run.key, run.status) for run in shown if run.status is not None and not run.trouble]
    for fact in RUN_FACTS:
        labels = ["run", *([fact.label] if fact.label else [])]
        family = _family(fact.full_name, fact.help, labels)
        for key, status in sound:
            for label, value in fact.values(status).items():
                if value is not None:
                    family.add_metric([key, *([label] if fact.label else [])], float(value))
        yield family


def _collect_alerts(desk: AlertDesk | None) -> Iterator[Metric]:
    if desk is None:
        return
    yield _own("shardmill_alerts_open", ["rule"], {(rule,): count for rule, count in desk.count_open().items()})
    waiting, failing = desk.count_waiting(), {each.target for each in desk.troubles()}
    yield _own("shardmill_alert_messages_waiting", ["target"], {(name,): count for name, count in waiting.items()})
    yield _own("shardmill_alert_target_failing", ["target"], {(name,): name in failing for name in waiting})


def _own(name: str, labels: list[str], values: Mapping[Any, float]) -> Any:
    family = _family(name, OWN_FACTS[name], labels)
    for key, value in values.items():
        family.add_metric(list(key), float(value))
    return family


def _family(name: str, text: str, labels: list[str]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(name, text, labels=labels)


def _importance(run: RunSeen) -> tuple[bool, float]:
    status = run.status
    return status is not None and status.wanted, (_last_sign(status) or 0.0) if status is not None else 0.0
