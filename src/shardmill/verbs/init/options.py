"""The options of `init`."""

from __future__ import annotations

from shardmill.plan.options import FUNCTION, MODEL, WRITTEN, CallOptions, option
from shardmill.plan.shared import Keeping, ReadingTexts


class Writing(CallOptions):
    """What is run, and the file that says so."""

    task: str = option(
        "", "A verb that takes texts.", group=FUNCTION, metavar="TASK", shown="embed", common=True, min_length=1
    )
    model: str = option(
        "", "The model: a folder, its URL, or a hub name.", group=MODEL, metavar="MODEL", common=True, min_length=1
    )
    file: str = option(
        "", "The file to write.", group=WRITTEN, metavar="FILE", shown="job.toml", common=True, min_length=1
    )


class InitOptions(ReadingTexts, Keeping, Writing):
    """What `init` takes."""
