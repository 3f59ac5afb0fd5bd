"""The options of `sample`."""

from __future__ import annotations

from shardmill.plan.options import CallOptions, option


class SampleOptions(CallOptions):
    """What `sample` takes."""

    file: str = option(..., "The file to write.", metavar="FILE", argument=True)
