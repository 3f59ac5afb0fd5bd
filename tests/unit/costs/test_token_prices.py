"""What tokens cost, at the prices in a run's `[execution]`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shardmill import run as runs
from shardmill.costs.cost import figures, read_cost
from shardmill.spec import make_spec
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
    assert shown["done"].startswith("10 items, 40 tokens read, 40 made in")
    assert "$3 per million tokens read and $15 made" in shown["cost"]
