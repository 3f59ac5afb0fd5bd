"""The records of a run folder: plan, commits, leases, heartbeats, suspects. No other code writes them.

Only a commit proves progress. Everything else here is a hint that saves time. A `Ledger` consists of parts with one job
each: `commits`, `segments`, `leases`, `branch`, `workers`, `suspects`, `errors`, `kept`, `notes`, `steps` and `state`,
over one `folder`.
"""

from __future__ import annotations

from shardmill.ledger.kept import KeptName, KeptRecords, next_kept
from shardmill.ledger.ledger import Ledger
from shardmill.ledger.process import name_person, name_process, process_alive
from shardmill.ledger.progress import Progress, Search, find_crash_loop, read_search
from shardmill.ledger.record import Assignment, Claim, Commit, DoneShard, KeptRows, Lease, RunForecast, Step, Suspects
from shardmill.ledger.state import FAILED, STOPPED, RunState, started_over
from shardmill.ledger.worker import idle_s, is_live, is_vanished, was_told_to_stop

__all__ = [
    "FAILED",
    "STOPPED",
    "Assignment",
    "Claim",
    "Commit",
    "DoneShard",
    "KeptName",
    "KeptRecords",
    "KeptRows",
    "Lease",
    "Ledger",
    "Progress",
    "RunForecast",
    "RunState",
    "Search",
    "Step",
    "Suspects",
    "find_crash_loop",
    "idle_s",
    "is_live",
    "is_vanished",
    "name_person",
    "name_process",
    "next_kept",
    "process_alive",
    "read_search",
    "started_over",
    "was_told_to_stop",
]
