"""The verb that calls a function of the user's with every item."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, takes
from shardmill.cli.specs import read_options
from shardmill.cli.tasks import FAMILY, carry_out


def add_to(app: typer.Typer) -> None:
    app.command("apply", cls=Verb, rich_help_panel=FAMILY, epilog=_APPLY)(apply)


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

    work, execution = read_options(spec, {**options, "text": text})
    own = {"call": call or None, "column": column, "batch": batch}
    arguments = work.pop("params", {})
    kept = {
        name: arguments.pop(name) for name in ("call", "code", "fields", "columns", "arguments") if name in arguments
    }
    work["params"] = {**kept, **{name: value for name, value in own.items() if value}}
    work, execution = apply_work(work, execution, arguments)
    carry_out(work, execution, out, resume, as_json)
