"""Summarize texts: by sentences of their own, or by what a model writes.

task = SummarizeTask(sentences=3)
task.open(Device("cpu", "cpu", threads=4))
"""

from __future__ import annotations

from shardmill.verbs.summarize.base import SummarizeTask
from shardmill.verbs.summarize.params import SummarizeParams

__all__ = ["SummarizeParams", "SummarizeTask"]
