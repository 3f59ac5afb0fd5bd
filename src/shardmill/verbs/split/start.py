"""Starts `split`, and says what was written."""

from __future__ import annotations

import time

from shardmill.core.console import duration, print_json, say
from shardmill.core.errors import UsageError
from shardmill.run.request import Request
from shardmill.verbs.split.spec import parse_bytes, parse_splits
from shardmill.verbs.split.splitter import SplitDone, split_files


def start(request: Request) -> SplitDone:
    """Cut a source into chunks."""
    options = request.options
    if not request.out:
        raise UsageError("No --out was given.", hint="Name a place for the dataset: --out data")
    return split_files(
        options.source,
        request.out,
        name=options.name or None,
        items=options.items,
        bytes=parse_bytes(options.bytes) if options.bytes else None,
        workers=options.chunks,
        query=options.query or None,
        format=options.format,
        compress=options.compress,
        shuffle=options.shuffle,
        splits=parse_splits(options.splits) if options.splits else (),
        by=options.by,
        fresh=options.fresh,
        quiet=options.as_json,
    )


def show_dataset(request: Request, done: SplitDone) -> None:
    """Print the number of items and chunks, and where they are."""
    made = done.metadata
    if request.options.as_json:
        print_json(made)
        return
    if done.was_there:
        say(f"Already complete: {made['total_items']:,} items in {made['total_chunks']:,} chunks, {done.place}")
        return
    kept = f" ({done.kept:,} kept)" if done.kept else ""
    say(
        f"{made['total_items']:,} items in {made['total_chunks']:,} chunks{kept}, {made['total_bytes']:,} bytes, "
        f"{duration(time.monotonic() - request.began)}: {done.place}"
    )
