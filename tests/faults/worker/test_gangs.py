"""Several workers on one item: whoever is killed, stopped or joins, the rest goes on from the last checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardmill import run as runs
from shardmill.core.errors import EXIT_TRY_AGAIN
from tests.support.gang_site import STEPS, GangSite
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for


@pytest.fixture
def site(tmp_path: Path) -> Iterator[GangSite]:
    made = GangSite(tmp_path)
    try:
        yield made
    finally:
        for worker in made.workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("with_torch", [False, True], ids=["sockets", "torch"])
def test_one_two_and_three_processes_in_turn_with_kills(with_torch: bool, site: GangSite) -> None:
    """A worker that joins makes a larger group, a killed one a smaller, whether it leads or not; no step is lost."""
    if with_torch:
        needed("torch")
    site.prepare(STEPS, with_torch=with_torch)
    site.start()
    group = site.wait_for_size(1)
    site.start()
    group = site.wait_for_size(2, group[0].generation)
    site.start()
    group = site.wait_for_size(3, group[0].generation)
    site.kill(group[1])
    group = site.wait_for_size(2, group[0].generation)
    assert group[0].first > 0
    site.kill(group[0])
    group = site.wait_for_size(1, group[0].generation)
    assert group[0].first > 0
    run = site.finish(STEPS)
    assert run.table().column("generations").to_pylist()[0] >= group[0].generation


def test_after_a_broken_step_nobody_waits_for_the_next_look(site: GangSite) -> None:
    """With a lease of hours, in which the others are looked at every 20 minutes while all goes well."""
    site.prepare(STEPS, min_workers=3, workers=3, lease_s=10_000.0)
    site.start(3)
    group = site.wait_for_size(3)
    for lost in (1, 0):
        site.kill(group[lost])
        site.start()
        group = site.wait_for_size(3, group[0].generation)
        assert group[0].first > 0
    site.finish(STEPS)


def test_a_gang_waits_for_its_least_number(site: GangSite) -> None:
    ledger = site.prepare(STEPS, min_workers=2, workers=2)
    site.start()
    wait_for(lambda: ledger.gangs.find(0) is not None)
    wait_for(lambda: len(ledger.gangs.present(0)) == 1)
    assert not site.parts()
    site.start(2)
    site.wait_for_size(2)
    site.finish(STEPS)
    assert {part.size for part in site.parts()} == {2}


def test_who_is_told_to_stop_leaves_the_rest_at_work(site: GangSite) -> None:
    site.prepare(STEPS, min_workers=2)
    site.start(2)
    group = site.wait_for_size(2)
    member = next(worker for worker in site.workers if worker.pid == group[1].pid)
    site.kill(group[1], signal.SIGTERM)
    assert member.wait(PATIENCE_S) == EXIT_TRY_AGAIN
    site.start()
    site.wait_for_size(2, group[0].generation)
    site.finish(STEPS)


def test_a_stopped_run_keeps_what_the_gang_did(site: GangSite) -> None:
    ledger = site.prepare(STEPS, min_workers=2)
    site.start(2)
    group = site.wait_for_size(2)
    assert group
    runs.stop(ledger.url)
    assert {worker.wait(PATIENCE_S) for worker in site.workers} == {EXIT_TRY_AGAIN}
    kept = ledger.checkpoints.find(0)
    assert kept is not None
    assert ledger.leases.read() == {}


def test_a_frozen_leader_is_replaced_and_changes_nothing(site: GangSite) -> None:
    """A process that is stopped for longer than a lease wakes up to find that others went on without it."""
    ledger = site.prepare(STEPS)
    site.start()
    group = site.wait_for_size(1)
    site.start()
    group = site.wait_for_size(2, group[0].generation)
    leader = ledger.gangs.find(0)
    site.freeze(group[0])
    new = site.wait_for_size(1, group[0].generation)
    assert new[0].pid == group[1].pid
    site.kill(group[0], signal.SIGCONT)
    site.finish(STEPS)
    after = ledger.gangs.find(0)
    assert leader is not None
    assert after is None or after.leader != leader.leader or after.generation > new[0].generation
