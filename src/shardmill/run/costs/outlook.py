"""What a run has cost so far and will have cost at its end, and how that compares with its deadline and budget."""

from __future__ import annotations

from dataclasses import replace

from shardmill.ledger import Ledger, StaffLog
from shardmill.plan import Plan
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.prices import find_price, spent_on
from shardmill.plan.spec import Execution, make_execution
from shardmill.run.costs.prices import price_around
from shardmill.run.editions import with_edition
from shardmill.run.status.load import read_load
from shardmill.run.status.state import Status, current_plan, glance


def look(ledger: Ledger, plan: Plan) -> Status:
    """The state of a run with its outlook, from its folder and, for a load, from the batch records in the database."""
    execution = make_execution(ledger.execution())
    seen = with_outlook(glance(ledger, plan), execution, read_staff(ledger, execution))
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


def read_staff(ledger: Ledger, execution: Execution) -> StaffLog | None:
    """How many workers are wanted, and why; None of a run that does not act on a deadline or a budget."""
    return ledger.staff.look() if execution.acts else None


def with_outlook(status: Status, execution: Execution, staff: StaffLog | None = None) -> Status:
    """The status with its money, deadline and budget. Without more requests, so it may differ a little from `cost`."""
    catalogue, own = load_catalogue(), execution.usd_per_hour
    usd, usd_per_s = spent_on(status.workers, status.unlisted or {}, catalogue, own)
    prices = execution.price_in, execution.price_out
    by_tokens = sum(
        count * (price or 0.0) / 1e6 for count, price in zip((status.tokens, status.tokens_out), prices, strict=True)
    )
    if any(price is not None for price in prices):
        usd, usd_per_s = usd or 0.0, usd_per_s or 0.0
    at_end = None
    if usd is not None:
        hourly = [own if own is not None else find_price(catalogue, w["device"], w["cores"]) for w in status.workers]
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
        staff=staff,
    )
