"""A run that another process starts over while it is read: between a listing and the reading of what was listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardmill.core.errors import Preempted
from shardmill.ledger import Ledger
from shardmill.results.verify import verify
from shardmill.run import Run, start
from shardmill.run.status.state import read_status
from shardmill.store import Entry, LocalStore
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec


class Interrupted(LocalStore):
    """After a listing of `prefix`, and before anything else, another process starts the run over."""

    prefix = ""

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        found = [*super().list(prefix, after)]
        if self.prefix and prefix == self.prefix:
            self.prefix = ""
            another = Ledger(self.root)
            another.start_over(another.plan())
        yield from found


@pytest.fixture
def interrupted(write_jsonl: Callable[..., Path], tmp_path: Path) -> Interrupted:
    start(fake_spec(write_jsonl(fake_rows(60)), shard_bytes=800), tmp_path / "run", engine=InProcessEngine())
    return Interrupted(tmp_path / "run")


@pytest.mark.parametrize("use", [lambda ledger, plan: ledger.sweep(), lambda ledger, plan: verify(ledger, plan)])
def test_who_sweeps_or_verifies_it_says_so(interrupted: Interrupted, use: Callable[..., object]) -> None:
    ledger = Ledger(interrupted)
    plan = ledger.plan()
    interrupted.prefix = "commits/"
    with pytest.raises(Preempted, match="Another process has started the run over"):
        use(ledger, plan)
    assert Run(interrupted.root).status().state == "planned"


def test_a_status_is_shown(interrupted: Interrupted) -> None:
    ledger = Ledger(interrupted)
    plan = ledger.plan()
    interrupted.prefix = "steps/"
    assert read_status(ledger, plan).shards_done == len(plan.shards)
