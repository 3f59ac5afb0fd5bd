"""Keeps how the refreshes of a run go, for people and machines that watch it. Whoever starts them, it is noted here.

Design: docs/design/editions.md
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ParamSpec

from shardmill.core.errors import (
    MissingExtra,
    RunExists,
    ShardmillError,
    SpecError,
    TaskError,
    UsageError,
)
from shardmill.ledger import Editions, EditionSummary, Ledger, RefreshState
from shardmill.run.refreshed import Refreshed

_STAYS = (
    "The edition before stays. Once its cause is mended or has passed, the same command makes the next one from the "
    "source as it is then."
)
_Given = ParamSpec("_Given")
# Errors that say that the request itself cannot be carried out, by their exact classes.
_REFUSALS = (UsageError, SpecError, MissingExtra, TaskError)


def is_refusal(error: ShardmillError) -> bool:
    """Whether a refresh cannot be made however often it is tried: not for the state of a source, a store or a model."""
    return type(error) in _REFUSALS


def recorded(refresh: Callable[_Given, Refreshed]) -> Callable[_Given, Refreshed]:
    """Note how each call of `refresh` ends, in the folder of its run, which is its first argument, `place`."""

    @functools.wraps(refresh)
    def call(*args: _Given.args, **how: _Given.kwargs) -> Refreshed:
        began, place = time.time(), args[0] if args else how["place"]
        try:
            done = refresh(*args, **how)
        except ShardmillError as error:
            # Another refresh that is at work is no failure.
            if not (how.get("dry_run") or is_refusal(error) or isinstance(error, RunExists)):
                _change(place, functools.partial(_failed, error=error))
            # Nobody who refreshes a run should be told to start it over: that deletes its editions.
            if "--fresh" in error.hint and not is_refusal(error):
                error.hint = _STAYS
            raise
        if not done.dry_run:
            _change(place, lambda state: _succeeded(state, done, began))
        return done

    return call


def note_behind(editions: Editions) -> None:
    """Note that the source holds something else than the newest edition, unless that is known."""
    _change(editions.run, lambda state: replace(state, behind_since=state.behind_since or time.time()))


def note_compared(base: Ledger, seen: str) -> None:
    """Note that files in this state were read, and hold what the edition was made from."""
    _change(base.url, lambda state: replace(state, compared=seen))


def was_compared(base: Ledger, seen: str) -> bool:
    noted = Ledger(Editions(base.url).open(1)).notes.refreshes()
    return noted is not None and noted.compared == seen


def note_summary(ledger: Ledger, done: Refreshed) -> None:
    """Keep beside an edition what the refresh that made it did."""
    same = {name: getattr(done, name) for name in EditionSummary.__slots__ if name != "at"}
    ledger.notes.put_summary(EditionSummary(at=time.time(), **same))


def _failed(state: RefreshState, error: ShardmillError) -> RefreshState:
    return replace(state, failures=state.failures + 1, failed_at=time.time(), error=error.message)


def _succeeded(state: RefreshState, done: Refreshed, began: float) -> RefreshState:
    made_at = time.time() if done.changed else state.made_at if state.edition == done.edition else None
    return RefreshState(edition=done.edition, made_at=made_at, fresh_at=began, compared=state.compared)


def _change(place: Any, change: Callable[[RefreshState], RefreshState]) -> None:
    """Change the note, if the folder holds a run. A note that cannot be written fails no refresh."""
    with suppress(ShardmillError):
        root = Ledger(Editions(place).open(1))
        if root.store.head("plan.json") is not None:
            root.notes.put_refreshes(change(root.notes.refreshes() or RefreshState()))
