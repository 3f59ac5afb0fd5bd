"""Vectors that different texts share: a batch that was written twice, or texts that are the same to the model."""

from __future__ import annotations

import re

import numpy as np

from shardmill.core.console import count
from shardmill.models.embedder import TextEmbedder
from shardmill.results.report import Check
from shardmill.verbs.audit.rows import Rows
from shardmill.verbs.audit.scan import Scanned

# Pairs whose texts are looked at; and the start of a text by which two are told apart without the model.
_PAIRS = 64
_START = 200
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")


def check_doubles(seen: Scanned, rows: Rows, has_texts: bool, embedder: TextEmbedder | None) -> Check:
    """Whether equal vectors have equal texts: to the model if it is given, else by their first letters and digits."""
    if not seen.doubles:
        return Check("doubles", True, "no vector has two texts" if has_texts else "all vectors differ")
    first, second = seen.doubles[0]
    said = f"{seen.doubled:,} rows share a vector with another, as rows {first:,} and {second:,}"
    if seen.dtype in ("int8", "uint8"):
        return Check("doubles", True, f"{said}, which numbers of eight bits allow")
    if not has_texts:
        return Check("doubles", True, f"{said}; name --text to see whether their texts differ")
    step = max(1, len(seen.doubles) // _PAIRS)
    pairs = seen.doubles[::step][:_PAIRS]
    texts = _read_texts(rows, sorted({row for pair in pairs for row in pair}))
    differ = [pair for pair in pairs if _differ(texts[pair[0]], texts[pair[1]], embedder)]
    if not differ:
        said = f"{count(seen.doubled, 'row')} share a vector, of texts that are the same to the model"
        return Check("doubles", True, said if embedder is not None else f"{said}, or begin alike")
    first, second = differ[0]
    rows_wrong = round(seen.doubled * len(differ) / len(pairs))
    return Check("doubles", False, f"{rows_wrong:,} rows share a vector though texts differ: {first:,} and {second:,}")


def _read_texts(rows: Rows, wanted: list[int]) -> dict[int, str | None]:
    found: list[str | None] = []
    for block in rows.pick(np.array(wanted, np.int64)):
        assert block.texts is not None
        found += block.texts.to_pylist()
    return dict(zip(wanted, found, strict=True))


def _differ(a: str | None, b: str | None, embedder: TextEmbedder | None) -> bool:
    if a is None or b is None:
        return False
    if embedder is not None:
        tokens = embedder.encode([a, b]).rows
        return not np.array_equal(tokens[0], tokens[1])
    plain = [_NOT_PLAIN.sub("", text.lower())[:_START] for text in (a, b)]
    return all(plain) and plain[0] != plain[1]
