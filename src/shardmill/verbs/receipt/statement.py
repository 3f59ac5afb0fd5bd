"""The statement of a receipt: the result, and what is told of it: the last verification, software and cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from shardmill.core.errors import NotComplete, UsageError
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.receipt import describe_result
from shardmill.run.costs.cost import read_cost

# A text with a slash may be a path, one with an @ names a person or a server. Files of the run folder may be named.
_PLACE = re.compile(r"\S*[/\\@]\S*")
_OWN = re.compile(r"(parts|errors|model|shards)/[\w.-]+[,;:]?")
# What is another each time, and what the receipt itself is compared by.
_PASSING, _RECEIPT = ("run", "plan", "seconds"), "receipt"
_HIDDEN = "…"


def describe_run(ledger: Ledger, plan: Plan) -> dict[str, Any]:
    """The whole statement about a complete run."""
    try:
        return _describe(ledger, plan)
    except FileNotFoundError as error:
        raise UsageError(
            f"{ledger.url}: {error.filename or error} is gone.",
            hint="Check that the run folder is whole, then try again.",
        ) from error


def _describe(ledger: Ledger, plan: Plan) -> dict[str, Any]:
    commits = ledger.commits.read()
    missing = sum(shard.index not in commits for shard in plan.shards)
    if missing:
        raise NotComplete(
            f"{ledger.url}: {missing:,} of {len(plan.shards):,} shards are not done.",
            hint=f"Finish it: shardmill resume {ledger.url}",
        )
    statement = describe_result(ledger, plan, [commits[shard.index] for shard in plan.shards])
    workers = ledger.workers.read()
    statement["predicate"] |= {
        "verification": read_verification(ledger, plan),
        "software": {"shardmill": sorted({str(worker["version"]) for worker in workers if worker.get("version")})},
        "cost": _describe_cost(ledger, plan),
    }
    return statement


def read_verification(ledger: Ledger, plan: Plan) -> dict[str, Any] | None:
    """What the last `verify` of this run found, whatever its checks are; None if there was none.

    Checks that failed are named only: what they saw may be an error with a path or an address in it.
    """
    report = ledger.notes.report()
    if report is None or report.get("plan") != plan.id or not isinstance(report.get("checks"), list):
        return None
    checks = [check for check in report["checks"] if isinstance(check, dict) and check.get("name") != _RECEIPT]
    hide = _Hiding(ledger, plan)
    told = [hide.plain(check if check.get("ok") else {**check, "seen": ""}) for check in checks]
    others = {name: value for name, value in report.items() if name not in (*_PASSING, "checks")}
    return {**hide.plain(others), "verified": all(check.get("ok") is True for check in checks), "checks": told}


def _describe_cost(ledger: Ledger, plan: Plan) -> dict[str, Any]:
    """The sums of the cost; workers have host names."""
    cost = read_cost(ledger, plan).to_json()
    sums = {name: value for name, value in cost.items() if name not in ("run", "state")}
    plain: dict[str, Any] = _Hiding(ledger, plan).plain(sums)
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in plain.items()}


class _Hiding:
    """Leaves out of records what names a place, a machine or a person."""

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        files = [file.place for file in plan.stat.files]
        said = [ledger.url, ledger.execution(), plan.work.model_dump(mode="json"), files]
        places = {text for text in _texts(said) if "/" in text}
        hosts = {str(worker["host"]) for worker in ledger.workers.read() if worker["host"]}
        words = [re.escape(word) for word in sorted(places, key=len, reverse=True)]
        words += [rf"(?<!\w){re.escape(host)}(?!\w)" for host in sorted(hosts)]
        self._known = re.compile("|".join(words))

    def plain(self, value: Any) -> Any:
        """Numbers, and texts without places, by name. Lists are left out: they may have rows of the data in them."""
        if isinstance(value, dict):
            return {name: self.plain(each) for name, each in value.items() if not isinstance(each, list | tuple)}
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        bare = self._known.sub(_HIDDEN, text)
        return _PLACE.sub(lambda found: found[0] if _OWN.fullmatch(found[0]) else _HIDDEN, bare)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
