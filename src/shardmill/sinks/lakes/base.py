"""What the lake formats share: workers stage data files, and one process commits many of them at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyarrow as pa

from shardmill.core.errors import StoreError, UsageError
from shardmill.sinks.base import Delivery, how_to_go_on


class LakeDelivery(Delivery):
    """A table of files, whose latest version says which of them are in it."""

    stages = True

    @abstractmethod
    def _find(self) -> Any:
        """The table as it is now; None if there is none."""

    def _open(self) -> Any:
        if (found := self._find()) is None:
            raise StoreError(f"{self.address} is gone.", hint="Deliver the run again: shardmill load --from RUN")
        return found

    def _keys_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The keys of rows, by which they are found; a type whose values the formats compare differently is refused."""
        keys = rows.select(list(self.shipment.key))
        for field in keys.schema:
            kind = field.type
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UsageError(
                    f"{self.address}: rows cannot be repaired by {field.name}, which is {kind}.",
                    hint="Deliver the run to another place: it is created.",
                )
        return keys

    def _lost(self, error: Exception) -> StoreError:
        # Lance adds the place in its own source.
        reason = str(error).partition("\n")[0].partition(", /")[0].rstrip(". ")
        return StoreError(f"{self.address}: {reason}.", hint=how_to_go_on(reason))
