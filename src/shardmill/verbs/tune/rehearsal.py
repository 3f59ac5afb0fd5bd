"""Tries a sampler before the study begins: Optuna checks most options only when it samples."""

from __future__ import annotations

from shardmill.core.errors import SpecError, TaskError
from shardmill.verbs.tune.sampling import check_options, suggest
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.trial import COMPLETE, Trial

# Options that say after how many trials a sampler begins to learn, and Optuna's defaults of them.
_WAITS = ("n_startup_trials", "population_size", "popsize")
_STARTUP, _POPULATION, _MOST = 10, 50, 500


def rehearse(settings: StudySettings) -> None:
    """Ask a sampler with options for one trial after invented ones, enough for it to learn from."""
    check_options(settings)
    options = settings.sampler
    if len(options) == 1:
        return
    least = _POPULATION if options["name"].startswith("nsga") else _STARTUP
    waits = [n for name in _WAITS if isinstance(n := options.get(name), int)]
    enough = min(_MOST, 1 + max([least, *waits]))
    drawn = settings.model_copy(update={"generation": enough, "sampler": {"name": "random"}, "start": []})
    try:
        tried = suggest(drawn, 0, ())
        ended = [
            Trial(n, COMPLETE, each, tuple((n * share % 7) / 7 for share in range(2, 2 + len(settings.metrics))))
            for n, each in enumerate(tried)
        ]
        suggest(settings.model_copy(update={"generation": 1, "start": []}), enough, ended)
    except TaskError as error:
        own = ", ".join(name for name in options if name != "name")
        hint = f"Leave out {own}, or give it as Optuna's documentation says."
        raise SpecError(error.message, hint=hint) from error
