"""The verb that summarizes, items or groups of them."""

from __future__ import annotations

import time
from typing import Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, takes
from shardmill.cli.specs import read_options
from shardmill.cli.tasks import FAMILY, report_run


def add_to(app: typer.Typer) -> None:
    app.command("summarize", cls=Verb, rich_help_panel=FAMILY, epilog=_SUMMARIZE)(summarize)


_SUMMARIZE = """\
shardmill summarize news.jsonl --text article --id id --out runs/news
shardmill summarize news.jsonl --text article --sentences 2 --reference highlights --out runs/news --then verify
shardmill summarize news.jsonl --text article --group-by topic --out runs/topics
shardmill summarize news.jsonl --text article --model ./bart-large-cnn --max-tokens 142 --out runs/written"""


@takes(
    *o.READING,
    *o.SUMMARIZING,
    *o.WRITING,
    *o.STORING,
    *o.KEEPING,
    *o.PLACING,
    "detach",
    "then",
    *o.LIMITING,
    *o.PRICING,
)
def summarize(
    out: o.Out = "", spec: o.SpecFile = None, resume: o.Resume = None, as_json: o.AsJson = False, **options: Any
) -> None:
    """Summarize every item of a source, or every group of items. The same command resumes an interrupted run."""
    from shardmill.api import summarize_work

    work, execution = read_options(spec, options)
    began = time.monotonic()
    done = summarize_work(work, execution, out, fresh=resume is False, resume=resume is True, quiet=False)
    report_run(done, began, as_json)
