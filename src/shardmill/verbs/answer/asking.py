"""Few questions over a run or a table, answered in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardmill.core import permission
from shardmill.core.console import say
from shardmill.core.passwords import clean_url
from shardmill.results.search import refuse_empty
from shardmill.run.searchable import make_searchable
from shardmill.tasks import open_here

if TYPE_CHECKING:
    from shardmill.verbs.answer.rows import Answer


def ask(place: str, questions: Sequence[str], *, quiet: bool = True, **params: Any) -> list[Answer]:
    """Answer questions over a run or a table, in this process; `params` are those of the answer task."""
    from shardmill.verbs.answer.task import AnswerTask

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
