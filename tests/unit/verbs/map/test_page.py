"""The file of a map's page: what it carries, what it allows, and that nothing from data is markup in it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardmill.verbs.map.page import make_page
from shardmill.verbs.map.page_data import MapCluster, MapData, MapMark, unpack
from tests.support.maps import make_map

HOSTILE = "</script><script>alert(1)</script>"


def page_of(data: MapData) -> str:
    file = io.BytesIO()
    make_page(data, file)
    return file.getvalue().decode()


def carried(page: str) -> dict[str, bytes]:
    """What the page carries, by name, in order."""
    found = re.findall(r'<script type="text/plain" id="(\w+)">([A-Za-z0-9+/=]*)</script>', page)
    return {name: base64.b64decode(text, validate=True) for name, text in found}


@pytest.fixture(scope="module")
def data() -> MapData:
    return make_map(1200)


@pytest.fixture(scope="module")
def page(data: MapData) -> str:
    return page_of(data)


def test_it_carries_every_point(data: MapData, page: str) -> None:
    parts = carried(page)
    x, y, cells = np.frombuffer(parts["points"][: 6 * data.count], "<u2").reshape(3, data.count)
    assert (x == data.x).all()
    assert (y == data.y).all()
    assert (cells == data.cells).all()
    assert parts["points"][6 * data.count :] == data.columns[0].codes.tobytes()
    assert parts["column2"] == data.columns[2].codes.tobytes()
    assert [name for name in parts if name.startswith("text")] == ["text0", "text1", "text2"]
    assert [unpack(parts[f"text{i}"]) for i in range(3)] == [unpack(block) for block in data.excerpts()]
    assert unpack(parts["id2"])[-1] == "r1199"
    near = np.frombuffer(zlib.decompress(parts["near1"], -zlib.MAX_WBITS), "<u4").reshape(512, 5)
    assert data.neighbours is not None
    assert (near == data.neighbours[512:1024]).all()


def test_place_cluster_and_colour_take_at_most_12_bytes_with_base64(data: MapData, page: str) -> None:
    text = re.search(r'id="points">([^<]*)<', page)
    assert text is not None
    assert len(text[1]) / data.count <= 12


def test_the_points_come_before_the_program_and_the_texts_after_it(page: str) -> None:
    assert page.index('id="head"') < page.index('id="points"') < page.index("<script>") < page.index('id="text0"')


def test_the_policy_allows_its_own_style_and_program_only(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = dict(part.split(" ", 1) for part in policy[1].split("; "))
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        inline = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline]
        assert allowed[directive] == f"'sha256-{digests[0]}'"
        assert len(digests) == 1
    assert allowed["default-src"] == "'none'"
    assert "connect-src" not in allowed
    addresses = set(re.findall(r"https?://[^\"' ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_texts_are_no_markup(data: MapData) -> None:
    level = replace(data.levels[0], clusters=tuple(MapCluster((HOSTILE,), 1, 1, 1) for _ in data.levels[0].clusters))
    hostile: dict[str, Any] = {"title": HOSTILE, "source": HOSTILE, "notes": (HOSTILE,), "levels": (level,)}
    page = page_of(replace(data, marks=(MapMark(HOSTILE, 1, 1),), **hostile))
    assert "alert(1)" not in page
    head = json.loads(carried(page)["head"])
    assert head["title"] == head["marks"][0]["name"] == head["levels"][0]["clusters"][0]["words"][0] == HOSTILE


def test_a_map_of_few_points_without_columns_clusters_neighbours_or_figures(data: MapData) -> None:
    small = make_map(3)
    bare = replace(small, columns=(), levels=(), lists=(), marks=(), notes=(), quality=None, neighbours=None)
    parts = carried(page_of(bare))
    assert len(parts["points"]) == 18
    head = json.loads(parts["head"])
    assert head["neighbours"] == 0
    assert head["quality"] is None
    assert "near0" not in parts


def test_blocks_are_written_one_by_one(data: MapData) -> None:
    """A page of a million texts is never held: a block is written before the next is asked for."""
    written: list[int] = []
    file = io.BytesIO()
    blocks = list(data.excerpts())

    def excerpts() -> Any:
        for block in blocks:
            written.append(file.tell())
            yield block

    make_page(replace(data, excerpts=excerpts), file)
    assert written[0] < written[1] < written[2]
