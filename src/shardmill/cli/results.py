"""Commands for the result of a run: verify it, write it as one file, report on it, search it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from shardmill.core.console import print_checks, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import EXIT_FAILED
from shardmill.plan.options import CallOptions, option
from shardmill.plan.shared import OfRun, Printing

if TYPE_CHECKING:
    from shardmill.run.request import Request

OF_A_TABLE = "Tables only"


class OfResult(CallOptions):
    """A result: a run or a table."""

    run: str = option(
        ..., "The run folder, or a table: postgresql://HOST/DATABASE/TABLE.", metavar="RUN", argument=True
    )


class Trusting(CallOptions):
    """Permission to run what a folder or table names."""

    allow_code: bool = option(False, "Import code that the run or table names, and run its commands.")


class VerifyOptions(OfResult, Trusting, Printing):
    """What `verify` takes."""

    sample: str = option(
        "64", "Rows to recompute in float32: a number, a share such as 1%, or all.", metavar="N", common=True
    )
    rows: int | None = option(None, "Rows that the result must have.", metavar="N", common=True, ge=0)
    dims: int | None = option(None, "Dimensions that each vector must have.", metavar="N", common=True, ge=1)
    no_report: bool = option(False, "Do not keep the proof as report.json in the run folder.", common=True)
    no_source: bool = option(False, "Do not read the whole source again to compare every item.", common=True)


def verify(request: Request) -> None:
    from shardmill.run.result import Run
    from shardmill.run.table import open_result

    options: VerifyOptions = request.options
    result = open_result(options.run, allow_code=options.allow_code)
    asked: dict[str, Any] = {"sample": options.sample, "rows": options.rows, "dims": options.dims}
    if isinstance(result, Run):
        asked.update(source=not options.no_source, report=False)
    report = result.verify(**asked, quiet=options.as_json)
    if options.as_json:
        print_json(report.to_json())
    else:
        verdict = "Verified" if report.verified else "NOT verified"
        print_checks(
            ((check.ok, check.name, check.seen) for check in report.checks),
            f"{verdict}: {report.rows:,} rows, {report.errors:,} errors, {report.seconds} s.",
        )
    if isinstance(result, Run):
        if not options.no_report:
            result.keep_report(report)
        if not options.as_json:
            say(f"Next: {shell_command('report', options.run, '--out', 'report.html')}")
    if not report.verified:
        sys.exit(EXIT_FAILED)


class MergeOptions(OfRun, Printing):
    """What `merge` takes."""

    out: str = option(..., "A .parquet, .npy or .faiss file.", metavar="FILE", common=True)


def merge(request: Request) -> None:
    from shardmill.run.result import Run

    options: MergeOptions = request.options
    merged = Run(options.run).merge(options.out, quiet=options.as_json)
    if options.as_json:
        index = {} if merged.index is None else {"index": merged.index}
        print_json({"files": merged.files, "rows": merged.rows, "bytes": merged.bytes, **index})
    else:
        say(f"{merged.rows:,} rows, {merged.bytes:,} bytes: {', '.join(merged.files)}")


class ReportOptions(OfRun):
    """What `report` takes."""

    out: str = option("", "The file.", metavar="FILE", common=True, shown="report.html in the run folder")
    format: str = option("", "html, md or json.", metavar="FORMAT", common=True, shown="by the file's name")


def report(request: Request) -> None:
    from shardmill.run.result import Run

    say(Run(request.options.run).report(request.options.out, request.options.format))


class SearchOptions(OfResult, Trusting, Printing):
    """What `search` takes."""

    text: tuple[str, ...] = option(
        ..., "The text to search for; each text is one search.", metavar="TEXT…", argument=True, min_length=1
    )
    k: int = option(5, "Number of hits.", metavar="N", flags=("-k",), common=True)
    hybrid: bool = option(False, "Search by meaning and by words, fused by rank.", group=OF_A_TABLE, common=True)
    words: bool = option(False, "Search by words alone, with web search syntax.", group=OF_A_TABLE, common=True)
    where: str = option(
        "", "Only rows that match a condition: 'rating <= 2'.", group=OF_A_TABLE, metavar="SQL", common=True
    )
    sql: bool = option(False, "Print the SQL for psql and run nothing.", group=OF_A_TABLE, common=True)


def search(request: Request) -> None:
    from shardmill.run.table import Table, check_options, choose_mode, open_result

    options: SearchOptions = request.options
    texts = list(options.text)
    mode = choose_mode(options.hybrid, options.words)
    check_options(options.run, mode, options.where, options.sql)
    result = open_result(options.run, allow_code=options.allow_code)
    found: list[list[Any]]
    if not isinstance(result, Table):
        found = [*result.search_many(texts, options.k, quiet=options.as_json)]
    elif options.sql:
        print("\n\n".join(result.show_sql(texts, options.k, mode=mode, where=options.where)))
        return
    else:
        found = [*result.search_many(texts, options.k, mode=mode, where=options.where)]
    if options.as_json:
        answers = [{"text": t, "hits": [h.to_json() for h in hits]} for t, hits in zip(texts, found, strict=True)]
        print_json(answers if len(answers) > 1 else answers[0])
        return
    digits: Literal[3, 4] = 4 if options.hybrid else 3
    for query, hits in zip(texts, found, strict=True):
        print(query)
        for hit in hits:
            values = "  ".join(" ".join(str(v).split())[:100] for v in hit.values.values() if v not in (None, [], {}))
            print(f"  {hit.score:.{digits}f}  {values or f'row {hit.row}'}  {hit.span}".rstrip())
