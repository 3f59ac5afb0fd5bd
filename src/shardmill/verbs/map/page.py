"""The page of a map: one HTML file that holds its style, its program and its points, and asks nobody for anything.

What comes from data stands in it as base64 only, in elements that no browser executes, and is shown as text. Style and
program are named by digest in the page's own policy, so nothing else can run. The points come before the program and
the texts after it: the map is drawn while the browser still reads the texts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import asdict
from importlib import resources
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from shardmill.verbs.map.page_data import BLOCK_POINTS, MapColumn, MapData, MapLevel

_SCRIPTS = (
    *("bytes", "format", "points", "colours", "painter", "painter2d", "view", "labels", "search", "lists", "legend"),
    *("monitor", "map"),
)
# Base64 of a multiple of three bytes has no padding, so pieces can follow one another.
_PIECE_BYTES = 3 << 18


def make_page(data: MapData, file: IO[bytes]) -> None:
    """Write the page of a map into a file, block by block."""
    style, script, body = _read("page.css"), "".join(_read(f"{name}.js") for name in _SCRIPTS), _read("index.html")
    script = f'"use strict";\n{{\n{script}}}\n'
    file.write(_opening(style, script).encode())
    file.write(body.encode())
    _carry(file, "head", json.dumps(_head(data), separators=(",", ":"), allow_nan=False).encode())
    _carry(file, "points", _points(data))
    # The browser takes an element for complete when another follows.
    file.write(f"<script>{script}</script>\n".encode())
    for number, column in enumerate(data.columns[1:], 1):
        _carry(file, f"column{number}", column.codes.astype(np.uint8).tobytes())
    for number, (texts, ids) in enumerate(zip(data.excerpts(), data.ids(), strict=True)):
        _carry(file, f"text{number}", texts)
        _carry(file, f"id{number}", ids)
        for at, column in enumerate(data.columns):
            if column.values:
                _carry(file, f"value{at}_{number}", column.values[number])
        if data.neighbours is not None:
            _carry(file, f"near{number}", _near(data.neighbours, number))
    file.write(b"</body>\n</html>\n")


def _opening(style: str, script: str) -> str:
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>Map</title>\n<style>{style}</style>\n</head>\n"
    )


def _read(name: str) -> str:
    return resources.files("shardmill.verbs.map").joinpath("static", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """The name of a script or style in a Content-Security-Policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _carry(file: IO[bytes], name: str, data: bytes) -> None:
    file.write(f'<script type="text/plain" id="{name}">'.encode())
    for start in range(0, len(data), _PIECE_BYTES):
        file.write(base64.b64encode(data[start : start + _PIECE_BYTES]))
    file.write(b"</script>\n")


def _points(data: MapData) -> bytes:
    """Places, cells and the first column's codes: seven bytes per point, little-endian."""
    arrays: list[NDArray[Any]] = [array.astype("<u2") for array in (data.x, data.y, data.cells)]
    arrays += [column.codes.astype(np.uint8) for column in data.columns[:1]]
    return b"".join(array.tobytes() for array in arrays)


def _near(neighbours: NDArray[np.uint32], number: int) -> bytes:
    """The neighbours of one block of points."""
    block = neighbours[number * BLOCK_POINTS : (number + 1) * BLOCK_POINTS].astype("<u4")
    squeeze = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeeze.compress(block.tobytes()) + squeeze.flush()


def _head(data: MapData) -> dict[str, Any]:
    """All that is not one value per point."""
    return {
        "title": data.title,
        "source": data.source,
        "by_meaning": data.by_meaning,
        "count": data.count,
        "bounds": data.bounds,
        "levels": [_level(level) for level in data.levels],
        "columns": [_column(column) for column in data.columns],
        "quality": None if data.quality is None else asdict(data.quality),
        "marks": [asdict(mark) for mark in data.marks],
        "lists": [asdict(each) for each in data.lists],
        "notes": data.notes,
        "neighbours": 0 if data.neighbours is None else data.neighbours.shape[1],
    }


def _level(level: MapLevel) -> dict[str, Any]:
    return {"clusters": [asdict(cluster) for cluster in level.clusters], "of_cell": level.of_cell.tolist()}


def _column(column: MapColumn) -> dict[str, Any]:
    return {
        "name": column.name,
        "kind": column.kind,
        "low": column.low,
        "high": column.high,
        "labels": column.labels,
        "categories": column.categories,
        "counts": column.counts,
        "told": bool(column.values),
    }
