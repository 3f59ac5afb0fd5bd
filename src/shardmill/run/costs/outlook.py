"""What a run has cost so far and will have cost at its end, and how that compares with its deadline and budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.sizing.catalogue import Catalogue, load_catalogue
from shardmill.plan.spec import Execution, make_execution
from shardmill.run.costs.prices import find_price, price_around
from shardmill.run.editions import with_edition
from shardmill.run.status.load import read_load
from shardmill.run.status.state import Status, current_plan, glance


def look(ledger: Ledger, plan: Plan) -> Status:
    """The state of a run with its outlook, from its folder and, for a load, from the batch records in the database."""
    seen = with_outlook(glance(ledger, plan), make_execution(ledger.execution()))
    return with_edition(replace(seen, load=read_load(plan)), ledger)


def look_at(place: str) -> Status:
    """The state of the run in a folder."""
    ledger = Ledger(place)
    return look(ledger, ledger.plan())


class Watched:
    """A run that may be deleted or started over while it is watched."""

    def __init__(self, place: str) -> None:
        self._ledger = Ledger(place)
        self._plan = self._ledger.plan()

    def status(self) -> Status:
        self._plan = current_plan(self._ledger, self._plan)
        return look(self._ledger, self._plan)


def with_outlook(status: Status, execution: Execution) -> Status:
    """The status with its money, deadline and budget. Without more requests, so it may differ a little from `cost`."""
    usd, usd_per_s = _spent(status, load_catalogue())
    prices = execution.price_in, execution.price_out
    by_tokens = sum(
        count * (price or 0.0) / 1e6 for count, price in zip((status.tokens, status.tokens_out), prices, strict=True)
    )
    if any(price is not None for price in prices):
        usd, usd_per_s = usd or 0.0, usd_per_s or 0.0
    at_end = None
    if usd is not None:
        hourly = [find_price(load_catalogue(), w["device"], w["cores"]) for w in status.workers]
        usd += by_tokens + price_around(status.times, execution, hourly)
        if usd_per_s is not None and status.eta_s is not None and status.share:
            at_end = usd + usd_per_s * status.eta_s + by_tokens * (1 - status.share) / status.share
    began = min((w["started"] or w["began"] for w in status.workers if w["began"]), default=None)
    return replace(
        status,
        usd=usd,
        usd_at_end=at_end,
        deadline_at=execution.deadline_at(began),
        budget_usd=execution.budget_usd,
    )


def _spent(status: Status, catalogue: Catalogue) -> tuple[float | None, float | None]:
    """Dollars for the time of all workers, and dollars per second of the living; None if a price is unknown."""
    # A host's CPU is included in the price of its GPU.
    with_gpu = {w["host"] for w in status.workers if w.get("kind") == "cuda"}
    paid = [w for w in status.workers if w.get("kind") != "cpu" or w["host"] not in with_gpu]
    # Workers that a view does not list are taken to have machines like those that it does.
    sizes = {w["device"]: w["cores"] for w in paid}
    prices = {(w["device"], w["cores"]): find_price(catalogue, w["device"], w["cores"]) for w in paid}
    others = {device: find_price(catalogue, device, sizes.get(device, 0)) for device in status.unlisted or {}}
    if not paid or None in (*prices.values(), *others.values()):
        return None, None
    hourly = [(w, prices[w["device"], w["cores"]] or 0.0) for w in paid]
    spent = sum(_device_s(w) * price for w, price in hourly)
    spent += sum(seconds * (others[device] or 0.0) for device, seconds in (status.unlisted or {}).items())
    return spent / 3600, sum(w["share"] * price for w, price in hourly if w["live"]) / 3600


def _device_s(worker: Mapping[str, Any]) -> float:
    return float(worker["share"] * max(0.0, worker["at"] - (worker["started"] or worker["began"])))
