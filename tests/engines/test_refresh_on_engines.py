"""A run is refreshed by workers that a scheduler places, and by those of a pool, as it is here."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Editions, Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.pool import serve
from shardmill.run.refreshing import refresh
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.slurm_cluster import SlurmCluster
from tests.support.waiting import PATIENCE_S


class Changing:
    """A run whose source changes before each refresh."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run, self.turn = folder, folder / "runs/one", 1
        self.rows: list[dict[str, Any]] = [{**row, "n": n} for n, row in enumerate(fake_rows(120))]
        self._write()
        work = fake_spec(folder / "items.jsonl").work.model_dump(exclude_unset=True)
        self.spec = make_spec({**work, "keep": "n"}, {"shard_bytes": 2_000, "lease_s": 10.0})
        start(self.spec, self.run, engine=InProcessEngine())

    def _write(self) -> None:
        (self.folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))

    def refresh_on(self, engine: dict[str, Any]) -> None:
        self.turn += 1
        self.rows[3 * self.turn]["text"] = f"another text {self.turn}"
        self.rows[50]["n"] = -self.turn
        del self.rows[60]
        self._write()
        done = refresh(self.run, engine)
        assert (done.edition, done.items, done.computed) == (self.turn, len(self.rows), 1)

    def check(self) -> None:
        run = Run(self.run)
        assert run.verify(report=False).verified
        assert run.table().equals(start(self.spec, self.folder / "fresh", engine=InProcessEngine()).table())


@pytest.mark.services
def test_slurm_refreshes_a_run(slurm_nodes: SlurmCluster, tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    changing.refresh_on({"engine": "slurm", "engine_options": {"partition": "gpu"}, "workers": 1})
    slurm_nodes.cancel_all()
    changing.check()


@pytest.mark.services
def test_ray_refreshes_a_run(ray_nodes: Any, tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    ray = {"address": ray_nodes.address, "num_cpus": "1"}
    changing.refresh_on({"engine": "ray", "device": "cpu", "engine_options": ray, "workers": 1})
    changing.check()


def test_a_pool_refreshes_the_runs_in_its_folder(tmp_path: Path) -> None:
    changing = Changing(tmp_path)
    served: list[str] = []

    def work() -> None:
        while Editions(changing.run).current() < 3:
            served.extend(serve(tmp_path / "runs", device="cpu").runs)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    for _ in range(2):
        changing.refresh_on({"engine": "pool", "device": "cpu"})
    worker.join(PATIENCE_S)
    assert [place.rpartition("/")[2] for place in served] == ["000002", "000003"]
    assert not Ledger(Editions(changing.run).open(3)).leases.read()
    changing.check()
