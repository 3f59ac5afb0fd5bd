"""Verbs for the result of a run: verify it, write it as one file, search it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

import shardmill
from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json
from shardmill.console import say

FAMILY = "Use the result"
OF_A_TABLE = "Tables only"


Texts = Annotated[list[str], o.argument("TEXT", "The text to search for; each text is one search.")]
Hybrid = Annotated[bool, o.option(OF_A_TABLE, "--hybrid", help="Search by meaning and by words, fused by rank.")]
Words = Annotated[bool, o.option(OF_A_TABLE, "--words", help="Search by words alone, with web search syntax.")]
Where = Annotated[str, o.option(OF_A_TABLE, metavar="SQL", help="Only rows that match a condition: 'rating <= 2'.")]
Sql = Annotated[bool, o.option(OF_A_TABLE, "--sql", help="Print the SQL for psql and run nothing.")]


def add_to(app: typer.Typer) -> None:
    app.command("verify", cls=Verb, rich_help_panel=FAMILY, epilog=_VERIFY)(verify)
    app.command("merge", cls=Verb, rich_help_panel=FAMILY, epilog=_MERGE)(merge)
    app.command("report", cls=Verb, rich_help_panel=FAMILY, epilog=_REPORT)(report)
    app.command("search", cls=Verb, rich_help_panel=FAMILY, epilog=_SEARCH)(search)


_VERIFY = """\
shardmill verify runs/reviews
shardmill verify runs/wiki --rows 250010 --dims 1024
shardmill verify postgresql:///docs/documents"""


def verify(
    run: o.Result,
    sample: Annotated[int, typer.Option(min=0, help="Rows to recompute in float32; 0 for none.")] = 64,
    rows: Annotated[int | None, typer.Option(min=0, help="Rows that the result must have.")] = None,
    dims: Annotated[int | None, typer.Option(min=1, help="Dimensions that each vector must have.")] = None,
    allow_code: o.AllowCode = False,
    as_json: o.AsJson = False,
) -> None:
    """Verify a result: commits, digests, counts, ids, vectors, and a recomputed sample.

    For a table: columns, key, rows, vectors, index recall, and a recomputed sample.
    """
    from shardmill.tables.table import open_result

    result = open_result(run, allow_code=allow_code)
    report = result.verify(sample=sample, rows=rows, dims=dims, quiet=as_json)
    if as_json:
        print_json(report.to_json())
    else:
        console = Console(highlight=False, soft_wrap=True)
        for check in report.checks:
            console.print(f"  [{'green' if check.ok else 'red'}]{'ok  ' if check.ok else 'FAIL'}[/] ", end="")
            console.print(f"{check.name:<10} {check.seen}", markup=False)
        verdict = "Verified" if report.verified else "NOT verified"
        console.print(f"{verdict}: {report.rows:,} rows, {report.errors:,} errors, {report.seconds} s.", markup=False)
        if isinstance(result, shardmill.Run):
            say(f"Next: shardmill report {run} --out report.html")
    if not report.verified:
        raise typer.Exit(1)


_MERGE = """\
shardmill merge runs/reviews --out reviews.parquet
shardmill merge runs/reviews --out vectors.npy"""


def merge(
    run: o.Run,
    out: Annotated[str, typer.Option(metavar="FILE", help="A .parquet or .npy file.", show_default=False)],
    as_json: o.AsJson = False,
) -> None:
    """Write the result as one file, in source order."""
    merged = shardmill.Run(run).merge(out, quiet=as_json)
    if as_json:
        print_json({"files": merged.files, "rows": merged.rows, "bytes": merged.bytes})
    else:
        say(f"{merged.rows:,} rows, {merged.bytes:,} bytes: {', '.join(merged.files)}")


_REPORT = """\
shardmill report runs/reviews --out report.html
shardmill report runs/reviews --out report.md
shardmill report s3://bucket/runs/reviews"""


def report(
    run: o.Run,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Default: report.html in the run folder.")] = "",
    format: Annotated[str, typer.Option("--format", metavar="html|md|json", help="Default: by the file's name.")] = "",
) -> None:
    """Write one page about a run: what ran, on what, how long, what it cost, what failed, and the proof."""
    say(shardmill.Run(run).report(out, format))


_SEARCH = """\
shardmill search runs/reviews "battery dies after an hour"
shardmill search embedded:shop/user_reviews "battery dies fast" --hybrid --where "rating <= 2\""""


def search(
    run: o.Result,
    text: Texts,
    k: Annotated[int, typer.Option("-k", help="Number of hits.")] = 5,
    hybrid: Hybrid = False,
    words: Words = False,
    where: Where = "",
    sql: Sql = False,
    allow_code: o.AllowCode = False,
    as_json: o.AsJson = False,
) -> None:
    """Find the rows nearest in meaning."""
    from shardmill.tables.table import Table, check_options, choose_mode, open_result

    mode = choose_mode(hybrid, words)
    check_options(run, mode, where, sql)
    result = open_result(run, allow_code=allow_code)
    found: list[list[Any]]
    if not isinstance(result, Table):
        found = [*result.search_many(text, k, quiet=as_json)]
    elif sql:
        print("\n\n".join(result.show_sql(text, k, mode=mode, where=where)))
        return
    else:
        found = [*result.search_many(text, k, mode=mode, where=where)]
    if as_json:
        answers = [{"text": t, "hits": [h.to_json() for h in hits]} for t, hits in zip(text, found, strict=True)]
        print_json(answers if len(answers) > 1 else answers[0])
        return
    for query, hits in zip(text, found, strict=True):
        print(query)
        for hit in hits:
            values = "  ".join(" ".join(str(v).split())[:100] for v in hit.values.values() if v not in (None, [], {}))
            print(f"  {hit.score:.{4 if hybrid else 3}f}  {values or f'row {hit.row}'}  {hit.span}".rstrip())
