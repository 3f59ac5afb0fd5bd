"""What a delivery spends its time on: reading parts, preparing rows, or the store, which may be busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import monotonic
from typing import Any, TypeVar

_LEAST_S = 1.0

_Item = TypeVar("_Item")


@dataclass
class Pressure:
    """Seconds of all processes. Of those in the store, `waited_s` were waits for one that was away or busy."""

    reading_s: float = 0.0
    preparing_s: float = 0.0
    store_s: float = 0.0
    waited_s: float = 0.0
    busy: int = 0

    def timed(self, read: Callable[[], Iterator[_Item]]) -> Callable[[], Iterator[_Item]]:
        """The same, with the time counted that the items take to come."""
        return lambda: self._read(read())

    def _read(self, items: Iterator[_Item]) -> Iterator[_Item]:
        while True:
            began = monotonic()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.reading_s += monotonic() - began
            yield item

    @contextmanager
    def working(self) -> Iterator[dict[str, Any]]:
        """Count what is done here, without the reading in it, as the store's; it may say what of it was the store's."""
        began, read_s = monotonic(), self.reading_s
        said: dict[str, Any] = {}
        yield said
        took_s = monotonic() - began - (self.reading_s - read_s)
        store_s = min(took_s, said.get("asked_s", took_s))
        self.store_s += store_s
        self.preparing_s += took_s - store_s
        self.waited_s += said.get("waited_s", 0.0)
        self.busy += said.get("busy", 0)

    def add(self, other: Mapping[str, Any]) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + other.get(each.name, 0))

    def to_json(self) -> dict[str, Any]:
        return {each.name: round(getattr(self, each.name), 3) for each in fields(self)}


def describe(pressure: Mapping[str, Any]) -> str:
    """What bounds a delivery; "" if it has hardly begun.

    >>> describe({"reading_s": 2.0, "preparing_s": 1.0, "store_s": 7.0, "waited_s": 3.0, "busy": 4})
    'bounded by the sink; 20 % of 10 s reading, 10 % preparing, 70 % in the sink; busy or away 4 times, waited 3 s'
    """
    names = {"reading": "reading_s", "preparing": "preparing_s", "the sink": "store_s"}
    parts = {name: float(pressure.get(key, 0.0)) for name, key in names.items()}
    if (total := sum(parts.values())) < _LEAST_S:
        return ""
    shares = [f"{100 * seconds / total:.0f} %" for seconds in parts.values()]
    said = "bounded by {}; {} of {:,.0f} s reading, {} preparing, {} in the sink".format(
        max(parts, key=lambda name: parts[name]), shares[0], total, *shares[1:]
    )
    if not pressure.get("busy"):
        return said
    times = f"{pressure['busy']:,} time{'s' * (pressure['busy'] != 1)}"
    return f"{said}; busy or away {times}, waited {pressure['waited_s']:,.0f} s"
