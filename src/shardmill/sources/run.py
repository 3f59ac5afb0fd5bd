"""A finished run as a source, such as `run:runs/summaries`: its parts are read as Parquet files, in source order."""

from __future__ import annotations

from collections.abc import Sequence

from shardmill.core.dialect import shell_command
from shardmill.core.errors import NotComplete, SourceError
from shardmill.core.passwords import withhold
from shardmill.ledger import FAILED, Commit, Ledger
from shardmill.plan import RUN, SourceFile
from shardmill.store import Entry

FORMAT = "parquet"


def find_parts(places: Sequence[str], format: str | None) -> tuple[str, tuple[SourceFile, ...]]:
    """The parts of the runs at these places. Each has the id of its run's plan and the digest of its commit."""
    if format not in (None, FORMAT):
        raise SourceError(f"--format {format} has no meaning for a run.", hint="Omit it.")
    return FORMAT, tuple(file for place in places for file in _parts_of(place.removeprefix(RUN)))


def _parts_of(place: str) -> list[SourceFile]:
    ledger, shown = Ledger(place), withhold(place)
    plan = ledger.find_plan()
    if plan is None:
        raise SourceError(f"{shown}: no run found there.", hint="Give the folder that was --out when it was made.")
    if plan.work.to is not None:
        raise SourceError(
            f"{shown}: its rows are in the table {plan.work.to.table}.", hint="Read the table, with --query."
        )
    finish = f"Finish it first: {shell_command('resume', shown)}"
    try:
        commits = ledger.commits.read_complete(plan)
    except NotComplete as error:
        raise SourceError(f"{shown} is not finished: {error.message.rpartition(': ')[2]}", hint=finish) from error
    if (state := ledger.state.look()).state == FAILED:
        raise SourceError(f"{shown} has failed: {state.cause}", hint=state.hint or finish)
    there = {entry.key: entry for entry in ledger.store.list("parts/")}
    return [_file(ledger.url, plan.id, commit, there.get(commit.part)) for commit in commits]


def _file(url: str, plan: str, commit: Commit, found: Entry | None) -> SourceFile:
    if found is None or found.size != commit.part_bytes:
        from shardmill.store.parts import damaged

        wrong = f"it has {found.size:,} bytes, not {commit.part_bytes:,}" if found else ""
        raise damaged(f"{url}/{commit.part}", wrong, SourceError)
    # No tag: a part is never written twice, and the same part of a copied run has another.
    return SourceFile(f"{url}/{commit.part}", found.size, "", f"{RUN}{plan}:{commit.digest[:32]}")
