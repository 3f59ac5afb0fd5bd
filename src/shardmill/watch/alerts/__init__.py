"""Tells people and programs what happens to runs: rules over statuses, alerts that are not lost, targets.

`AlertDesk` is given each status that the monitor reads. The file of the alerts says who is told what; a run folder
never does.

Design: docs/design/watching.md
"""

from __future__ import annotations

from shardmill.watch.alerts.desk import AlertDesk
from shardmill.watch.alerts.file import AlertsFile, read_alerts

__all__ = ["AlertDesk", "AlertsFile", "read_alerts"]
