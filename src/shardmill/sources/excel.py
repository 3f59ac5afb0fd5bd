"""Spreadsheets: one row per item, the first row has the names. Sheets with the same names follow one another."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence

from shardmill.core.errors import SourceError
from shardmill.core.extras import missing_package
from shardmill.sources.base import SourceFile
from shardmill.sources.files import file_name, read_object
from shardmill.sources.whole import WholeReader

_EXACT = 2**53


class Spreadsheet:
    """The rows of the sheets that have some."""

    def __init__(self, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._at = {name: i for i, name in enumerate(names) if name}
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, i: int, names: Collection[str] | None = None) -> dict[str, object]:
        values = self._rows[i]
        return {name: _value(values[at]) for name, at in self._at.items() if names is None or name in names}


def _value(value: object) -> object:
    """An empty cell is none at all, and a number without a fraction is whole: sheets know only one kind of number."""
    if value == "":
        return None
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT else value


def _load(file: SourceFile) -> Spreadsheet:
    try:
        import python_calamine as calamine
    except ImportError as error:
        raise missing_package("python-calamine") from error
    name, data = file_name(file.place), read_object(file.place)
    try:
        book = calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        kinds = {each.name: each.typ for each in book.sheets_metadata}
        tables = [
            (sheet, book.get_sheet_by_name(sheet).to_python(skip_empty_area=True))
            for sheet in book.sheet_names
            if kinds[sheet] == calamine.SheetTypeEnum.WorkSheet
        ]
    except (calamine.CalamineError, OSError, ValueError) as error:
        locked = isinstance(error, calamine.PasswordError)
        reason = "it is locked with a password" if locked else str(error).strip().partition("\n")[0]
        raise SourceError(
            f"{name} cannot be read as a spreadsheet: {reason}.", hint="Open it with its program, and save it again."
        ) from error
    found = [(sheet, rows) for sheet, rows in tables if rows]
    heads = {sheet: tuple(str(cell).strip() for cell in rows[0]) for sheet, rows in found}
    if len(set(heads.values())) > 1:
        (first, ours), *rest = heads.items()
        other = next(sheet for sheet, names in rest if names != ours)
        raise SourceError(
            f"{name} has sheets with different columns: {first!r} and {other!r}.",
            hint="Save the sheet to read as a file of its own.",
        )
    names = next(iter(heads.values()), ())
    if twice := next((each for each in names if each and names.count(each) > 1), None):
        raise SourceError(f"{name} has two columns named {twice!r}.", hint="Rename one of them.")
    return Spreadsheet(names, [row for _, rows in found for row in rows[1:] if any(cell != "" for cell in row)])


READER = WholeReader(_load, "a spreadsheet", "Give its columns names in the first row.")
