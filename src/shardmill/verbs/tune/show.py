"""What the command line says about a study: how its trials ended, the best of them, and what mattered."""

from __future__ import annotations

from shardmill.core.console import clean, count, duration, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import UsageError
from shardmill.run.outcome import is_detached
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.verbs.tune.study import StudyResult
from shardmill.verbs.tune.trial import FAILED, Trial

_MOST_BEST = 10


def show_tuning(request: Request, run: Run) -> None:
    """Print what came of the trials. A study without any result is an error."""
    found, url = run.study(), run.ledger.url
    ended = len(found.trials) == found.planned
    if request.options.as_json:
        print_json(found.to_json())
    elif ended or not is_detached(run, run.status()):
        for note in dict.fromkeys(note for worker in run.status().workers for note in worker["notes"]):
            say(note)
        _show(found)
        if found.best:
            study = shell_command("study", url, "--journal", "study.log")
            say(f"Next: {shell_command('report', url)}   {study}")
    if ended and not found.best:
        raise UsageError("No trial has a result.", hint=_why(found, url))


def _why(found: StudyResult, url: str) -> str:
    """Where to look if no trial has a result."""
    if found.count(FAILED):
        return f"See why: {shell_command('show', url, '--errors')}"
    return "All were pruned: with another --out, loosen the pruner or trial_time_limit."


def open_study(request: Request) -> StudyResult:
    """Read a study, and write its journal if that was asked for."""
    run, journal = Run(request.options.run), request.options.journal
    found = run.study()
    if journal:
        run.write_journal(journal)
        say(f"Written: {count(len(found.trials), 'trial')} to {journal}. Look: optuna-dashboard {journal}")
    return found


def show_study(request: Request, found: StudyResult) -> None:
    """Print a study."""
    print_json(found.to_json()) if request.options.as_json else _show(found)


def _show(found: StudyResult) -> None:
    """Print how the trials ended, why the last failed one did, the best ones, and what mattered."""
    states = [f"{found.count(state):,} {state}" for state in dict.fromkeys(trial.state for trial in found.trials)]
    ended = f"{len(found.trials):,} of {count(found.planned, 'trial')} ended"
    say(f"{ended}: {', '.join(states)}." if states else f"{ended}.")
    for trial in [each for each in found.trials if each.state == FAILED][-1:]:
        say(f"Trial {trial.number} failed: {clean(trial.reason)}")
    for trial in found.best[:_MOST_BEST]:
        print(_describe(found, trial))
    if found.importances:
        print(clean("matters  " + "  ".join(f"{name} {share:.0%}" for name, share in found.importances.items())))


def _describe(found: StudyResult, trial: Trial) -> str:
    values = "  ".join(f"{name} {value:.6g}" for name, value in zip(found.settings.metrics, trial.values, strict=True))
    tried = "  ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in trial.parameters.items()
    )
    return f"best     trial {trial.number}  {clean(values)}  ({duration(trial.seconds)})\n         {clean(tried)}"
