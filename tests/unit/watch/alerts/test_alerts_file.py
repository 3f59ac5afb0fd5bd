"""The file of the alerts: everything in it is checked before the monitor starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardmill.core.errors import SpecError
from shardmill.ledger import Ledger
from shardmill.watch.alerts import read_alerts
from tests.support.cli import Cli, assert_told
from tests.support.ledgers import a_plan

# The file that the documentation shows, with a program that exists.
PAGE = (Path(__file__).parents[4] / "docs/monitor.md").read_text()
WHOLE = PAGE.partition("```toml\n")[2].partition("```")[0].replace("/usr/local/bin/page", sys.executable)
SMALL = '[rules]\nfinished = true\n[targets.a]\nkind = "webhook"\nurl = "http://127.0.0.1:1/"\n'


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_WEBHOOK", "https://hooks.example/T0/secret")
    monkeypatch.setenv("SMTP_PASSWORD", "s3cret")


def write(folder: Path, text: str) -> Path:
    path = folder / "alerts.toml"
    path.write_text(text)
    return path


@pytest.mark.usefixtures("secrets")
def test_a_file_with_everything_is_read(tmp_path: Path) -> None:
    read = read_alerts(write(tmp_path, WHOLE))
    assert all(read.rules.is_on(rule) for rule in type(read.rules).model_fields)
    assert read.rules.stalled == 600.0
    assert read.rules.rate_drop == 0.5
    assert [target.kind for target in read.targets.values()] == ["webhook", "command", "email"]


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate_drop", "rate_dorp", "there is no rule 'rate_dorp'.*Did you mean 'rate_drop'"),
        ("stalled = ", "stuck = ", "there is no rule 'stuck'.*Available: stalled"),
        ("[rules]", "[rulez]", "there is no key 'rulez'.*Did you mean 'rules'"),
        ('"10min"', '"soon"', "rules.stalled: 'soon' is not a duration like 2h, 90min or 1h30m\\."),
        ('"50%"', '"0.5"', "rules.rate_drop.*not a percentage"),
        ("budget = true", "budget = 5", "rules.budget"),
        ("url_variable", "url_variabel", r"\[targets.team\] has no key 'url_variabel'.*'url_variable'"),
        ('kind = "webhook"', 'kind = "slack"', "targets.team has no kind.*webhook, command, email"),
        ('kind = "webhook"', "", "targets.team has no kind"),
        ("TEAM_WEBHOOK", "NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE is not set"),
        (sys.executable, "/no/such/program", "no program '/no/such/program'"),
        ("ann@example.org", "ann", "targets.mail.*addresses like"),
        ('password_variable = "SMTP_PASSWORD"', "", "belong together"),
        ('security = "starttls"', 'security = "none"', "only with starttls or tls"),
        ("[targets.team]", "[targets.team", "."),
    ],
)
def test_what_is_wrong_is_said_in_one_or_two_lines(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in WHOLE
    path = write(tmp_path, WHOLE.replace(old, new, 1))
    with pytest.raises(SpecError, match=f"(?s){said}") as wrong:
        read_alerts(path)
    assert str(path) in str(wrong.value)
    assert len(str(wrong.value).splitlines()) <= 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL.replace("true", "false"), "turns none on"),
        ("[rules]\nfinished = true\n", "no targets is given"),
        (SMALL.replace("http:", "ftp:"), "not an http or https address"),
    ],
)
def test_a_file_that_tells_nobody_anything_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read_alerts(write(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"alerts.toml: no such file"):
        read_alerts(tmp_path / "alerts.toml")


def test_the_command_line_says_what_was_meant(tmp_path: Path, shardmill: Cli) -> None:
    pytest.importorskip("fastapi")
    Ledger(tmp_path / "runs/a").create(a_plan())
    path = write(tmp_path, SMALL.replace("finished", "finnished"))
    said = shardmill("monitor", tmp_path / "runs", "--port", 0, "--alerts", path)
    assert_told(said, 2, "there is no rule 'finnished'", "Did you mean 'finished'?")
