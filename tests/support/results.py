"""Results of every shape, and what each file of them must hold."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import gzip
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill import make_spec, start
from shardmill.plan.spec import Spec
from shardmill.run import Run
from shardmill.testing import InProcessEngine
from tests.support import functions
from tests.support.corpora import fake_rows

LANGUAGES = ["en", "de", None, "a b/c=d%é", ""]


def _rows(count: int) -> list[dict[str, Any]]:
    return [{**row, "n": i, "lang": LANGUAGES[i % 5]} for i, row in enumerate(fake_rows(count))]


def _spec(source: Path, rows: list[dict[str, Any]], **work: Any) -> Spec:
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"shard_bytes": 1_500, "max_errors": "100%", "lease_s": 30.0}
    return make_spec({"source": str(source), "id": "id", "keep": "n,lang", **work}, settings)


def _vectors(source: Path, rows: list[dict[str, Any]], **work: Any) -> Spec:
    return _spec(source, rows, **{"text": "text", "task": "shardmill.testing:FakeTask", **work})


def _with_failed(count: int, failed: Callable[[int], bool]) -> list[dict[str, Any]]:
    return [{**row, "text": None} if failed(i) else row for i, row in enumerate(_rows(count))]


SHAPES: dict[str, Callable[[Path], Spec]] = {
    "vectors": lambda at: _vectors(at, _with_failed(60, lambda i: i == 17)),
    "windows": lambda at: _vectors(at, _rows(30), params={"window": 16}),
    "nested": lambda at: _spec(at, _rows(30), task=functions.describe),
    "failed": lambda at: _vectors(at, _with_failed(12, lambda i: True)),
    "part": lambda at: _vectors(at, _rows(60), where="n >= 20 AND n < 50"),
    "none": lambda at: _spec(at, _rows(30), task=functions.nothing),
}


def make_run(shape: str, folder: Path) -> Run:
    return start(SHAPES[shape](folder / f"{shape}.jsonl"), folder / shape, engine=InProcessEngine())


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value as JSON has it. A number is read from the shortest text that has its bits in its own width."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            return None
        short = float(str(np.float32(value)))
        return float(value) if pa.types.is_float64(kind) or np.float32(short) != value else short
    if pa.types.is_map(kind):
        return None if value is None else [list(pair) for pair in value]
    if isinstance(value, list):
        return [plain(each, kind.value_type) for each in value]
    if isinstance(value, dict):
        return {key: plain(each, kind.field(key).type) for key, each in value.items()}
    return value


def spelled(value: Any, kind: pa.DataType) -> str:
    """A value as a CSV has it, for those types whose text is not Arrow's own."""
    if value is None:
        return ""
    if pa.types.is_nested(kind):
        return json.dumps(plain(value, kind), ensure_ascii=False, separators=(",", ":"))
    return str(plain(value, kind)) if isinstance(value, bytes | str | int) else ""


def unpack(data: bytes, name: str) -> bytes:
    if name.endswith(".gz"):
        return gzip.decompress(data)
    if name.endswith(".zst"):
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
    return data


def check_lines(data: bytes, table: pa.Table) -> None:
    rows = pa.struct(list(table.schema))
    assert [json.loads(line) for line in data.splitlines()] == [plain(row, rows) for row in table.to_pylist()]


def check_csv(data: bytes, table: pa.Table, delimiter: str = ",") -> None:
    header, *rows = csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter)
    assert header == table.schema.names
    assert len(rows) == table.num_rows
    for seen, due in zip(rows, table.to_pylist(), strict=True):
        for text, (name, value) in zip(seen, due.items(), strict=True):
            kind = table.schema.field(name).type
            if isinstance(value, float):
                assert math.isnan(value) if text == "nan" else float(text) == value
            elif isinstance(value, datetime.datetime):
                assert datetime.datetime.fromisoformat(text) == value
            else:
                assert text == spelled(value, kind), name
