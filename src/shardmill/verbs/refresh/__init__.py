"""Refreshes: a run is brought up to its source, and computes only what is new or changed.

Design: docs/design/editions.md
"""

from __future__ import annotations

from shardmill.plugins.base import RUNS, Verb

VERB = Verb(
    name="refresh",
    summary="Bring a run up to its source: compute what is new or changed.",
    about="Rows of items that are as they were are taken over, and items that are gone leave the result. The result is "
    "the next edition of the run; the one before stays until then, and all commands read the newest. A refresh that "
    "was killed goes on when it is started again. With --every it goes on until a signal ends it: a refresh that fails "
    "is told and tried again, and nothing starts while nothing has changed.",
    family=RUNS,
    examples=(
        "shardmill refresh runs/reviews",
        "shardmill refresh runs/reviews --dry-run",
        "shardmill refresh runs/reviews --every 15m",
        "shardmill refresh s3://bucket/runs/docs --engine slurm --partition gpu --workers 16",
    ),
    call='shardmill.refresh("runs/reviews")',
    returns="shardmill.run.refreshed:Refreshed",
    options="shardmill.verbs.refresh.options:RefreshOptions",
    start="shardmill.verbs.refresh.start:start",
    show="shardmill.verbs.refresh.start:show",
    resumes=True,
)
