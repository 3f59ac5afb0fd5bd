"""Prints what `dedup` removed."""

from __future__ import annotations

import time

from shardmill.core.console import count, duration, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.run.request import Request
from shardmill.verbs.dedup.removal import Deduplicated


def show(request: Request, done: Deduplicated) -> None:
    """Print how many items are kept and how many duplicates are removed, and where the pairs are."""
    if request.options.as_json:
        print_json(done.to_json())
        return
    kinds = "equal" if request.options.exact else f"{done.exact:,} equal, {done.dropped - done.exact:,} similar"
    kept = f"{count(done.items, 'item')}: {done.items - done.dropped:,} kept"
    removed = f"{count(done.dropped, 'duplicate')} removed ({kinds})"
    say(f"{kept}, {removed}, {duration(time.monotonic() - request.began)}.")
    say(f"Pairs: {done.pairs}   Next: {shell_command('verify', done.run.ledger.url)}")
