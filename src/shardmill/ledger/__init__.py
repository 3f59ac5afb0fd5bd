"""The records of a run folder: plan, commits, leases, heartbeats, suspects. No other code writes them.

Only a commit proves progress. Everything else here is a hint that saves time. A `Ledger` consists of parts with one job
each: `commits`, `segments`, `leases`, `branch`, `workers`, `suspects`, `errors` and `notes`, over one `folder`.
"""

from __future__ import annotations

from shardmill.ledger.ledger import Ledger
from shardmill.ledger.process import name_process, process_alive
from shardmill.ledger.record import Assignment, Claim, Commit, Lease, Progress, RunForecast, Suspects
from shardmill.ledger.worker import is_vanished

__all__ = [
    "Assignment",
    "Claim",
    "Commit",
    "Lease",
    "Ledger",
    "Progress",
    "RunForecast",
    "Suspects",
    "is_vanished",
    "name_process",
    "process_alive",
]
