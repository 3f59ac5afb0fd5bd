"""Summarize texts: by sentences of their own, or by what a model writes.

task = SummarizeTask(sentences=3)
task.open(Device("cpu", "cpu", threads=4))
"""

from __future__ import annotations

from shardmill.tasks.summarize.base import SummarizeTask
from shardmill.tasks.summarize.params import SummarizeParams

__all__ = ["SummarizeParams", "SummarizeTask"]
