"""Migrations: a run is moved to another model, which is compared with the one before and can be taken back.

Design: docs/design/editions.md
"""

from __future__ import annotations

from shardmill.plugins.base import RUNS, Verb

VERB = Verb(
    name="migrate",
    summary="Move a run to another model: compute, compare with the old one, switch.",
    about="The result is the next edition of the run. The one before is read until the new one is complete and "
    "compared, and stays until it is pruned: `shardmill rollback RUN` goes back to it. A migration that was killed "
    "goes on when it is started again.",
    family=RUNS,
    examples=(
        "shardmill migrate runs/docs --model ./bge-small --dry-run",
        "shardmill migrate runs/docs --model ./bge-small --queries queries.jsonl",
        "shardmill migrate runs/docs --dims 128 --dtype float16 --compare-only",
    ),
    call='shardmill.migrate("runs/docs", model="./bge-small", queries="queries.jsonl")',
    returns="shardmill.run.migrated:Migrated",
    options="shardmill.verbs.migrate.options:MigrateOptions",
    start="shardmill.verbs.migrate.start:start",
    show="shardmill.verbs.migrate.start:show",
    resumes=True,
)
