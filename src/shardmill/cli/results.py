"""Commands for the result of a run: verify it, write it as one file, report on it, search it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Literal

from shardmill.core.console import print_checks, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import EXIT_FAILED, UsageError
from shardmill.plan.options import RESULT, WRITTEN, CallOptions, option
from shardmill.plan.shared import OfRun, Printing, Trusting
from shardmill.plan.values import NAMES, Columns, Condition, Place, Places

if TYPE_CHECKING:
    from shardmill.run.request import Request

OF_A_RUN, OF_A_TABLE = "Runs only", "Tables only"
# As a shell says of a program that a closed pipe has ended.
_PIPE_CLOSED = 128 + signal.SIGPIPE
# More files than these are told by their number.
_NAMED_FILES = 3


class OfResult(CallOptions):
    """A result: a run or a table."""

    run: str = option(
        ..., "The run folder, or a table: postgresql://HOST/DATABASE/TABLE.", metavar="RUN", argument=True
    )


class VerifyOptions(OfResult, Trusting, Printing):
    """What `verify` takes."""

    sample: str = option(
        "64", "Rows to recompute in float32: a number, a share such as 1%, or all.", metavar="N", common=True
    )
    rows: int | None = option(None, "Rows that the result must have.", metavar="N", common=True, ge=0)
    dims: int | None = option(None, "Dimensions that each vector must have.", metavar="N", common=True, ge=1)
    to: Places = option(
        (),
        "Compare this store with the run, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.",
        metavar="ADDRESS",
        common=True,
        accepts=NAMES,
        repeats=True,
    )
    no_report: bool = option(False, "Do not keep the proof as report.json in the run folder.", common=True)
    no_source: bool = option(False, "Do not read the whole source again to compare every item.", common=True)


def verify(request: Request) -> None:
    from shardmill.run.result import Run
    from shardmill.run.table import open_result

    options: VerifyOptions = request.options
    result = open_result(options.run, allow_code=options.allow_code)
    asked: dict[str, Any] = {"sample": options.sample, "rows": options.rows, "dims": options.dims}
    if isinstance(result, Run):
        asked.update(source=not options.no_source, report=False, to=options.to)
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

    out: Place = option(
        ...,
        "A file by its suffix, a folder of such files, or - for stdout: .parquet, .npy, .jsonl, .csv, .tsv, .arrow, "
        ".lance, .faiss; also .jsonl.gz and .jsonl.zst.",
        group=WRITTEN,
        metavar="FILE",
        common=True,
    )
    format: str = option(
        "",
        "The format, if the name does not say it: csv, jsonl.gz.",
        group=WRITTEN,
        metavar="FORMAT",
        common=True,
        shown="by the name; jsonl on stdout",
    )
    rows_per_file: int | None = option(
        None, "Write a folder of files with N rows each.", group=WRITTEN, metavar="N", common=True, ge=1
    )
    partition_by: str = option(
        "", "Write a folder COLUMN=VALUE/ for each value of a column.", group=WRITTEN, metavar="COLUMN", common=True
    )
    where: Condition = option(
        "", 'Only rows that match a condition: "overall <= 2".', group=RESULT, metavar="CONDITION", common=True
    )
    columns: Columns = option(
        (), "Only these columns, in this order, after `row`.", group=RESULT, metavar="COLUMNS", common=True
    )
    rename: tuple[str, ...] = option(
        (), "Another name for a column; repeatable.", group=RESULT, metavar="OLD=NEW", common=True, repeats=True
    )


def merge(request: Request) -> None:
    from shardmill.run.request import key_values
    from shardmill.run.result import Run

    options: MergeOptions = request.options
    if options.out == "-" and options.as_json:
        raise UsageError("--json prints to stdout, and so does --out -.", hint="Give one of them.")
    try:
        merged = Run(options.run).merge(
            options.out,
            format=options.format,
            where=options.where,
            columns=options.columns,
            rename=dict(key_values(options.rename, "--rename", "id=key")),
            rows_per_file=options.rows_per_file,
            partition_by=options.partition_by,
            quiet=options.as_json,
        )
    except BrokenPipeError:
        # Whoever reads the pipe has enough. What waits for it would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_PIPE_CLOSED)
    if options.as_json:
        index = {} if merged.index is None else {"index": merged.index}
        print_json({"files": merged.files, "rows": merged.rows, "bytes": merged.bytes, **index})
        return
    place = options.out if len(merged.files) > _NAMED_FILES else ", ".join(merged.files)
    several = f" ({len(merged.files):,} files)" if len(merged.files) > _NAMED_FILES else ""
    say(f"{merged.rows:,} rows, {merged.bytes:,} bytes: {place}{several}")


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
        (), "The text to search for; each text is one search.", metavar="TEXT…", argument=True
    )
    picture: tuple[str, ...] = option(
        (),
        "In a run over pictures: the file of a picture to search for; repeatable.",
        metavar="FILE",
        group=OF_A_RUN,
        repeats=True,
    )
    k: int = option(5, "Number of hits.", metavar="N", flags=("-k",), common=True)
    where: str = option(
        "",
        "Only rows that match a condition on the id and kept columns, or on those of a table: 'overall <= 2'.",
        metavar="SQL",
        common=True,
    )
    words: bool = option(
        False, "Search by words alone: any of them, by BM25; in a table with web search syntax.", common=True
    )
    hybrid: bool = option(False, "Search by meaning and by words, fused by rank.", common=True)
    language: str = option(
        "",
        "With --words or --hybrid: the language of the texts, such as de or german; mul for several.",
        metavar="LANGUAGE",
        shown="recorded with the index, else told from a sample",
    )
    beside: str = option(
        "", "Another run over the same items, whose hits are fused with these by rank.", metavar="RUN", group=OF_A_RUN
    )
    rerank: str = option(
        "", "Another run over the same items, whose vectors rank the best 100 anew.", metavar="RUN", group=OF_A_RUN
    )
    sql: bool = option(False, "Print the SQL for psql and run nothing.", group=OF_A_TABLE, common=True)


def search(request: Request) -> None:
    from shardmill.core.fusion import choose_mode
    from shardmill.run.table import Table, open_result, refuse_sql

    options: SearchOptions = request.options
    texts = [*options.text, *options.picture]
    if bool(options.text) == bool(options.picture):
        raise UsageError("Give either a text to search for, or --picture FILE.")
    mode = choose_mode(options.hybrid, options.words)
    if options.sql:
        refuse_sql(options.run)
    result = open_result(options.run, allow_code=options.allow_code)
    if options.language and isinstance(result, Table):
        raise UsageError("A table has the language that it was loaded with: `language` in its spec.")
    if (options.beside or options.rerank) and isinstance(result, Table):
        raise UsageError("A table is searched alone: leave out --beside and --rerank.")
    found: list[list[Any]]
    if options.picture:
        if isinstance(result, Table) or options.words or options.hybrid or options.beside or options.rerank:
            raise UsageError("--picture searches a run alone, by its vectors.", hint="Leave out the other ways.")
        found = result.search_pictures(options.picture, options.k, options.where)
    elif not isinstance(result, Table):
        how: dict[str, Any] = {"words": options.words, "hybrid": options.hybrid, "language": options.language}
        how |= {"beside": options.beside or None, "rerank": options.rerank or None}
        found = [*result.search_many(texts, options.k, where=options.where, **how, quiet=options.as_json)]
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
