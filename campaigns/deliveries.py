"""Finished runs that are delivered while everything goes wrong that may; each row must be in the table exactly once.

python -m campaigns.deliveries --seeds 1000
python -m campaigns.deliveries --seed 12      plays one seed again, with every request and fault

Two users deliver the same run to the same table at the same time. Their processes are killed, and paused between any
two requests, for longer than their leases. `--mutate NAME` plants a known bug, which must be found.
"""

from __future__ import annotations

from unittest.mock import patch

from campaigns import faulty_run
from campaigns.faulty_run import CALM_S, Outcome, World
from campaigns.planted_bugs import DELIVERY_BUGS, planted
from campaigns.seeds import run_campaign
from campaigns.simulated_os import Process
from shardmill.results import delivery
from shardmill.run import running

TROUBLE_S = 40.0


class DeliveryWorld(World):
    """The run is made in good weather. Then deliveries begin, one table after the other, and the weather turns."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        super().__init__(seed, traced=traced)
        self.delivers = False
        self._rough, self.weather.troubled = max(0.05, self.weather.troubled), 0.0
        self._until = 0.0

    def tell(self) -> None:
        self.turns.spawn(self._make)

    def _make(self) -> None:
        made = self.start("a")
        made.ended.wait(CALM_S)
        assert made.status == 0, made.error
        self.weather.troubled, self._until = self._rough, self.turns.now + TROUBLE_S
        for host in "ab":
            self.turns.spawn(lambda host=host: self._deliver_often(host))
        self.turns.spawn(self._disturb)

    def _deliver(self, host: str) -> Process:
        into = [f"simulated://lake/{self.addresses}"]
        return self.command(host, "deliver", lambda: running.resume(self.url, {"into": into}))

    def _deliver_often(self, host: str) -> None:
        while self.turns.now < self._until:
            process = self._deliver(host)
            process.ended.wait(self.chance.uniform(1, 60))
            if process.status is None:
                process.signal(9)
            elif process.status == 0:
                self._prove_table(self.addresses)
                self.addresses += 1

    def _disturb(self) -> None:
        while self.turns.now < self._until:
            self.turns.pause(self.turns.now + self.chance.expovariate(0.7))
            if victims := self.machines.living():
                victim = self.chance.choice(victims)
                if self.chance.random() < 0.3:
                    victim.signal(9)
                else:
                    victim.frozen_until = self.turns.now + self.chance.uniform(1, 40)
                    self.machines.note(victim, "  frozen")
        self.weather.calm_down()
        self._wait_for_all()
        for _ in range(3):
            process = self._deliver("a")
            process.ended.wait(CALM_S)
            if process.status == 0:
                break
        else:
            self.outcome.faults.append(f"it cannot be delivered: {process.error}")

    def _prove_table(self, number: int) -> None:
        """No row twice, at any time."""
        doubled = [id for id, times in self.lake.ids(f"simulated://lake/{number}").items() if times > 1]
        if doubled:
            self.outcome.faults.append(f"{doubled} are doubled in table {number}")
        self.outcome.counts["tables"] += 1

    def prove(self) -> None:
        for number in range(self.addresses + 1):
            self._prove_table(number)
        self.delivers = True
        super().prove()


def play(seed: int, mutation: str = "", *, traced: bool = False) -> Outcome:
    # A pool's threads would not wait for their turn.
    one_core = patch.object(delivery, "cores", lambda: 1)
    with planted(mutation), one_core, patch.object(faulty_run, "World", DeliveryWorld):
        return faulty_run.play(seed, traced=traced)


if __name__ == "__main__":
    run_campaign(play, __doc__ or "", "python -m campaigns.deliveries", DELIVERY_BUGS)
