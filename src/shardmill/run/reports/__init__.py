"""One page about a run, to attach to a ticket: what ran, on what, how long, for how much, and the proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from shardmill.core.errors import UsageError, nearest
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.run.reports.account import Account, read_account
from shardmill.run.reports.markdown import write_markdown
from shardmill.run.reports.page import write_page
from shardmill.run.status.state import Status
from shardmill.store import replacing

FORMATS: dict[str, Callable[[Account], str]] = {
    "html": write_page,
    "md": write_markdown,
    "json": lambda account: json.dumps(account.to_json(), indent=2, ensure_ascii=False) + "\n",
}


def write_report(ledger: Ledger, plan: Plan, status: Status, out: str = "", format: str = "") -> str:
    """Write the report of a run, whose `status` was just read, to a file or into its folder. Returns its place."""
    format = format or (Path(out).suffix[1:] if out else "html")
    if format not in FORMATS:
        known = f"Name one of {', '.join(FORMATS)} by --format, or end the name of the file in it."
        raise UsageError(f"A report cannot be written as {format!r}.", hint=nearest(format, [*FORMATS]) or known)
    text = FORMATS[format](read_account(ledger, plan, status)).encode("utf-8", "replace")
    if not out:
        # report.json is the proof.
        name = "report-page.json" if format == "json" else f"report.{format}"
        ledger.store.put(name, text)
        return f"{ledger.url}/{name}"
    with replacing(out) as file:
        file.write(text)
    return out
