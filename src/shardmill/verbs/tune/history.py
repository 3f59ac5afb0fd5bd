"""The trials that have ended, read from the run folder: a trial has ended if its shard is committed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from shardmill.core.errors import CorruptState
from shardmill.ledger import Commit, Ledger
from shardmill.verbs.tune.settings import REPORTS, SECONDS, STATE, StudySettings
from shardmill.verbs.tune.trial import COMPLETE, FAILED, PRUNED, SKIPPED, Trial

_STATES = (COMPLETE, PRUNED, SKIPPED)


class TrialHistory:
    """The ended trials of one study. A commit is final, so a trial is read once."""

    def __init__(self, ledger: Ledger, settings: StudySettings) -> None:
        self._ledger, self._settings = ledger, settings
        self._seen: dict[int, Trial] = {}

    def before(self, generation: int) -> list[Trial]:
        """All trials of the generations before this one; they have all ended."""
        wanted = range(generation * self._settings.generation)
        self._take_in(wanted)
        if missing := [number for number in wanted if number not in self._seen]:
            raise CorruptState(f"Trial {missing[0]} of an earlier generation has not ended.", hint="Resume the study.")
        return [self._seen[number] for number in wanted]

    def ended(self, trials: int) -> list[Trial]:
        """The trials that have ended, in order."""
        self._take_in(range(trials))
        return [self._seen[number] for number in sorted(self._seen) if number < trials]

    def _take_in(self, wanted: Iterable[int]) -> None:
        if all(number in self._seen for number in wanted):
            return
        for raw in self._ledger.trials.sent():
            trial = Trial(**{**raw, REPORTS: {int(step): value for step, value in raw[REPORTS].items()}})
            self._seen.setdefault(trial.number, trial)
        if self._ledger.branch.assignment() is not None:
            # Home deletes the commits that it has fetched, and sends all trials that have ended.
            return
        for shard, commit in self._ledger.commits.read().items():
            if shard not in self._seen:
                self._seen[shard] = replace(self._read(shard, commit), ended_at=commit.finished_at)

    def _read(self, shard: int, commit: Commit) -> Trial:
        from shardmill.sinks.parquet import read_held_part

        rows = read_held_part(self._ledger.store, commit, list(self._settings.columns)).to_pylist()
        if len(rows) != 1:
            raise CorruptState(f"{self._ledger.url}/{commit.part} has {len(rows)} rows, and a trial has one.")
        if rows[0][STATE] in _STATES:
            return read_row(self._settings, shard, rows[0])
        found = self._ledger.trials.find(shard)
        reasons = [str(error["reason"]) for error in self._ledger.errors.read(commit)]
        return Trial(shard, FAILED, found.parameters if found else {}, reason="; ".join(reasons))


def read_row(settings: StudySettings, number: int, row: Mapping[str, Any]) -> Trial:
    """A trial from the row of its shard."""
    values = tuple(row[name] for name in settings.metrics if row[name] is not None)
    tried = {name: row[name] for name in settings.space if row[name] is not None}
    reports = {int(step): float(value) for step, value in json.loads(row[REPORTS] or "[]")}
    return Trial(number, row[STATE], tried, values, reports, seconds=row[SECONDS] or 0.0)


def to_row(settings: StudySettings, trial: Trial) -> dict[str, Any]:
    """The row of a trial; what it does not have is null."""
    return {
        **dict.fromkeys(settings.columns),
        STATE: trial.state,
        **dict(zip(settings.metrics, trial.values, strict=False)),
        **trial.parameters,
        REPORTS: json.dumps(list(trial.reports.items())),
        SECONDS: trial.seconds,
    }


def to_send(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """Trials as plain values, for a host that cannot read the run folder."""
    return [{**asdict(trial), "parameters": dict(trial.parameters)} for trial in trials]
