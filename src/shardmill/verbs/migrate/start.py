"""Starts `migrate`, and says what it did."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from shardmill.core.console import clean, count, duration, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.results.comparison import Comparison
from shardmill.run.migrated import Migrated
from shardmill.run.migrating import Asked, migrate
from shardmill.run.reports.migration import figures_of, sentences_of
from shardmill.run.request import Request
from shardmill.verbs.migrate.options import MigrateOptions


def start(request: Request) -> Migrated:
    options: MigrateOptions = request.options
    asked = Asked(
        params=request.params,
        queries=options.queries,
        text=options.query_text,
        gold=options.gold,
        sample=options.sample,
        compare_only=options.compare_only,
    )
    return migrate(
        options.run,
        asked,
        request.execution,
        dry_run=options.dry_run,
        allow_code=options.allow_code,
        quiet=request.quiet,
    )


def show(request: Request, done: Migrated) -> None:
    if request.options.as_json:
        print_json(done.to_json())
        return
    would, has = ("would have", "to compute") if done.dry_run else ("has", "computed")
    price = ""
    if done.dry_run and done.seconds is not None:
        price = f", about {duration(done.seconds)}" + ("" if done.usd is None else f" (${done.usd:,.2f})")
    reused = f", {done.reused:,} reused" if done.reused else ""
    counted = ", computed before" if done.made_before else f": {done.computed:,} {has}{reused}{price}"
    say(f"Edition {done.edition} {would} {count(done.items, 'item')}{counted}.")
    if done.errors:
        listed = shell_command(
            "show", done.run if done.switched else f"{done.run}/editions/{done.edition:06d}", "--errors"
        )
        say(
            f"{count(done.errors, 'item')} failed and have no vector in edition {done.edition}, "
            f"{done.errors_before:,} in edition {done.before}: {listed}"
        )
    if done.comparison is not None:
        _show_comparison(done.comparison)
        say(f"Query by query: {done.report}")
    if done.switched:
        say(f"Edition {done.edition} is read from now on. Back: {shell_command('rollback', done.run)}")
    elif not done.dry_run:
        say(f"Edition {done.before} is still the one that is read. The same command without --compare-only switches.")


def _show_comparison(found: Comparison) -> None:
    table = Table("", "before", "after", box=None)
    for row in figures_of(found):
        table.add_row(*map(clean, row))
    Console(soft_wrap=True, highlight=False).print(table)
    for sentence in sentences_of(found):
        say(sentence)
