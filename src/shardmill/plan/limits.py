"""Limits as people write them: how many rows may fail, for how long, how many bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

_UNITS_BYTES = {"": 1, "b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds of "2h", "90min", "1h30m" or "1d".

    >>> parse_duration("1h30m")
    5400.0
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd])", text.strip().lower())
    if not parts or "".join(f"{n}{u}" for n, u in parts) != re.sub(r"\s+", "", text.lower()):
        raise ValueError(f"{text!r} is not a duration like 2h, 90min or 1h30m")
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def parse_deadline(value: object) -> str:
    """A duration as it is, or a time with its zone; one without is of this machine.

    >>> parse_deadline("1h30m")
    '1h30m'
    """
    try:
        when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        try:
            parse_duration(str(value))
        except ValueError as error:
            raise ValueError(f"{error}, and no time like 2026-12-31T18:00") from None
        return str(value)
    return when.astimezone().isoformat()


def parse_bytes(value: object) -> object:
    """Bytes of "64MB", "1.5GiB" or 65536. What is neither a text nor a number stays as it is.

    >>> parse_bytes("64MB"), parse_bytes("1KiB"), parse_bytes("500")
    (64000000, 1024, 500)
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower())
    if match is None or match.group(2) not in _UNITS_BYTES:
        raise ValueError(f"{value!r} is not a size like 64MB, 1.5GiB or 65536")
    return int(float(match.group(1)) * _UNITS_BYTES[match.group(2)])


def parse_usd(value: object) -> object:
    """Dollars of "5USD", "$5" or 5. What is neither a text nor a number stays as it is.

    >>> parse_usd("5USD"), parse_usd("$0.5"), parse_usd(5)
    (5.0, 0.5, 5)
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\$?\s*(\d+(?:\.\d+)?)\s*(?:usd|\$)?", value.strip().lower())
    if match is None:
        raise ValueError(f"{value!r} is not an amount of money like 5USD")
    return float(match[1])


def parse_share(value: object) -> object:
    """A share of "1%" or 0.01: more than nothing, at most all. What is neither a text nor a number stays as it is.

    >>> parse_share("1%"), parse_share("0.01"), parse_share(1)
    (0.01, 0.01, 1.0)
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 < share <= 1:
            return share
    except ValueError:
        pass
    raise ValueError(f"{value!r} is not a share like 1% or 0.01")


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """How many rows may fail: a share of the rows, or a number."""

    share: float | None
    count: int | None

    @classmethod
    def parse(cls, text: str) -> ErrorLimit:
        """Read "1%" or "250".

        >>> ErrorLimit.parse("1%").exceeded(errors=11, rows=1000)
        True
        """
        text = text.strip()
        try:
            if text.endswith("%"):
                share = float(text[:-1]) / 100
                if 0 <= share <= 1:
                    return cls(share, None)
            elif int(text) >= 0:
                return cls(None, int(text))
        except ValueError:
            pass
        raise ValueError(f"max_errors {text!r} is neither a percentage like 1% nor a count like 250")

    def exceeded(self, errors: int, rows: int) -> bool:
        if self.count is not None:
            return errors > self.count
        return errors > (self.share or 0.0) * rows
