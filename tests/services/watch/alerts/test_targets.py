"""Alerts reach a real webhook, a real command and a real mail server, at least once, whatever breaks in between."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from shardmill.core.errors import UsageError
from shardmill.watch.alerts import AlertDesk
from shardmill.watch.alerts.rules import SeenRun
from tests.support.alert_targets import PASSWORD, USER, TargetServer, make_certificate, read_lines, target_server
from tests.support.libraries import needed
from tests.support.statuses import a_status
from tests.support.waiting import wait_for

needed("httpx2")
needed("aiosmtpd")
needed("cryptography")

pytestmark = pytest.mark.services


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[TargetServer]:
    with target_server("webhook", tmp_path / "webhook") as server:
        yield server


def write_file(folder: Path, **targets: str) -> Path:
    tables = "".join(f"[targets.{name}]\n{body}\n" for name, body in targets.items())
    path = folder / "alerts.toml"
    path.write_text(f'[rules]\nfinished = true\nstalled = "10min"\n{tables}')
    return path


def slack(url: str) -> str:
    return f'kind = "webhook"\nurl = "{url}"'


def open_desk(path: Path) -> AlertDesk:
    return AlertDesk(path, "http://127.0.0.1:9/", page=lambda run: f"/runs/{quote(run)}", pause_s=0.01)


def is_empty(folder: Path) -> bool:
    return not json.loads((folder / "alerts.state.json").read_text())["outbox"]


def seen(**changes: Any) -> SeenRun:
    return SeenRun(a_status(generation="g", wanted=True, workers=[], **changes))


COMPLETE = seen(state="complete", rows=1000)
RUNNING = seen()


def test_a_webhook_gets_slacks_format_with_id_and_link_and_an_end(tmp_path: Path, webhook: TargetServer) -> None:
    desk = open_desk(write_file(tmp_path, team=slack(webhook.url("ok"))))
    desk.look("<!channel>&co", RUNNING)
    desk.look("<!channel>&co", COMPLETE)
    desk.look("<!channel>&co", RUNNING)
    wait_for(lambda: len(webhook.got()) == 2 and is_empty(tmp_path))
    desk.close()
    raised, cleared = (message["text"] for message in webhook.got())
    assert raised.startswith(":bell: &lt;!channel&gt;&amp;co: finished: complete: 1,000 rows, 12 errors\n")
    assert "<http://127.0.0.1:9/runs/" in raised
    assert cleared.startswith(":white_check_mark: cleared: ")
    ids = [re.findall(r"id (\w{16})$", text) for text in (raised, cleared)]
    assert ids[0] == ids[1] != []


def test_a_command_reads_the_alert_and_is_no_shell(tmp_path: Path) -> None:
    got = tmp_path / "got.jsonl"
    program = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
    words = json.dumps([sys.executable, "-c", program, str(got), "$(touch bad)"])
    desk = open_desk(write_file(tmp_path, pager=f'kind = "command"\ncommand = {words}'))
    desk.look("a", COMPLETE)
    (told,) = wait_for(lambda: read_lines(got))
    desk.close()
    assert {name: told[name] for name in ("run", "rule", "event", "link")} == {
        "run": "a",
        "rule": "finished",
        "event": "raised",
        "link": "http://127.0.0.1:9/runs/a",
    }
    assert not (tmp_path / "bad").exists()


def test_mail_goes_by_starttls_with_the_password_of_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mail"
    folder.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(make_certificate(folder)))
    monkeypatch.setenv("MAIL_PASSWORD", PASSWORD)
    with target_server("mail", folder) as server:
        mail = (
            f'kind = "email"\nto = ["ann@example.org", "bob@example.org"]\nsender = "runs@example.org"\n'
            f'host = "localhost"\nport = {server.port}\nuser = "{USER}"\npassword_variable = "MAIL_PASSWORD"'
        )
        path = write_file(tmp_path, mail=mail)
        assert PASSWORD not in path.read_text()
        desk = open_desk(path)
        desk.look("a\nBcc: eve@example.org", COMPLETE)
        (got,) = wait_for(server.got)
        desk.close()
    assert got["to"] == ["ann@example.org", "bob@example.org"]
    assert "\nBcc" not in got["text"]
    assert re.search(r"Message-ID: <\w{16}\.raised@shardmill.invalid>", got["text"])
    assert PASSWORD not in (tmp_path / "alerts.state.json").read_text()


def test_a_broken_target_is_tried_again_and_stops_no_other(
    tmp_path: Path, webhook: TargetServer, capsys: pytest.CaptureFixture[str]
) -> None:
    mail = 'kind = "email"\nto = "ann@example.org"\nsender = "runs@example.org"\nhost = "127.0.0.1"\nport = 1'
    false = 'kind = "command"\ncommand = ["false"]'
    path = write_file(tmp_path, team=slack(webhook.url("ok")), down=slack(webhook.url("down")), mail=mail, pager=false)
    desk = open_desk(path)
    desk.look("a", COMPLETE)
    wait_for(webhook.got)
    troubles = wait_for(lambda: desk.troubles() if len(desk.troubles()) == 3 else None)
    assert [(each.target, each.waiting) for each in troubles] == [("down", 1), ("mail", 1), ("pager", 1)]
    assert "status 503" in troubles[0].message
    assert "127.0.0.1 does not take the mail (ConnectionRefusedError)" in troubles[1].message
    assert "false ended with status 1" in troubles[2].message
    assert desk.describe_troubles()[0].startswith("Alerts do not reach down: the webhook refused it with status 503")
    webhook.mend()
    wait_for(lambda: len(webhook.got()) == 2)
    wait_for(lambda: "down" not in [each.target for each in desk.troubles()])
    desk.close()
    said = capsys.readouterr().err
    assert said.count("alerts: down: the webhook refused it with status 503") == 1
    assert "alerts: down takes messages again." in said


def test_a_secret_address_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEAM_WEBHOOK", "http://127.0.0.1:1/T0/secret")
    desk = open_desk(write_file(tmp_path, team='kind = "webhook"\nurl_variable = "TEAM_WEBHOOK"'))
    desk.look("a", COMPLETE)
    troubles = wait_for(desk.troubles)
    desk.close()
    assert "secret" not in troubles[0].message + capsys.readouterr().err + (tmp_path / "alerts.state.json").read_text()


def test_what_was_not_sent_is_sent_by_the_next_monitor_and_nothing_twice(tmp_path: Path, webhook: TargetServer) -> None:
    path = write_file(tmp_path, ok=slack(webhook.url("ok")), down=slack(webhook.url("down")))
    desk = open_desk(path)
    desk.look("a", COMPLETE)
    wait_for(webhook.got)
    wait_for(desk.troubles)
    desk.close()
    webhook.mend()
    desk = open_desk(path)
    desk.look("a", COMPLETE)
    wait_for(lambda: is_empty(tmp_path))
    desk.keep_only(["a"])
    desk.close()
    assert [got["path"] for got in webhook.got()] == ["/ok", "/down"]
    desk = open_desk(path)
    desk.keep_only([])
    wait_for(lambda: is_empty(tmp_path))
    desk.close()
    assert ["cleared" in got["text"] for got in webhook.got()] == [False, False, True, True]


def test_two_monitors_do_not_share_a_file(tmp_path: Path) -> None:
    path = write_file(tmp_path, pager='kind = "command"\ncommand = ["true"]')
    desk = open_desk(path)
    with pytest.raises(UsageError, match="another monitor sends its alerts"):
        open_desk(path)
    desk.close()
    open_desk(path).close()
