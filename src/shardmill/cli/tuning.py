"""Verbs of studies: run the trials, and show what came of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.inspection import FAMILY as LOOKING
from shardmill.cli.specs import read_options
from shardmill.cli.tasks import FAMILY
from shardmill.console import clean, count, duration, say
from shardmill.errors import UsageError

if TYPE_CHECKING:
    from shardmill.tuning.study import StudyResult
    from shardmill.tuning.trial import Trial

_MOST_BEST = 10


def add_to(app: typer.Typer) -> None:
    app.command("tune", cls=Verb, rich_help_panel=FAMILY, epilog=_TUNE)(tune)
    app.command("study", cls=Verb, rich_help_panel=LOOKING, epilog=_STUDY)(study)


_TUNE = """\
shardmill tune study.toml --out runs/study
shardmill tune study.toml --call objectives.py:loss --trials 200 --workers 4 --out runs/study
shardmill tune study.toml --out /shared/runs/study --engine slurm --partition gpu --workers 16"""


@takes(*o.PLACING, "detach", "then", "max_errors")
def tune(
    source: Annotated[str, o.argument("STUDY", "A TOML file with [work] and [space]: a path or a URL.")],
    out: o.Out = "",
    call: Annotated[
        str | None,
        o.option(
            o.STUDY,
            metavar="CALL",
            help="The objective, instead of the file's: package.module:function or file.py:function.",
        ),
    ] = None,
    trials: Annotated[
        int | None, o.option(o.STUDY, metavar="N", min=1, help="Number of trials, instead of the file's.")
    ] = None,
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Search for the best parameters: run every trial of a study. The same command resumes an interrupted study."""
    from shardmill import api

    _, execution = read_options(None, options)
    how = {"fresh": resume is False, "resume": resume is True, "quiet": False}
    run = api.tune_study(source, {"call": call, "trials": trials}, execution, out, **how)
    found = run.study()
    if as_json:
        print_json(found.to_json())
    elif len(found.trials) < found.planned:
        say(f"Detached. Watch: shardmill status {run.ledger.url} --watch")
    else:
        for note in dict.fromkeys(note for worker in run.status().workers for note in worker["notes"]):
            say(note)
        _show(found)
        if found.best:
            say(f"Next: shardmill report {run.ledger.url}   shardmill study {run.ledger.url} --journal study.log")
    if len(found.trials) == found.planned and not found.best:
        raise UsageError("No trial has a result.", hint=_why(found, run.ledger.url))


def _why(found: StudyResult, url: str) -> str:
    """Where to look if no trial has a result."""
    from shardmill.tuning.trial import FAILED

    if found.count(FAILED):
        return f"See why: shardmill show {url} --errors"
    return "All were pruned: with another --out, loosen the pruner or trial_time_limit."


_STUDY = """\
shardmill study runs/study
shardmill study runs/study --journal study.log && optuna-dashboard study.log
shardmill study s3://bucket/runs/study --json"""


def study(
    run: o.Run,
    journal: Annotated[
        str, o.option(o.RESULT, metavar="FILE", help="Write Optuna's journal, for optuna-dashboard: a path or a URL.")
    ] = "",
    as_json: o.AsJson = False,
) -> None:
    """Show the best trials of a study, and which parameters matter, while it runs or after."""
    from shardmill.run import Run

    opened = Run(run)
    found = opened.study()
    if journal:
        opened.write_journal(journal)
        say(f"Written: {count(len(found.trials), 'trial')} to {journal}. Look: optuna-dashboard {journal}")
    if as_json:
        print_json(found.to_json())
    else:
        _show(found)


def _show(found: StudyResult) -> None:
    """Print how the trials ended, why the last failed one did, the best ones, and what mattered."""
    from shardmill.tuning.trial import FAILED

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
