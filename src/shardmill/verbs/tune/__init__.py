"""Studies: what is searched, what each trial tries, what came of the trials.

A trial is a shard of a run. Its parameters depend on the seed, its number and the trials of finished generations alone.
Optuna is imported here and nowhere else.

Design: docs/design/training-and-studies.md
"""

from __future__ import annotations

from shardmill.plugins.base import LOOKS, Verb

VERB = Verb(
    name="tune",
    summary="Search for the best parameters: run every trial of a study.",
    resumes=True,
    examples=(
        "shardmill tune study.toml --out runs/study",
        "shardmill tune study.toml --call objectives.py:loss --trials 200 --workers 4 --out runs/study",
        "shardmill tune study.toml --out /shared/runs/study --engine slurm --partition gpu --workers 16",
    ),
    call='run = shardmill.tune("study.toml", out="runs/study")',
    options="shardmill.verbs.tune.options:TuneOptions",
    start="shardmill.verbs.tune.work:start",
    show="shardmill.verbs.tune.show:show_tuning",
    task="shardmill.verbs.tune.task:TuneTask",
    report="shardmill.verbs.tune.report:read_study_account",
    briefing="shardmill.verbs.tune.briefing:TrialBriefing",
    methods={
        "study": "shardmill.verbs.tune.study:read_study",
        "write_journal": "shardmill.verbs.tune.journal:write_journal",
    },
    extras=("tune",),
    long_items=True,
    items_are_trials=True,
)

STUDY = Verb(
    name="study",
    summary="Show the best trials of a study, and which parameters matter.",
    about="It reads a study that runs, or one that has ended.",
    family=LOOKS,
    examples=(
        "shardmill study runs/study",
        "shardmill study runs/study --journal study.log && optuna-dashboard study.log",
        "shardmill study s3://bucket/runs/study --json",
    ),
    options="shardmill.verbs.tune.options:StudyOptions",
    start="shardmill.verbs.tune.show:open_study",
    show="shardmill.verbs.tune.show:show_study",
)
