"""What machines read of the monitor: metrics that follow the conventions, and a backlog that is never a wrong 0."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import StoreError
from shardmill.ledger import Ledger
from tests.support.ledgers import a_plan, make_commit
from tests.support.statuses import NOW, a_status
from tests.support.waiting import wait_for

pytest.importorskip("httpx2")
pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")

import httpx2
from prometheus_client import parser

from shardmill.plan.sizing.staff import Staff
from shardmill.watch.alerts import AlertDesk
from shardmill.watch.alerts.rules import SeenRun
from shardmill.watch.monitor.access import Access
from shardmill.watch.monitor.app import make_app
from shardmill.watch.monitor.backlog import count_backlog
from shardmill.watch.monitor.machines import machine_paths
from shardmill.watch.monitor.metrics import OWN_FACTS, RUN_FACTS, write_metrics
from shardmill.watch.monitor.reading import RunReader, RunSeen
from shardmill.watch.monitor.watcher import Watcher

TOKEN = "a token of the tests"
Ask = Callable[..., Any]


def make_run(folder: Path, name: str, *, done: int = 0, held: int = 0) -> Ledger:
    """A run of three shards, some of them committed or held."""
    ledger = Ledger(folder / name)
    plan = ledger.create(a_plan())
    ledger.put_execution({})
    ledger.state.want("me")
    for shard in range(done):
        ledger.commits.add(make_commit(shard, plan=plan.id, generation=plan.generation))
    for _ in range(held):
        assert ledger.claim("w", 3, lease_s=60) is not None
    return ledger


def ask(
    watcher: Watcher, path: str, *, token: str = TOKEN, after_s: float = 0.0, accept: str = "", desk: Any = None
) -> Any:
    """One answer of an application over a watcher that has read its runs."""
    watcher.start()

    def clock() -> float:
        return max(run.read_at or 0.0 for run in watcher.runs()) + after_s

    async def get() -> Any:
        paths = machine_paths(watcher, desk, clock)
        app = make_app(watcher, Access(token=TOKEN), routers=[paths], desk=desk)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.get(path, headers={"authorization": f"Bearer {token}", "accept": accept})

    try:
        return asyncio.run(get())
    finally:
        watcher.close()


def test_the_backlog_counts_what_is_wanted_and_not_committed(tmp_path: Path) -> None:
    make_run(tmp_path, "a", done=1, held=1)
    make_run(tmp_path, "b")
    make_run(tmp_path, "complete", done=3).state.finish("me")
    make_run(tmp_path, "not-merged", done=3)
    make_run(tmp_path, "stopped", done=1, held=1).state.stop("me")
    make_run(tmp_path, "failed").state.fail("me", "it broke")
    assert ask(Watcher(tmp_path), "/api/backlog").json() == {"unfinished": 6, "held": 1, "runs": 3}
    assert ask(Watcher(tmp_path), "/api/backlog?run=a").json() == {"unfinished": 2, "held": 1, "runs": 1}
    assert ask(Watcher(tmp_path), "/api/backlog?run=stopped").json() == {"unfinished": 0, "held": 0, "runs": 0}
    assert ask(Watcher(tmp_path), "/api/backlog?run=c").status_code == 404
    assert ask(Watcher(tmp_path), "/api/backlog", token="another token of nobody").status_code == 401


def test_a_backlog_that_cannot_be_read_is_no_zero(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    (make_run(tmp_path, "b").store.path("plan.json")).write_text("{")  # type: ignore[attr-defined]
    said = ask(Watcher(tmp_path), "/api/backlog")
    assert said.status_code == 503
    assert "b could not be read" in said.json()["detail"]
    assert ask(Watcher(tmp_path), "/api/backlog?run=b").status_code == 503
    assert ask(Watcher(tmp_path), "/api/backlog?run=a").json()["unfinished"] == 3
    assert "shardmill_backlog" not in ask(Watcher(tmp_path), "/metrics").text


def test_an_old_reading_is_no_backlog(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    assert ask(Watcher(tmp_path), "/api/backlog", after_s=119).status_code == 200
    assert ask(Watcher(tmp_path), "/api/backlog", after_s=121).status_code == 503


def test_what_goes_wrong_with_alerts_is_said_on_the_page(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    path = tmp_path / "alerts.toml"
    path.write_text('[rules]\nerror_rate = "0"\n[targets."<b>"]\nkind = "command"\ncommand = ["false"]\n')
    desk = AlertDesk(path, "http://127.0.0.1", page=lambda run: f"#run={run}", clock=lambda: NOW)
    try:
        desk.look("a", SeenRun(a_status(rows=50, errors=7, workers=[])))
        wait_for(desk.troubles)
        said = ask(Watcher(tmp_path), "/api/runs", desk=desk).json()
    finally:
        desk.close()
    assert said["remarks"] == ["Alerts do not reach <b>: false ended with status 1 (); 1 wait and are sent again."]
    (alert,) = said["alerts"]
    assert (alert["run"], alert["rule"], alert["raised_at"]) == ("a", "error_rate", NOW)
    assert alert["text"] == "7 of 50 rows failed (14.0%)"


def test_without_a_file_there_are_no_alerts(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    assert ask(Watcher(tmp_path), "/api/runs").json()["alerts"] == []
    assert ask(Watcher(tmp_path), "/api/alerts").json() == {"watching": False, "open": [], "failing": []}


def test_a_run_whose_budget_ends_it_has_no_backlog_but_what_is_held(tmp_path: Path) -> None:
    ledger = make_run(tmp_path, "a", held=1)
    ledger.put_execution({"budget_usd": 5.0, "acts": True})
    reader = RunReader("a", str(tmp_path / "a"))
    ledger.staff.decide("w", 60.0, lambda before: Staff(2, "so", 1.0))
    seen = reader.read()
    assert count_backlog([seen], seen.read_at or 0.0).unfinished == 3
    ledger.staff.decide("w", 60.0, lambda before: Staff(0, "it is spent", 2.0, ends=True))
    seen = reader.read()
    assert count_backlog([seen], seen.read_at or 0.0).unfinished == 1


def test_a_run_that_was_deleted_is_no_trouble() -> None:
    gone = RunSeen("a", "/runs/a", trouble="it was deleted", gone=True)
    assert count_backlog([gone], NOW).unfinished == 0
    with pytest.raises(StoreError):
        count_backlog([replace(gone, gone=False)], NOW)


def seen(name: str, **changes: Any) -> RunSeen:
    return RunSeen(name, f"/runs/{name}", status=a_status(wanted=True, rows_committed=39_000, **changes), read_at=NOW)


def samples(text: str) -> dict[str, float]:
    return {
        f"{s.name}{sorted(s.labels.items())}": s.value
        for family in parser.text_string_to_metric_families(text)
        for s in family.samples
    }


def workers(*states: tuple[bool, str]) -> list[dict[str, Any]]:
    numbers = {"at": NOW, "rows_per_s": 5.0, "tokens_per_s": 7.0, "rss_bytes": 100, "use": 0.5}
    return [{"id": f"w{i}", "live": live, "state": state, **numbers} for i, (live, state) in enumerate(states)]


def test_metrics_say_what_the_status_says() -> None:
    told = workers((True, "working"), (True, "working"), (False, "working"), (False, "failed"), (False, "done"))
    run = seen("a", workers=told, deadline_at=NOW + 60)
    found = samples(write_metrics([run], count_backlog([run], NOW), None, "")[0].decode())
    label = "[('run', 'a')]"
    assert found[f"shardmill_run_rows_total{label}"] == 39_000
    assert found[f"shardmill_run_rows_per_second{label}"] == 10
    assert found[f"shardmill_run_deadline_timestamp_seconds{label}"] == NOW + 60
    assert found["shardmill_run_workers[('run', 'a'), ('state', 'lost')]"] == 1
    assert found["shardmill_run_workers[('run', 'a'), ('state', 'failed')]"] == 1
    assert found["shardmill_run_state[('run', 'a'), ('state', 'running')]"] == 1
    assert found["shardmill_run_remaining_seconds[('estimate', 'high'), ('run', 'a')]"] == 5600
    assert found["shardmill_backlog_shards[]"] == 60_000


def test_a_run_that_cannot_be_read_has_no_old_metrics() -> None:
    run = replace(seen("a", workers=[]), trouble="the store is away")
    found = samples(write_metrics([run], None, None, "")[0].decode())
    assert found["shardmill_run_readable[('run', 'a')]"] == 0
    assert not [name for name in found if "rows_total" in name or "backlog" in name]


def test_names_and_labels_follow_the_conventions() -> None:
    """Base units, _total for counters alone, a help text each, and labels with no text of the data."""
    hostile = seen('x"}\n<b>', workers=workers((True, 'a"b\n')), cause="no", reasons=[{"reason": "secret", "count": 1}])
    text = write_metrics([hostile], None, None, "")[0].decode()
    assert "secret" not in text
    assert "<b>" not in text
    families = list(parser.text_string_to_metric_families(text))
    assert families
    for family in families:
        assert re.fullmatch(r"shardmill(_[a-z]+)+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|minutes|hours|percent|kb|mb|gb)\b", family.name)
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            assert set(sample.labels) <= {"run", "state", "direction", "estimate", "part", "version"}


def test_metrics_come_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    make_run(tmp_path, "a")
    plain = ask(Watcher(tmp_path), "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    asked = "application/openmetrics-text; version=1.0.0"
    opened = ask(Watcher(tmp_path), "/metrics", accept=asked)
    assert opened.headers["content-type"].startswith(asked)
    assert opened.text.endswith("# EOF\n")


def test_the_page_lists_every_metric() -> None:
    page = (Path(__file__).parents[4] / "docs/monitor.md").read_text()
    rows = dict(re.findall(r"^\| `(shardmill_\w+)(?:\{[\w,]+\})?` \| (.+) \|$", page, re.MULTILINE))
    assert rows == {fact.full_name: fact.help for fact in RUN_FACTS} | OWN_FACTS
