"""What hosts are sent, reach themselves or cannot reach is asked of the source and the sink, not of their names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.libraries import needed

needed("asyncssh")

from shardmill.core.errors import SpecError  # noqa: E402
from shardmill.engines.ssh.at_home.environment import _extras  # noqa: E402
from shardmill.engines.ssh.at_home.uploads import check_reach, is_remote  # noqa: E402
from shardmill.plan import Plan, SourceFile, SourceStat  # noqa: E402
from shardmill.plan.spec import make_spec  # noqa: E402

FAKE = "shardmill.testing:FakeTask"


def plan_of(format: str, place: str, **work: Any) -> Plan:
    made = make_spec({"source": place, "text": "t", "task": FAKE, **work}).work
    return Plan.of(made, SourceStat(format, (SourceFile(place, 10, "tag", ""),), {}), {}, ())


QUERY = {"query": "SELECT t FROM x"}
POSTGRES = ("postgresql", "postgresql://ann@db/shop")


@pytest.mark.parametrize(
    ("plan", "read_there"),
    [
        (plan_of("jsonl", "/data/a.jsonl"), False),
        (plan_of("jsonl", "s3://bucket/a.jsonl"), True),
        (plan_of("range", "range:0:10"), True),
        (plan_of(*POSTGRES, **QUERY), True),
    ],
)
def test_hosts_are_sent_files_and_read_the_rest(plan: Plan, read_there: bool) -> None:
    check_reach(plan, shared=False, in_store=False)
    assert is_remote(plan, plan.stat.files[0].place) == read_there


@pytest.mark.parametrize(
    "plan", [plan_of("sqlite", "sqlite:////a.db", **QUERY), plan_of("python", "python:a:b", **QUERY)]
)
def test_a_database_on_one_machine_is_refused_unless_hosts_share_its_disk(plan: Plan) -> None:
    with pytest.raises(SpecError, match="hosts cannot reach this database"):
        check_reach(plan, shared=False, in_store=False)
    check_reach(plan, shared=True, in_store=False)


def test_a_file_of_this_machine_does_not_go_with_a_run_in_a_store() -> None:
    with pytest.raises(SpecError, match="only on this machine"):
        check_reach(plan_of("jsonl", "/data/a.jsonl"), shared=False, in_store=True)
    check_reach(plan_of("jsonl", "s3://bucket/a.jsonl"), shared=False, in_store=True)


def test_the_extras_of_a_host_are_those_of_source_and_sink() -> None:
    to = {"url": "postgresql://ann@db/shop", "table": "rows"}
    assert _extras(plan_of("jsonl", "/data/a.jsonl"), gpu=False) == []
    assert _extras(plan_of(*POSTGRES, **QUERY), gpu=False) == ["postgres"]
    assert _extras(plan_of("sqlite", "sqlite:////a.db", **QUERY), gpu=False) == []
    assert _extras(plan_of("jsonl", "/data/a.jsonl", to=to), gpu=False) == ["postgres"]
