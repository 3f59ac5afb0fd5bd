"""Processes that bring a store from one edition of a run to another are killed, come too late or are two at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.results import delivery
from shardmill.run import Run
from shardmill.sinks.address import find_delivery
from shardmill.sinks.base import Delivery
from tests.contract.sinks.test_deliveries import Dying, Killed
from tests.contract.test_refresh import again, begin, make_rows, spec_of, write
from tests.contract.test_refresh_delivered import address, deliver, is_there, refreshed, seen_by, small, source

__all__ = ["address", "small", "source"]

_STEPS = ("turn", "holdings", "count", "prepare", "finish")


def test_killed_between_any_two_steps(source: Path, tmp_path: Path, address: str) -> None:
    """The process dies before or after the n-th call of the store; the next one does the rest."""
    run = begin(spec_of(source), tmp_path / "run")
    kind = find_delivery(address).part("delivery")
    places = [address.replace("rows", f"rows{last}").replace("reviews", f"reviews{last}") for last in range(1, 30, 5)]
    for place in places:
        deliver(run, place)
    run = refreshed(source, tmp_path / "run")
    for last, place in zip(range(1, 30, 5), places, strict=True):
        calls = Dying(last)

        class Mortal(kind):  # type: ignore[valid-type,misc]
            turn, holdings, count, prepare, finish = (calls.wrap(getattr(kind, name)) for name in _STEPS)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delivery, "open_delivery", lambda address, shipment: Mortal(address, shipment))
            try:
                delivery.deliver_run(run.ledger, run.plan, place, lease_s=0.2)
                ended = True
            except Killed:
                ended = False
        if not ended:
            deliver(run, place)
        is_there(run, place)
    assert ended, "more than all steps"


def test_killed_in_the_middle_of_a_step(source: Path, tmp_path: Path, address: str) -> None:
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    run = refreshed(source, tmp_path / "run")
    code = f"""
        import os, signal
        from shardmill.results import delivery, turning
        from shardmill.run import Run
        turning._KEYS_AT_ONCE = 3
        decide, calls = turning.EditionTurn.decide, []
        def mortal(*given):
            calls.append(given)
            made = decide(*given)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return made
        turning.EditionTurn.decide = mortal
        run = Run({run.ledger.url!r})
        delivery.deliver_run(run.ledger, run.plan, {address!r}, lease_s=0.2)
    """
    done = in_process(code)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not seen_by(run, address)[0]
    deliver(run, address)
    is_there(run, address)


def in_process(code: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True)


def test_two_at_once(source: Path, tmp_path: Path, address: str) -> None:
    deliver(begin(spec_of(source), tmp_path / "run"), address)
    run = refreshed(source, tmp_path / "run")
    words = [sys.executable, "-m", "shardmill", "load", "--from", str(tmp_path / "run"), "--to", address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pair = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for each in pair:
        said = each.communicate()[1]
        assert each.returncode == 0, said
    is_there(run, address)


def test_a_change_that_was_given_up_is_completed_before_the_next(source: Path, tmp_path: Path, address: str) -> None:
    """Two editions came while the table was on its way to the first of them; it also had but some lots."""
    run = begin(spec_of(source), tmp_path / "run")
    kind = find_delivery(address).part("delivery")
    calls = Dying(4)
    mortal = type("Mortal", (kind,), {"commit": calls.wrap(kind.commit)})
    give_up(run, address, mortal)
    run = refreshed(source, tmp_path / "run")
    calls = Dying(4)
    give_up(run, address, type("Mortal", (kind,), {"turn": calls.wrap(kind.turn)}))
    write(source, make_rows(38))
    again(tmp_path / "run")
    run = Run(tmp_path / "run")
    deliver(run, address)
    is_there(run, address)


def give_up(run: Run, address: str, mortal: Callable[..., Delivery]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "open_delivery", mortal)
        patch.setattr(mortal, "lots_at_once", 1)
        with pytest.raises(Killed):
            delivery.deliver_run(run.ledger, run.plan, address, lease_s=0.2)
