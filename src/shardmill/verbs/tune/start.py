"""What a trial tries: settled in the run folder before the trial begins."""

from __future__ import annotations

from shardmill.ledger import Ledger
from shardmill.ledger.trial import TrialStart
from shardmill.verbs.tune.history import TrialHistory
from shardmill.verbs.tune.sampling import suggest
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.space import Value
from shardmill.verbs.tune.trial import Trial


class TrialStarts:
    """Settles what the trials of a study try, from the trials of finished generations."""

    def __init__(self, ledger: Ledger, settings: StudySettings) -> None:
        self._ledger, self._settings = ledger, settings
        self._history = TrialHistory(ledger, settings)
        self._suggested: tuple[int, list[dict[str, Value]]] = (-1, [])

    def before(self, number: int) -> list[Trial]:
        """The trials of the generations before that of a trial."""
        return self._history.before(number // self._settings.generation)

    def settle(self, number: int) -> TrialStart | None:
        """What a trial tries, the same in every attempt; None if it has not begun and the study's time is over."""
        records, limit_s = self._ledger.trials, self._settings.limit_s
        if (found := records.find(number)) is not None:
            return found
        first = records.find(0) if limit_s is not None else None
        if first is not None and limit_s is not None and self._ledger.clock() - first.at > limit_s:
            return None
        generation, place = divmod(number, self._settings.generation)
        if self._suggested[0] != generation:
            self._suggested = generation, suggest(self._settings, generation, self.before(number))
        return records.settle(number, self._suggested[1][place])
