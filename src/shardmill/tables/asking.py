"""Questions over a run or a table: what is searched is made ready, and few questions are answered in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardmill import permission
from shardmill.console import say
from shardmill.passwords import clean_url, withhold
from shardmill.postgres.places import find_table, is_table
from shardmill.results.search import refuse_empty
from shardmill.run import Run
from shardmill.store import is_url
from shardmill.tasks import open_here

if TYPE_CHECKING:
    from shardmill.tasks.answer.rows import Answer


def make_searchable(place: str, *, quiet: bool = True) -> str:
    """Write the passages of a run if they are not there. Returns the place for a worker in any folder, no password."""
    if is_table(place):
        find_table(place)  # Keeps the password for the connections of this process and its workers.
        scheme, _, path = place.partition(":")
        return f"embedded:{Path(path).absolute()}" if scheme == "embedded" else withhold(place)
    if not is_url(place):
        place = str(Path(place).expanduser().absolute())
    Run(place).index(graph=False, quiet=quiet)
    return place


def ask(place: str, questions: Sequence[str], *, quiet: bool = True, **params: Any) -> list[Answer]:
    """Answer questions over a run or a table, in this process; `params` are those of the answer task."""
    from shardmill.tasks.answer import AnswerTask

    refuse_empty(questions)
    if params.get("endpoint"):
        url, key = clean_url(params["endpoint"]), params.get("key_variable") or permission.KEY_VARIABLE
        permission.allow([permission.key_name(key, url)])
        params["endpoint"] = url
    task = AnswerTask(over=make_searchable(place, quiet=quiet), **params)
    task.fingerprint()
    device = open_here(task, precise=False)
    if not quiet:
        say(f"Answering with the models on {device.name}.")
    return task.answer(list(questions))
