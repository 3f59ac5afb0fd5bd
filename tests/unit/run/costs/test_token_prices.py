"""What tokens cost, at the prices in a run's `[execution]`, and what a CPU costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill import run as runs
from shardmill.core.devices import cores
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.prices import find_price
from shardmill.plan.spec import Execution, make_spec
from shardmill.run.costs.cost import figures, read_cost
from shardmill.run.costs.outlook import with_outlook
from shardmill.testing import InProcessEngine


def test_tokens_read_and_made_have_their_own_price(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl([{"id": i, "text": "four words are here"} for i in range(10)])
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeStream"}
    run = runs.start(make_spec(work, {"price_in": 3.0, "price_out": 15.0}), tmp_path / "run", engine=InProcessEngine())
    cost = read_cost(run.ledger, run.plan)
    assert (cost.tokens, cost.tokens_out) == (40, 40)
    assert cost.usd_tokens == (40 * 3.0 + 40 * 15.0) / 1e6
    assert (cost.usd or 0.0) >= cost.usd_tokens
    shown = dict(figures(cost))
    assert shown["done"].startswith("10 items, 40 tokens read, 40 made")
    assert "$3 per million tokens read and $15 made" in shown["cost"]


def test_a_cpu_is_priced_by_its_cores(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    """By `cost` and `status` alike; a record of an earlier version, without cores, has the catalogue's price."""
    known = load_catalogue()
    small = known.find("cpu")
    assert small is not None
    assert small.usd is not None
    assert find_price(known, "cpu", 8 * small.cores) == 8 * small.usd
    assert find_price(known, "cpu") == small.usd
    assert find_price(known, "NVIDIA H200", 96) == find_price(known, "NVIDIA H200")
    work = {"source": str(write_jsonl([{"text": "a"}])), "text": "text", "task": "shardmill.testing:FakeStream"}
    run = runs.start(make_spec(work), tmp_path / "run", engine=InProcessEngine())
    (worker,) = run.ledger.workers.read()
    assert worker["cores"] == cores()
    cost = read_cost(run.ledger, run.plan)
    hourly = small.usd / small.cores * cores()
    assert cost.usd == pytest.approx((cost.device_s + cost.times.around_s) * hourly / 3600)
    assert with_outlook(run.status(), Execution()).usd == pytest.approx(cost.usd)


@pytest.mark.parametrize(
    ("device", "whole", "share"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H100 80GB HBM3", 1 / 7),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", "NVIDIA H100 80GB HBM3", 1 / 4),
        ("NVIDIA A100-SXM4-40GB MIG 2g.10gb", "NVIDIA A100-SXM4-40GB", 2 / 7),
        ("NVIDIA A100-SXM4-40GB MIG 7g.40gb", "NVIDIA A100-SXM4-40GB", 1),
    ],
)
def test_a_slice_costs_its_share_of_the_whole(device: str, whole: str, share: float) -> None:
    """Seven of the smallest cost what the GPU does."""
    catalogue = load_catalogue()
    price, of_whole = find_price(catalogue, device), find_price(catalogue, whole)
    assert of_whole
    assert price == pytest.approx(of_whole * share)


def test_a_slice_of_an_unknown_gpu_has_no_price() -> None:
    assert find_price(load_catalogue(), "NVIDIA X9 MIG 1g.10gb") is None
