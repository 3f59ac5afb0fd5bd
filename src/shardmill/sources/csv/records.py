"""CSV records from lines, with what the csv module does not report: where each starts, and whether it is truncated."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from shardmill.sources.cuts import Line
from shardmill.sources.parsing import over_limit


@dataclass(frozen=True, slots=True)
class Record:
    """One record, its first line, and the bytes before it; `cut_off` if the lines ended inside it."""

    fields: list[str]
    line: int
    size: int
    reason: str = ""
    cut_off: bool = False
    place: int = 0


class CsvRecords:
    """Records of consecutive lines, by Python's csv module; a record over the limit is skipped without loading it."""

    def __init__(self, lines: Iterator[Line], delimiter: str, limit_bytes: int, lines_before: int = 0) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), limit_bytes + 1))
        self._feed = _Feed(lines, limit_bytes, lines_before)
        self._parser = csv.reader(self._feed, delimiter=delimiter)
        self._limit_bytes = limit_bytes

    @property
    def lines_done(self) -> int:
        return self._feed.lines_done

    def __iter__(self) -> Iterator[Record]:
        feed = self._feed
        while True:
            feed.begin_record()
            line, place = feed.lines_done + 1, feed.bytes_done
            try:
                fields = next(self._parser)
            except StopIteration:
                return
            except csv.Error:
                yield Record([], line, feed.size, "broken CSV: a carriage return outside quotes", place=place)
            except _TooLong:
                cut_off = feed.pass_by()
                reason = over_limit("the record", feed.size, self._limit_bytes)
                yield Record([], line, 0, reason, cut_off, place)
            else:
                reason = "a quote is opened here and never closed" if feed.ended else feed.reason
                if reason or len(fields) > 1 or (fields and not feed.blank):
                    yield Record(fields, line, feed.size, reason, feed.ended, place)


class _TooLong(Exception):
    pass


class _Feed(Iterator[str]):
    """Feeds lines to the csv module, and tracks what it does not report about the current record."""

    def __init__(self, lines: Iterator[Line], limit_bytes: int, lines_before: int) -> None:
        self._lines, self._limit_bytes = lines, limit_bytes
        self.lines_done, self.bytes_done = lines_before, 0
        self.ended = False
        self.begin_record()

    def begin_record(self) -> None:
        self.size, self.reason, self.blank, self._quotes = 0, "", True, 0

    def __next__(self) -> str:
        line = self._next_line()
        if line is None:
            raise StopIteration
        if line.data is None or self.size > self._limit_bytes + 1:
            raise _TooLong
        self.blank = self.blank and not line.data.strip()
        try:
            return line.data.decode() + "\n"
        except UnicodeDecodeError as error:
            self.reason = self.reason or f"not valid UTF-8 at byte {error.start + 1} of the line"
            return line.data.decode(errors="surrogateescape") + "\n"

    def _next_line(self) -> Line | None:
        line = next(self._lines, None)
        if line is None:
            self.ended = True
            return None
        self.lines_done += 1
        self.size += line.size + 1
        self.bytes_done += line.size + 1
        self._quotes += line.quotes if line.data is None else line.data.count(b'"')
        return line

    def pass_by(self) -> bool:
        """Skip to the end of a record by counting quotes; returns whether the lines end first."""
        while self._quotes % 2:
            if self._next_line() is None:
                return True
        return False
