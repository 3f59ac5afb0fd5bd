"""A sample of real text, made of what every Python brings: the docstrings of its standard library."""

from __future__ import annotations

from shardmill.plugins.base import RUNS, Verb

VERB = Verb(
    name="sample",
    summary="Write a sample of real text, to try commands on: docstrings of Python's standard library.",
    about="One line of JSON per docstring: `name`, of the function, class or module, and `doc`, its first two "
    "paragraphs. Nothing is downloaded. The lines depend on the version of Python alone; 3.11 has about 8,000.",
    family=RUNS,
    examples=("shardmill sample docstrings.jsonl",),
    options="shardmill.verbs.sample.options:SampleOptions",
    start="shardmill.verbs.sample.start:start",
)
