"""Few questions over a run or a table, answered in this process, which keeps the models open for the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from shardmill.core import permission
from shardmill.core.console import say
from shardmill.core.passwords import clean_url
from shardmill.results.search import refuse_empty
from shardmill.run.searchable import make_searchable
from shardmill.tasks import open_task
from shardmill.tasks.kept import KEPT

if TYPE_CHECKING:
    from shardmill.verbs.answer.rows import Answer
    from shardmill.verbs.answer.task import AnswerTask


def ask(place: str, questions: Sequence[str], *, quiet: bool = True, **params: Any) -> list[Answer]:
    """Answer questions over a run or a table, in this process; `params` are those of the answer task."""
    refuse_empty(questions)
    if params.get("endpoint"):
        url, key = clean_url(params["endpoint"]), params.get("key_variable") or permission.KEY_VARIABLE
        permission.allow([permission.key_name(key, url)])
        params["endpoint"] = url
    params["over"] = make_searchable(place, quiet=quiet)
    params |= open_task("answer", params).follow_model()
    with KEPT.use("answer", params, precise=False) as (task, device):
        if not quiet:
            say(f"Answering with the models on {device.name}.")
        return cast("AnswerTask", task).answer(list(questions))
