"""Parses one line into a row, or says why it cannot."""

from __future__ import annotations

import json

BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """A line that is not a row; the message is the reason."""


def decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadLine(f"not valid UTF-8 at byte {error.start + 1} of the line") from None


def parse_text(data: bytes) -> dict[str, object]:
    return {"text": decode(data.removesuffix(b"\r"))}


def parse_json(data: bytes) -> dict[str, object]:
    row = parse_value(data)
    if not isinstance(row, dict):
        raise BadLine("the line is JSON, but not an object")
    return row


def parse_value(data: bytes) -> object:
    """A JSON value of any kind."""
    text = decode(data)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine(f"broken JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1}") from None
    except RecursionError:
        raise BadLine("broken JSON: nested too deep") from None
    except ValueError:
        raise BadLine("broken JSON: a number has too many digits") from None


def over_limit(what: str, size_bytes: int, limit_bytes: int) -> str:
    return f"{what} is {size_bytes / 2**20:.1f} MB, over the limit of {limit_bytes / 2**20:.1f} MB"
