"""Prints what an audit found."""

from __future__ import annotations

import sys

from shardmill.core.console import duration, print_checks, print_json
from shardmill.core.errors import EXIT_FAILED
from shardmill.run.request import Request
from shardmill.verbs.audit.report import Audit, AuditCause


def show_audit(request: Request, found: Audit) -> None:
    """Print the checks, the causes and the verdict; the exit status is 1 if something is wrong."""
    if request.options.as_json:
        print_json(found.to_json())
    else:
        verdict = "Right" if found.right else "NOT right"
        kind = f"{found.rows:,} vectors of {found.dims:,} {found.stored}"
        print_checks(
            ((check.ok, check.name, check.seen) for check in found.checks),
            *(f"       note       {note}" for note in found.notes),
            *(f"  Cause: {describe(cause)}" for cause in found.causes),
            f"{verdict}: {kind}, {found.seconds} s.",
        )
    if not found.right:
        sys.exit(EXIT_FAILED)


def describe(cause: AuditCause) -> str:
    """A cause in a line: what, where, how much, and what to do."""
    where = f"about {cause.rows:,} rows ({_percent(cause.share)})"
    if cause.first is not None:
        where = "all rows" if cause.share == 1 else f"rows {cause.first:,} to {cause.last:,} ({_percent(cause.share)})"
    took = "" if cause.again_s is None else f" ({duration(cause.again_s)} on this machine)"
    return f"{cause.seen}; {where}. {cause.remedy}{took}."


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
