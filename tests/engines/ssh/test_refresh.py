"""A run is refreshed on SSH hosts: those that share no disk are sent the edition before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Editions
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start
from shardmill.run.refreshing import refresh
from shardmill.testing import InProcessEngine
from tests.engines.ssh.test_hosts import cluster
from tests.support.corpora import fake_rows, fake_spec
from tests.support.sshd import TestHost

pytestmark = pytest.mark.services


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def spec_of(source: Path) -> Spec:
    work = fake_spec(source).work.model_dump(exclude_unset=True)
    return make_spec({**work, "keep": "n"}, {"shard_bytes": 3_000, "lease_s": 10.0})


@pytest.mark.parametrize("shared", [False, True])
def test_hosts_take_rows_over(
    tmp_path: Path, hosts: list[TestHost], monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    # A file that was written just now is believed to stay: its shards need not be read.
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", 0)
    rows = [{**row, "n": n} for n, row in enumerate(fake_rows(200))]
    (tmp_path / "data").mkdir()
    others = [{**row, "n": 0} for row in fake_rows(60, start=1_000)]
    write(tmp_path / "data/others.jsonl", others)
    source = write(tmp_path / "data/items.jsonl", rows)
    spec = spec_of(tmp_path / "data")
    start(spec, tmp_path / "run", engine=InProcessEngine())
    before = "shared = true\n" if shared else ""
    on_hosts = cluster(tmp_path, hosts, before, workers=1)
    for turn in (2, 3):
        rows[10 * turn]["text"] = f"another text {turn}"
        rows[10 * turn + 1]["n"] = -turn
        del rows[100:110]
        write(source, rows)
        items = len(rows) + len(others)
        done = refresh(tmp_path / "run", on_hosts)
        assert (done.edition, done.items, done.computed) == (turn, items, 1)
        assert done.reused == items - 1
    run = Run(tmp_path / "run")
    assert run.verify(report=False).verified
    fresh = start(spec, tmp_path / "fresh", engine=InProcessEngine())
    assert run.table().equals(fresh.table())
    left = [p.name for host in hosts for p in host.home.rglob("*") if p.is_file()]
    assert all(name.endswith(".log") or name == ".shardmill-work" for name in left), left
    assert Editions(tmp_path / "run").current() == 3
