"""Starts `peek`."""

from __future__ import annotations

from shardmill.run.request import Request
from shardmill.sources import Fields
from shardmill.verbs.peek.lengths import Counter
from shardmill.verbs.peek.look import Peek, look
from shardmill.verbs.peek.options import PeekOptions


def start(request: Request) -> Peek:
    options: PeekOptions = request.options
    fields = Fields(options.text, options.id, query=options.query, where=options.where, take=options.take)
    counter = Counter(options.model, prompt=options.prompt, max_tokens=options.max_tokens)
    return look(options.source, fields, counter, format=options.format, limit=options.limit, items=options.items)
