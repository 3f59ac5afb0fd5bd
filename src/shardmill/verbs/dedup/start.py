"""Starts `dedup`."""

from __future__ import annotations

from shardmill.core.errors import UsageError
from shardmill.run.carrying import name_folder
from shardmill.run.request import Request
from shardmill.verbs.dedup.removal import Deduplicated, remove_duplicates


def start(request: Request) -> Deduplicated:
    """Keep the first of all items whose texts are alike."""
    for name, called in (("source", "SOURCE"), ("text", "--text")):
        if not request.work.get(name):
            raise UsageError(f"No {called} was given.", hint="shardmill dedup docs.jsonl --text body --out runs/unique")
    how = {name: value for name, value in request.how.items() if name != "allow_code"}
    options, out = request.options, name_folder(request.out)
    likeness = {"threshold": options.threshold, "exact": options.exact, "markup": not options.strip_markup}
    return remove_duplicates(request.work, request.execution, out, **likeness, **how)
