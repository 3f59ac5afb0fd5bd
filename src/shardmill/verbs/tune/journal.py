"""A study as a journal of Optuna, which optuna-dashboard and Optuna itself read."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from shardmill.store import replacing
from shardmill.verbs.tune.sampling import fill, load_optuna
from shardmill.verbs.tune.study import StudyResult


def write_journal(result: StudyResult, out: str, name: str) -> None:
    """Write the ended trials into a new journal at a path or a URL, which is replaced as a whole."""
    optuna = load_optuna()
    journals = optuna.storages.journal
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        here = Path(folder) / "journal.log"
        storage = optuna.storages.JournalStorage(journals.JournalFileBackend(str(here)))
        study = optuna.create_study(storage=storage, study_name=name, directions=list(result.settings.metrics.values()))
        study.set_metric_names(list(result.settings.metrics))
        fill(study, result.settings, result.trials)
        with replacing(out) as file:
            file.write(here.read_bytes())
