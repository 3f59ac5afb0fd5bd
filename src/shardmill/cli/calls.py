"""The verbs that call a function with every item: the user's, or those that find duplicates."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.specs import parameters, read_options
from shardmill.cli.tasks import FAMILY, carry_out
from shardmill.console import count, duration, say
from shardmill.errors import UsageError


def add_to(app: typer.Typer) -> None:
    app.command("apply", cls=Verb, rich_help_panel=FAMILY, epilog=_APPLY)(apply)
    app.command("dedup", cls=Verb, rich_help_panel=FAMILY, epilog=_DEDUP)(dedup)


_APPLY = """\
shardmill apply reviews.jsonl --call words.py:count --id asin --out runs/words
shardmill apply s3://bucket/docs --call acme.clean:Cleaner --param lower=true --column body --out s3://bucket/runs/clean
shardmill apply images.parquet --call ocr.py:Reader --batch 32 --device cuda --out runs/ocr"""

Call = Annotated[
    str,
    o.option(o.FUNCTION, metavar="NAME", help="The function or class: package.module:function, or file.py:function."),
]
Columns = Annotated[
    list[str] | None,
    o.option(o.FUNCTION, "--column", metavar="COLUMN", help="A column to give it; repeatable.  [default: all]"),
]
BatchRows = Annotated[
    int | None, o.option(o.FUNCTION, "--batch", metavar="N", min=1, help="Items per call at most.  [default: 1024]")
]
Text = Annotated[
    str | None, o.option(o.FUNCTION, metavar="TEMPLATE", help='Give it a column `text` too, as "{title}: {body}".')
]


@takes(
    *("source", "query", "format", "param", "to", "table", "mode"),
    *(*o.KEEPING, *o.PLACING, "detach", "then", "batch_rows", "max_errors", "shard_bytes"),
)
def apply(
    call: Call = "",
    column: Columns = None,
    batch: BatchRows = None,
    text: Text = None,
    out: o.Out = "",
    spec: o.SpecFile = None,
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Call a function with every item of a source, in batches. The same command resumes an interrupted run."""
    from shardmill.run.applying import apply_work

    given = parameters(options.pop("param"))
    work, execution = read_options(spec, {**options, "text": text})
    own = {"call": call or None, "column": column, "batch": batch}
    arguments = work.pop("params", {})
    kept = {
        name: arguments.pop(name) for name in ("call", "code", "fields", "columns", "arguments") if name in arguments
    }
    work["params"] = {**kept, **{name: value for name, value in own.items() if value}}
    work, execution = apply_work(work, execution, {**arguments, **given})
    carry_out(work, execution, out, resume, as_json)


_DEDUP = """\
shardmill dedup reviews.jsonl --text reviewText --out runs/unique
shardmill dedup docs.parquet --text "{title} {body}" --id doc_id --threshold 0.7 --out runs/unique
shardmill dedup lines.txt --text text --exact --out runs/unique"""

Threshold = Annotated[
    float, o.option(o.FUNCTION, metavar="X", help="The least share of equal shingles, estimated.  [default: 0.8]")
]
Exact = Annotated[bool, o.option(o.FUNCTION, "--exact", help="Only texts that are equal but for case and marks.")]


@takes(*o.READING, *o.KEEPING, *o.PLACING, "then", "max_errors", "shard_bytes")
def dedup(
    threshold: Threshold = 0.8,
    exact: Exact = False,
    out: o.Out = "",
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Keep the first of all items whose texts are alike. The same command resumes an interrupted run."""
    from shardmill.run.duplicates import remove_duplicates

    work, execution = read_options(None, options)
    for name, flag in (("source", "SOURCE"), ("text", "--text")):
        if not work.get(name):
            raise UsageError(f"No {flag} was given.", hint="shardmill dedup docs.jsonl --text body --out runs/unique")
    if not out:
        raise UsageError("No --out was given.", hint="Name a folder for the run: --out runs/mine")
    began = time.monotonic()
    how: Any = {"fresh": resume is False, "resume": resume is True, "quiet": False}
    done = remove_duplicates(work, execution, out, threshold=threshold, exact=exact, **how)
    if as_json:
        print_json(done.to_json())
        return
    kinds = f"{done.exact:,} equal, {done.dropped - done.exact:,} nearly so" if not exact else "equal"
    fell = f"{count(done.dropped, 'duplicate')} fell away ({kinds})"
    stay = f"{count(done.items, 'item')}: {done.items - done.dropped:,} stay"
    say(f"{stay}, {fell}, {duration(time.monotonic() - began)}.")
    say(f"Pairs: {done.pairs}   Next: shardmill verify {done.run.ledger.url}")
