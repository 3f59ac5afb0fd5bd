"""A folder of JSON lines as a sink: a lot is a file, which counts once a mark with the lot's number names it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from shardmill.core.errors import UsageError
from shardmill.sinks.base import Delivery, Lot, Shipment


class OutboxDelivery(Delivery):
    """Files of rows in `rows/`, and in `marks/` one small file per lot, created only if it is not there."""

    stages = True
    lots_at_once = 1

    def __init__(self, address: str, shipment: Shipment) -> None:
        super().__init__(address, shipment)
        self._folder = Path(address.removeprefix("outbox:"))
        self._rows, self._marks = self._folder / "rows", self._folder / "marks"
        self._columns = self._folder / "columns.json"

    def prepare(self) -> None:
        told = {"columns": [[field.name, str(field.type)] for field in self.shipment.schema]}
        told["made_by"] = self.shipment.made_by
        for folder in (self._rows, self._marks):
            folder.mkdir(parents=True, exist_ok=True)
        if not _create(self._columns, json.dumps(told)) and json.loads(self._columns.read_text()) != told:
            raise UsageError(f"{self._folder} has rows of something else.", hint="Name another folder for this result.")
        if any(mark.name.split(".")[1] != self.shipment.generation for mark in self._marks_of(self.shipment.plan)):
            raise UsageError(f"{self._folder} has rows of an earlier run of this plan.", hint="Name another folder.")

    def count(self) -> int:
        return len(self._marks_of(f"{self.shipment.plan}.{self.shipment.generation}"))

    def stage(self, lot: Lot) -> dict[str, Any]:
        name = f"{uuid.uuid4().hex}.jsonl"
        with open(self._rows / name, "w", encoding="utf-8") as file:
            for batch in lot.read():
                file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())
            file.flush()
            os.fsync(file.fileno())
        return {"file": name}

    def commit(self, first: int, lots: Sequence[Lot]) -> bool:
        (lot,) = lots
        mark = self._marks / f"{self.shipment.plan}.{self.shipment.generation}.{first:06d}"
        return self.count() == first and _create(mark, lot.staged["file"])

    def scan(self) -> Iterator[pa.RecordBatch]:
        for mark in sorted(self._marks.iterdir()):
            with open(self._rows / mark.read_text(), encoding="utf-8") as file:
                yield pa.RecordBatch.from_pylist([json.loads(line) for line in file], self.shipment.schema)

    def delete(self, keys: pa.RecordBatch) -> None:
        gone = {json.dumps(row) for row in keys.to_pylist()}
        for mark in self._marks.iterdir():
            file = self._rows / mark.read_text()
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            left = [row for row in rows if json.dumps({name: row[name] for name in keys.schema.names}) not in gone]
            if len(left) < len(rows):
                new = file.with_suffix(".new")
                new.write_text("".join(json.dumps(row) + "\n" for row in left), encoding="utf-8")
                new.replace(file)

    def finish(self, lots: Sequence[Lot]) -> list[str]:
        named = {mark.read_text() for mark in self._marks.iterdir()}
        strays = [file for file in self._rows.iterdir() if file.name not in named]
        for file in strays:
            file.unlink()
        return [f"{len(strays)} files of attempts that died were deleted"] if strays else []

    def _marks_of(self, run: str) -> list[Path]:
        return [mark for mark in self._marks.glob("*") if mark.name.startswith(f"{run}.")]


def _create(file: Path, text: str) -> bool:
    """Create a file with its whole content; False if it is there."""
    draft = file.with_name(f".{uuid.uuid4().hex}")
    draft.write_text(text, encoding="utf-8")
    try:
        os.link(draft, file)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True
