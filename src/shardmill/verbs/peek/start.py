"""Starts `peek`, and says in a line what `plan` shows of it."""

from __future__ import annotations

from shardmill.core.errors import ShardmillError
from shardmill.core.template import NO_TEXT
from shardmill.plan.spec import Work
from shardmill.run.request import Request
from shardmill.sources import Fields
from shardmill.verbs.peek.lengths import Counter
from shardmill.verbs.peek.look import Peek, look
from shardmill.verbs.peek.options import PeekOptions


def start(request: Request) -> Peek:
    options: PeekOptions = request.options
    fields = Fields(
        options.text,
        options.id,
        query=options.query,
        config=options.config,
        split=options.split,
        where=options.where,
        take=options.take,
    )
    counter = Counter(options.model, prompt=options.prompt, max_tokens=options.max_tokens)
    return look(options.source, fields, counter, format=options.format, limit=options.limit, items=options.items)


def describe_items(work: Work) -> str:
    """How many items a run has and how long they are; "" if they are no texts, or cannot be looked at."""
    if work.items or work.group_by or work.text == NO_TEXT:
        return ""
    params = {name: work.params.get(name) for name in ("prompt", "max_tokens")}
    try:
        counter = Counter(str(work.params.get("model") or ""), **params)
        return look(work.source, Fields.of(work), counter, format=work.format, limit=work.limit, items=0).in_a_line()
    except ShardmillError:
        return ""
