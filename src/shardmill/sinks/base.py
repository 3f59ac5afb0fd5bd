"""The contract of a sink: rows of one shard are staged, then committed as a whole or not at all."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from shardmill.ledger import Claim, Commit


class Staged(Protocol):
    """The rows of one attempt at one shard."""

    def write(self, rows: pa.Table) -> None: ...
    def seal(self) -> None: ...
    def commit(self, record: Commit) -> bool: ...
    def abandon(self) -> None: ...


class Sink(Protocol):
    def begin(self, claim: Claim) -> Staged: ...
