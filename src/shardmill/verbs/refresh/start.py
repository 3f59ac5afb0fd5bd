"""Starts `refresh`, and says what it did."""

from __future__ import annotations

import json
from functools import partial

from shardmill.core.console import print_json, say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import UsageError
from shardmill.plan.limits import parse_duration
from shardmill.run.pruning import prune
from shardmill.run.recurring import refresh_every
from shardmill.run.refreshed import Refreshed
from shardmill.run.refreshing import refresh
from shardmill.run.request import Request
from shardmill.verbs.refresh.options import RefreshOptions


def start(request: Request) -> Refreshed:
    options: RefreshOptions = request.options
    told = set[str]()

    def once() -> Refreshed:
        done = refresh(
            options.run,
            request.execution,
            telling=request.work,
            dry_run=options.dry_run,
            allow_shrink=options.allow_shrink,
            allow_code=options.allow_code,
            quiet=request.quiet,
        )
        if options.keep_editions and not options.dry_run:
            held = prune(options.run, options.keep_editions).describe_held()
            for line in () if request.quiet else (each for each in held if each not in told):
                say(line)
            told.update(held)
        return done

    if options.every is None:
        return once()
    if options.dry_run:
        raise UsageError("--dry-run counts once.", hint="Leave out --every.")
    tell = (lambda done: None) if request.quiet else partial(_tell, request)
    return refresh_every(parse_duration(options.every), once, tell)


def _tell(request: Request, done: Refreshed) -> None:
    """Say what one of many refreshes did; as JSON, in a line."""
    if request.options.as_json:
        print(json.dumps(done.to_json()), flush=True)
    else:
        show(request, done)


def show(request: Request, done: Refreshed) -> None:
    if request.options.as_json:
        print_json(done.to_json())
        return
    say(done.describe())
    if done.changed and not (done.dry_run or request.options.every):
        look = [shell_command("show", done.run, "--errors")] if done.errors else []
        code = ["--allow-code"] if request.options.allow_code else []
        say(f"Next: {'   '.join([*look, shell_command('verify', done.run, *code)])}")
