"""Damages valid files: flipped bits, cuts, repeats, strange tokens, and JSON values of another type."""

from __future__ import annotations

import json
import random
from typing import Any

_TOKENS = [
    *(b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x80", b"\r", b"\r\n", b"\n\n", b'"', b"'", b'""', b"\\"),
    *(b",", b"\t", b"{", b"}", b"[", b"]", b"[[hosts]]", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0"),
    *(b"99999999999999999999999", b"18446744073709551616", b"\\ud800", b"\\u0000", b"\xf0\x9f\x98\x80", b"../", b"/"),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b"9" * 5000,
        b"x" * 70_000,
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
        b"PAR1",
        b"ARROW1",
    ),
]
_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1 << 31, 1 << 63, 1 << 70, -(1 << 70), 0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "../x", "/etc/passwd", "\0", "\ud800", "9", [], [[]], {}, {"a": 1}, [None], "x" * 5000, [0] * 50),
]


def mutate(data: bytes, choose: random.Random) -> bytes:
    """A copy with one to four faults."""
    for _ in range(choose.choice((1, 1, 2, 4))):
        data = _other_value(data, choose) or choose.choice(_WAYS)(data, choose)
    return data


def _flip(data: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data) or 1)
    return data[:at] + bytes([(data[at] if data else 0) ^ 1 << choose.randrange(8)]) + data[at + 1 :]


def _set_number(data: bytes, choose: random.Random) -> bytes:
    """Overwrite some bytes with a number at an edge, as in a length of a binary format."""
    width = choose.choice((1, 2, 4, 8))
    number = choose.choice((0, 1, (1 << 8 * width) - 1, 1 << 8 * width - 1, choose.randrange(1 << 8 * width)))
    at = choose.randrange(len(data) or 1)
    return data[:at] + number.to_bytes(width, "little") + data[at + width :]


def _truncate(data: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data) or 1)
    return data[:at] if choose.random() < 0.7 else data[at:]


def _delete(data: bytes, choose: random.Random) -> bytes:
    start, stop = _slice(data, choose)
    return data[:start] + data[stop:]


def _repeat(data: bytes, choose: random.Random) -> bytes:
    start, stop = _slice(data, choose)
    return data[:stop] + data[start:stop] * choose.choice((1, 1, 2, 20)) + data[stop:]


def _swap(data: bytes, choose: random.Random) -> bytes:
    a, b = sorted(choose.randrange(len(data) or 1) for _ in range(2))
    return data[b:] + data[a:b] + data[:a]


def _insert(data: bytes, choose: random.Random) -> bytes:
    start, stop = _slice(data, choose)
    return data[:start] + choose.choice(_TOKENS) + data[choose.choice((start, stop)) :]


def _slice(data: bytes, choose: random.Random) -> tuple[int, int]:
    start = choose.randrange(len(data) or 1)
    return start, min(len(data), start + choose.choice((1, 4, 16, 64, 1 + len(data) // 4)))


_WAYS = (_flip, _flip, _set_number, _truncate, _delete, _repeat, _swap, _insert, _insert)


def _other_value(data: bytes, choose: random.Random) -> bytes | None:
    """JSON with one value replaced, removed or added; None, half of the time and where it is no JSON object."""
    if choose.random() < 0.5 or data[:1] != b"{":
        return None
    try:
        root = json.loads(data)
    except (ValueError, RecursionError):
        return None
    holders: list[Any] = []
    waiting = [root]
    while waiting:
        held = waiting.pop()
        inside = list(held.values()) if isinstance(held, dict) else held if isinstance(held, list) else []
        holders += [held] if inside else []
        waiting += inside
    if not holders:
        return None
    held = choose.choice(holders)
    key = choose.choice(list(held)) if isinstance(held, dict) else choose.randrange(len(held))
    if choose.random() < 0.2:
        del held[key]
    else:
        held[key] = choose.choice(_VALUES)
    return json.dumps(root).encode("utf-8", "surrogatepass")
