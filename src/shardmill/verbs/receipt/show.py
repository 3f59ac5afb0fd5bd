"""Prints what a receipt says, or whether it holds."""

from __future__ import annotations

import sys

from shardmill.core.console import print_checks, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import EXIT_FAILED
from shardmill.results.receipt import tell_result
from shardmill.run.request import Request
from shardmill.verbs.receipt.receipt import Receipt


def show(request: Request, receipt: Receipt) -> None:
    """Print where a receipt was written and who signed it; of a receipt that was checked, each check."""
    options = request.options
    if options.as_json:
        print_json(receipt.to_json())
    elif options.check:
        _show_checks(receipt)
    else:
        _show_written(receipt, options.run)
    if not receipt.holds:
        sys.exit(EXIT_FAILED)


def _show_checks(receipt: Receipt) -> None:
    verdict = "holds" if receipt.holds else "does NOT hold"
    checks = ((check.ok, check.name, check.seen) for check in receipt.checks)
    print_checks(checks, f"The receipt {verdict}: {receipt.place}")


def _show_written(receipt: Receipt, run: str) -> None:
    said = receipt.statement["predicate"]
    signed = f"signed by key {receipt.signed_by[0][:16]}" if receipt.signed_by else "NOT signed: --key FILE signs it"
    say(f"{tell_result(receipt.statement)}, sha256 {said['parts']['sha256'][:16]}, {signed}: {receipt.place}")
    verified = (said["verification"] or {}).get("verified")
    if verified:
        say(f"Next: {shell_command('receipt', run, '--check', receipt.place)}")
    else:
        what = "was not verified" if verified is None else "failed its last verification"
        say(f"The run {what}, and the receipt says so. Next: {shell_command('verify', run)}")
