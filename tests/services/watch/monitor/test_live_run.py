"""Real runs under a monitor: their alerts survive a kill, and a real Prometheus gets data for all that we ship."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.alert_targets import TargetServer, target_server
from tests.support.cli import command
from tests.support.debian import require
from tests.support.libraries import needed
from tests.support.monitored import MonitorProcess, monitor
from tests.support.prometheus import SHIPPED, prometheus
from tests.support.waiting import wait_for

needed("httpx2")
needed("fastapi")
needed("prometheus_client")
pytestmark = pytest.mark.services

SPEC = """
[work]
source = "{source}"
text = "text"
id = "id"
task = "shardmill.testing:FakeTask"
params = {{delay_s = 0.2}}

[execution]
device = "cpu"
workers = 1
batch_rows = 8
shard_bytes = 2000
price_in = 0.1
deadline = "1h"
budget_usd = 5
"""
ALERTS = """
[rules]
error_rate = "0"

[targets.team]
kind = "webhook"
url = "{url}"
"""


def refresh_a_run(folder: Path) -> None:
    source = folder / "grown.jsonl"
    source.write_text('{"id": "0", "text": "a word"}\n')
    (folder / "grown.toml").write_text(SPEC.format(source=source))
    subprocess.run(command("run", "--spec", folder / "grown.toml", "--out", folder / "runs/grown"), check=True)
    with source.open("a") as file:
        file.write('{"id": "1", "text": "another"}\n')
    subprocess.run(command("refresh", folder / "runs/grown"), check=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that goes on for longer than the tests, with an error in its first shard, and one that was refreshed."""
    folder = tmp_path_factory.mktemp("live")
    refresh_a_run(folder)
    texts = ["!nan", *(f"some words of item {i}" for i in range(8000))]
    rows = (json.dumps({"id": str(i), "text": text}) for i, text in enumerate(texts))
    (folder / "items.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (folder / "spec.toml").write_text(SPEC.format(source=folder / "items.jsonl"))
    words = command("run", "--spec", folder / "spec.toml", "--out", folder / "runs/live")
    with open(folder / "said", "w") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said)
    try:
        wait_for(lambda: (folder / "runs/live/plan.json").exists() or process.poll() is not None)
        assert process.poll() is None, (folder / "said").read_text()
        yield folder / "runs"
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetServer]:
    with target_server("webhook", tmp_path_factory.mktemp("webhook") / "got") as server:
        yield server


@pytest.fixture(scope="module")
def alerts(runs: Path, webhook: TargetServer) -> Path:
    path = runs.parent / "alerts.toml"
    path.write_text(ALERTS.format(url=webhook.url("silent")))
    return path


def look_at(served: MonitorProcess) -> None:
    """A run that somebody looks at is read more often."""
    asked = urllib.request.Request(f"{served.base}api/runs/live", headers=served.bearer)
    with urllib.request.urlopen(asked) as answer:
        answer.read()


def read_outbox(alerts: Path) -> list[Any]:
    return list(json.loads((alerts.parent / "alerts.state.json").read_text())["outbox"])


@pytest.fixture(scope="module")
def killed(runs: Path, alerts: Path, webhook: TargetServer) -> list[Any]:
    """What was still in the book of a monitor that was killed while it sent its first message."""
    with monitor(runs, "--alerts", alerts) as process:
        wait_for(lambda: look_at(process) or webhook.got())
        process.process.kill()
        process.process.wait()
    left = read_outbox(alerts)
    webhook.mend()
    return left


@pytest.fixture(scope="module")
def served(runs: Path, alerts: Path, killed: list[Any]) -> Iterator[MonitorProcess]:
    """The next monitor."""
    with monitor(runs, "--alerts", alerts) as process:
        yield process


def test_a_message_whose_monitor_is_killed_is_sent_again_under_its_id(
    webhook: TargetServer, alerts: Path, killed: list[Any], served: MonitorProcess
) -> None:
    assert [message["event"] for message in killed] == ["raised"]
    wait_for(lambda: not read_outbox(alerts))
    told = [message["text"] for message in webhook.got()]
    assert len(told) == 2
    assert told[0].partition("\n")[0] == told[1].partition("\n")[0]
    assert "live: error_rate: 1 of" in told[0]
    assert [re.findall(r"id (\w+)$", text) for text in told] == [[killed[0]["alert"]["id"]]] * 2
    assert "#run=live|open>" in told[0]


def test_what_is_shipped_is_sound_to_promtool(tmp_path: Path) -> None:
    promtool = require("promtool", "prometheus")
    for name in ("prometheus.yml", "rules.yml"):
        (tmp_path / name).write_text((SHIPPED / name).read_text())
    (tmp_path / "token").write_text("a token")
    done = subprocess.run([promtool, "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def expressions_of_rules(groups: list[dict[str, Any]]) -> Iterator[str]:
    """The expressions of all rules. Of an alert, which is silent now, the parts that it compares."""
    for rule in (rule for group in groups for rule in group["rules"]):
        if rule["type"] == "recording":
            yield rule["query"]
            continue
        for part in re.split(r" and on \(run\) ", rule["query"]):
            compared = re.fullmatch(r"(.+) (==|<|>=?) [\d.]+", part)
            assert compared, part
            yield compared[1]


def expressions_of_dashboard() -> Iterator[str]:
    board = json.loads((SHIPPED / "grafana-dashboard.json").read_text())
    (variable,) = (each for each in board["templating"]["list"] if each["type"] == "query")
    listed = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert listed
    yield f"group by ({listed[2]}) ({listed[1]})"
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$run", "live").replace("$__rate_interval", "1m")


def test_every_expression_returns_data_from_a_real_prometheus(served: MonitorProcess, tmp_path: Path) -> None:
    with prometheus(tmp_path, served.port, served.token) as server:
        groups = server.ask("rules")["groups"]
        asked = {*expressions_of_rules(groups), *expressions_of_dashboard()}
        assert len(asked) > 30

        def find_silent() -> set[str]:
            silent = {each for each in asked if not server.query(each)}
            asked.intersection_update(silent)
            return silent

        wait_for(lambda: look_at(served) or not find_silent())
        assert server.query('shardmill_run_state{run="live",state="running"}')[0]["value"][1] == "1"
        firing = server.query('ALERTS{alertstate="firing"}')
        assert [alert["metric"]["alertname"] for alert in firing] == []
