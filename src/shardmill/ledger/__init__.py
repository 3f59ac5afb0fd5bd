"""The records of a run folder: plan, commits, leases, heartbeats, suspects. No other code writes them.

Only a commit proves progress. Everything else here is a hint that saves time. A `Ledger` consists of parts with one job
each: `commits`, `segments`, `leases`, `branch`, `workers`, `history`, `suspects`, `errors`, `kept`,
`checkpoints`, `reports`, `published`, `gangs`, `notes`, `steps`, `staff`, `state` and `overview`, over one `folder`.

Design: docs/design/commits-and-leases.md, docs/design/many-workers.md
"""

from __future__ import annotations

from shardmill.ledger.checkpoint import ItemCheckpoints, StoredCheckpoint
from shardmill.ledger.editions import MIGRATE, ORIGIN, REFRESH, Edition, Editions
from shardmill.ledger.history import History, HistoryPoint
from shardmill.ledger.kept import KeptName, KeptRecords, next_kept
from shardmill.ledger.ledger import Ledger
from shardmill.ledger.overview import is_large, view_every_s
from shardmill.ledger.process import name_person, name_process, process_alive
from shardmill.ledger.progress import Progress, Search, find_crash_loop, read_search
from shardmill.ledger.published import MODEL
from shardmill.ledger.record import (
    Assignment,
    Claim,
    Commit,
    DoneShard,
    EditionSummary,
    Gang,
    KeptRows,
    Lease,
    RefreshState,
    RunForecast,
    Step,
    Suspects,
)
from shardmill.ledger.report import ItemReport, ItemReports
from shardmill.ledger.staff import StaffLog
from shardmill.ledger.state import DONE, FAILED, STOPPED, WANTED, RunState, started_over
from shardmill.ledger.view import COMMITTED, RunView, Totals, count_states, mark_states, merge_reasons
from shardmill.ledger.worker import ENDED, got_on, idle_s, is_live, is_vanished, was_told_to_stop

__all__ = [
    "COMMITTED",
    "DONE",
    "ENDED",
    "FAILED",
    "MIGRATE",
    "MODEL",
    "ORIGIN",
    "REFRESH",
    "STOPPED",
    "WANTED",
    "Assignment",
    "Claim",
    "Commit",
    "DoneShard",
    "Edition",
    "EditionSummary",
    "Editions",
    "Gang",
    "History",
    "HistoryPoint",
    "ItemCheckpoints",
    "ItemReport",
    "ItemReports",
    "KeptName",
    "KeptRecords",
    "KeptRows",
    "Lease",
    "Ledger",
    "Progress",
    "RefreshState",
    "RunForecast",
    "RunState",
    "RunView",
    "Search",
    "StaffLog",
    "Step",
    "StoredCheckpoint",
    "Suspects",
    "Totals",
    "count_states",
    "find_crash_loop",
    "got_on",
    "idle_s",
    "is_large",
    "is_live",
    "is_vanished",
    "mark_states",
    "merge_reasons",
    "name_person",
    "name_process",
    "next_kept",
    "process_alive",
    "read_search",
    "started_over",
    "view_every_s",
    "was_told_to_stop",
]
