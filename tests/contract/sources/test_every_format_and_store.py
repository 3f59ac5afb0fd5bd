"""The conformance suite over every format, packed in every way, in every store: the table of docs/sources.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.testing import check_source
from tests.support.checked import PACK, ROWS, WRITE, packings
from tests.support.libraries import needed
from tests.support.sources import put

needed("fastavro")
needed("openpyxl")
needed("python_calamine")


@pytest.mark.parametrize("format", WRITE)
def test_a_format_keeps_the_contract(place: str, format: str, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    WRITE[format](plain)
    for packing in packings(format):
        data = plain.read_bytes()
        name = f"items.{format}{packing}"
        put(place, name, PACK[packing](data) if packing else data)
        assert check_source([f"{place}/{name}"], rows=ROWS, text="body", id="id", format=format) >= 20
