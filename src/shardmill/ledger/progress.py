"""Whether workers that die make progress: one judgement, for parents that see them die and for workers that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.core.errors import WorkerFailed
from shardmill.ledger.ledger import Ledger
from shardmill.ledger.worker import got_on, is_live, was_told_to_stop

_WIDEST = (1 << 62, 0)
# Each record is one request to the store. A sample shows whether it is worth reading all.
_ASKED = 32
# Heartbeats are at most 10 s apart, so a worker may have lived that much longer.
_BEAT_S = 10.0

# How far the search for rows that kill workers has come: rows convicted, and the fewest rows that are suspect.
Search = tuple[int, tuple[int, int]]


def read_search(ledger: Ledger) -> Search:
    suspects = ledger.suspects.read()
    narrowest = min(((len(s.rows), -s.strikes) for s in suspects if s.rows), default=_WIDEST)
    return sum(len(s.poison) for s in suspects), narrowest


class Progress:
    """Tells for one death after another whether the worker made progress: a shard committed, a checkpoint kept, a row
    convicted, or fewer suspect rows than ever before. Each can happen only a limited number of times."""

    def __init__(self) -> None:
        self._convicted, self._narrowest = 0, _WIDEST

    def made(self, search: Search, got_on: bool) -> bool:
        """Whether a dead worker made progress: whether it `got_on` itself, or by the search after its death."""
        convicted, narrowest = search
        if convicted > self._convicted:
            self._convicted, self._narrowest = convicted, narrowest
            return True
        if narrowest < self._narrowest:
            self._narrowest = narrowest
            return True
        return got_on


def find_crash_loop(ledger: Ledger, worker: str, forgiven: int, search: Search) -> WorkerFailed | None:
    """Why it is no use to start workers for a run, from its folder alone; None while there is hope.

    Called by a `worker` that begins and has no parent to judge it. More than `forgiven` workers died one after another
    without progress, since the run was last wanted, and no living worker has outlived them.
    """
    some, _ = ledger.workers.sample(_ASKED)
    if _find_row(ledger, some, worker, forgiven, search) is None:
        return None
    row = _find_row(ledger, ledger.workers.read(), worker, forgiven, search)
    if row is None:
        return None
    last = row[-1]
    said = f": {last['error']}" if last.get("error") else ", without a word"
    return WorkerFailed(
        f"{len(row)} workers died one after another without progress; the last, {last['id']}{said}",
        hint="See the workers' logs. Committed shards are kept.",
    )


def _find_row(
    ledger: Ledger, beats: Sequence[Mapping[str, Any]], me: str, forgiven: int, search: Search
) -> list[Mapping[str, Any]] | None:
    """The workers that died one after another without progress, if they are too many."""
    now = ledger.clock()
    others = [b for b in beats if b["id"] != me]
    live = [b for b in others if is_live(b, now)]
    dead = [b for b in others if b["state"] != "done" and not was_told_to_stop(b) and not is_live(b, now)]
    since = max([ledger.state.look().at, *(b["at"] for b in others if got_on(b))])
    row: list[Mapping[str, Any]] = []
    for beat in sorted(dead, key=lambda b: b["at"]):
        if beat["started"] >= (row[-1]["at"] if row else since):
            row.append(beat)
    if not row or any(_lived_s(b) > max(map(_lived_s, row)) + _BEAT_S for b in live):
        return None
    progress, deaths = Progress(), 0
    searches = [_search_of(b) for b in row]
    progress.made(searches[0], False)
    for after in [*searches[1:], search]:
        deaths = 1 if progress.made(after, False) else deaths + 1
    return row[-deaths:] if deaths > forgiven else None


def _lived_s(beat: Mapping[str, Any]) -> float:
    return float(beat["at"] - beat["started"])


def _search_of(beat: Mapping[str, Any]) -> Search:
    """The search when a worker began; version 0.1.0 does not say."""
    convicted, narrowest = beat.get("search") or (0, _WIDEST)
    return convicted, (narrowest[0], narrowest[1])
