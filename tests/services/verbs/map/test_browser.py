"""The page of a map in Chromium: pan, zoom, hover, search, lasso, colour, filter, dark mode, phone, hostile texts."""

from __future__ import annotations

import csv
import dataclasses
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardmill.verbs.map.columns import ColumnCodes
from shardmill.verbs.map.page_data import LAST_STEP, OTHER, ListEntry, MapCluster, MapList, MapMark, pack_all, unpack
from tests.support.browser import DESK, PHONE, Watched, chromium
from tests.support.libraries import needed
from tests.support.maps import make_map, write_map
from tests.support.services import unavailable
from tests.support.waiting import wait_for

needed("playwright.sync_api")
image = needed("PIL.Image")
pytestmark = pytest.mark.services

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>\u202egnp.exe"
SHOWN = HOSTILE.replace("\u202e", " ")
DATA = make_map(3000, texts={7: HOSTILE, 11: "=HYPERLINK(1)", 13: 'a "quoted", text', 17: ""})
TEXTS = [text for block in DATA.excerpts() for text in unpack(block)]
VIEW = "(({x, y, k}) => ({x, y, k}))(shardmill.map.view)"
# A renderer that does not name itself counts as a GPU.
UNNAMED = """
const ask = WebGL2RenderingContext.prototype.getExtension;
WebGL2RenderingContext.prototype.getExtension = function (name) {
  return name === "WEBGL_debug_renderer_info" ? null : ask.call(this, name);
};
"""
NO_WEBGL = """
const get = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  return kind.startsWith("webgl") ? null : get.call(this, kind, ...rest);
};
"""
# The colours of the points on the 2D canvas; that of the ground is the first.
COLOURS = "[...new Set(shardmill.map.painter.pixels)]"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_map(tmp_path_factory.mktemp("map") / "map.html", DATA).as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("--enable-unsafe-swiftshader") as opened:
        yield opened


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Open]:
    """Opens the page. In the end nothing was complained of, and nothing was asked for but the page."""
    watched = Watched(browser, address)

    def opens(state: str = "", script: str = "", **options: Any) -> Any:
        page = watched.open(**{"viewport": DESK, "reduced_motion": "reduce", **options})
        if script:
            page.add_init_script(script)
        page.goto(address + state)
        rest(page)
        return page

    yield opens
    watched.close()
    assert watched.complaints == []


def rest(page: Any) -> None:
    """Until all points are drawn. The page's policy forbids Playwright's own way of waiting."""
    wait_for(lambda: page.evaluate("Boolean(globalThis.shardmill?.map.resting)"))


def screen(page: Any, point: int) -> tuple[float, float]:
    """Where a point is on the screen."""
    return tuple(places(page)[point])


def places(page: Any) -> Any:
    """Where all points are on the screen."""
    view = page.evaluate("(({x, y, k, width, height}) => ({x, y, k, width, height}))(shardmill.map.view)")
    at = np.stack([DATA.x / LAST_STEP - view["x"], 1 - DATA.y / LAST_STEP - view["y"]], axis=1)
    return at * view["k"] + [view["width"] / 2, view["height"] / 2]


def alone(page: Any) -> int:
    """A point with an ordinary text, without others near it, and under no button."""
    all_places = places(page)
    for i, place in enumerate(all_places[20:], 20):
        apart = np.hypot(*(all_places - place).T)
        if np.partition(apart, 1)[1] > 10 and 320 < place[0] < 800 and 100 < place[1] < 600:
            return i
    raise AssertionError("no point is alone")


def move_to(page: Any, point: int) -> None:
    place = [DATA.x[point] / LAST_STEP, 1 - DATA.y[point] / LAST_STEP]
    page.evaluate("([x, y]) => shardmill.map.view.set(x, y, shardmill.map.view.k)", place)


def test_it_opens_with_names_figures_and_points(opened: Open) -> None:
    page = opened()
    assert page.title() == "Reviews of a shop · map"
    assert page.inner_text("#count") == "3,000 points"
    assert page.locator(".label.shown").count() >= 5
    assert page.locator(".pin").count() == 3
    assert page.inner_text("#verdict") == "The map keeps 37 of 100 true neighbours, PCA 14."
    assert [row.split() for row in page.locator("#quality-rows tr").all_inner_texts()] == [
        ["this", "map", "37", "%", "0.94"],
        ["PCA", "14", "%", "0.82"],
        ["chance", "0.5", "%", "0.50"],
    ]
    assert len(page.evaluate(COLOURS)) > 20
    summaries = page.locator("#lists summary").all_inner_texts()
    assert [text.split("\n")[0].split()[0] for text in summaries] == ["Outliers", "Duplicates", "Empty", "Marks"]


def test_pan_and_zoom_by_mouse_wheel_keys_and_buttons(opened: Open) -> None:
    page = opened()
    first = page.evaluate(VIEW)
    page.mouse.move(600, 400)
    page.mouse.down()
    page.mouse.move(650, 380, steps=3)
    page.mouse.up()
    panned = page.evaluate(VIEW)
    assert panned["k"] == first["k"]
    assert (panned["x"] - first["x"]) * first["k"] == pytest.approx(-50)
    assert (panned["y"] - first["y"]) * first["k"] == pytest.approx(20)
    under = page.evaluate("shardmill.map.view.toMap(400, 300)")
    page.mouse.move(400, 300)
    page.mouse.wheel(0, -200)
    wait_for(lambda: page.evaluate(VIEW)["k"] > 1.2 * first["k"])
    assert page.evaluate("shardmill.map.view.toMap(400, 300)") == pytest.approx(under), "what is pointed at stays"
    page.focus("#map")
    before = page.evaluate(VIEW)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("+")
    after = page.evaluate(VIEW)
    assert after["x"] > before["x"]
    assert after["k"] == pytest.approx(1.4 * before["k"])
    page.click("#zoom-out")
    assert page.evaluate(VIEW)["k"] < after["k"]
    page.click("#zoom-all")
    assert page.evaluate(VIEW) == {"x": 0.5, "y": 0.5, "k": first["k"]}


def test_names_of_finer_clusters_come_with_zoom(opened: Open) -> None:
    page = opened()
    before = set(page.locator(".label.depth1.shown").all_inner_texts())
    biggest = max(DATA.levels[1].clusters, key=lambda cluster: cluster.size)
    page.evaluate(
        "([x, y]) => shardmill.map.view.set(x, y, 12 * shardmill.map.view.fit())",
        [biggest.x / LAST_STEP, 1 - biggest.y / LAST_STEP],
    )
    wait_for(lambda: set(page.locator(".label.depth1.shown").all_inner_texts()) - before)
    assert biggest.words[0] not in " ".join(before)
    assert biggest.words[0] in " ".join(page.locator(".label.shown").all_inner_texts())
    boxes = [box for box in (each.bounding_box() for each in page.locator(".label.shown").all()) if box]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart = a["x"] >= b["x"] + b["width"] or b["x"] >= a["x"] + a["width"]
            assert apart or a["y"] >= b["y"] + b["height"] or b["y"] >= a["y"] + a["height"], "names do not overlap"


def test_a_point_is_hovered_clicked_and_has_others_like_it(opened: Open) -> None:
    page = opened()
    i = alone(page)
    page.mouse.move(*screen(page, i))
    page.locator("#tip").wait_for()
    assert page.inner_text("#tip-text") == TEXTS[i]
    page.mouse.click(*screen(page, i))
    wait_for(lambda: page.inner_text("#card-text") == TEXTS[i])
    assert page.inner_text("#card-id") == f"r{i}"
    assert "rating" in page.inner_text("#card-facts")
    page.click("#card-near")
    page.locator("#card-similar button").first.wait_for()
    assert DATA.neighbours is not None
    found = [int(row.get_attribute("data-point")) for row in page.locator("#card-similar button").all()]
    assert found == [j for j in DATA.neighbours[i].tolist() if j != i]
    assert page.locator(".ring.near:not([hidden])").count() == len(found)
    page.keyboard.press("Escape")
    assert not page.is_visible("#card")


def test_words_are_found_in_all_blocks(opened: Open) -> None:
    page = opened()
    page.fill("#query", "Piano noisy")
    page.keyboard.press("Enter")
    wanted = [i for i, text in enumerate(TEXTS) if "piano" in text and "noisy" in text]
    wait_for(lambda: "not whole texts" in page.inner_text("#found-note"))
    assert page.inner_text("#found-title") == f"{len(wanted)} points with “Piano noisy”"
    assert page.evaluate("[...shardmill.map.marked]") == wanted
    first = page.locator("#found-rows button").first
    wait_for(lambda: TEXTS[wanted[0]] in first.inner_text())
    first.click()
    wait_for(lambda: page.inner_text("#card-id") == f"r{wanted[0]}")
    rest(page)
    assert f"point={wanted[0]}" in page.url
    assert "find=Piano+noisy" in page.url


def test_a_lasso_makes_a_list_and_a_file(opened: Open) -> None:
    page = opened()
    page.click("#lasso")
    corners = [(350, 150), (700, 150), (700, 500), (350, 500)]
    page.mouse.move(*corners[0])
    page.mouse.down()
    for corner in corners[1:]:
        page.mouse.move(*corner)
    page.mouse.up()
    (left, top), (right, bottom) = (
        page.evaluate("(p) => shardmill.map.view.toMap(...p)", list(c)) for c in (corners[0], corners[2])
    )
    x, y = DATA.x / LAST_STEP, 1 - DATA.y / LAST_STEP
    wanted = np.flatnonzero((x > left) & (x < right) & (y > top) & (y < bottom)).tolist()
    assert 0 < len(wanted) < DATA.count
    assert page.evaluate("[...shardmill.map.marked]") == wanted
    assert page.inner_text("#found-title") == f"{len(wanted):,} points in the lasso"
    with page.expect_download() as waiting:
        page.click("#found-csv")
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text("utf-8-sig"))))
    assert [row["id"] for row in rows] == [f"r{i}" for i in wanted]
    assert list(rows[0]) == ["id", "x", "y", "cluster_1", "cluster_2", "rating", "written", "shop", "excerpt"]
    low_x, low_y, side = DATA.bounds
    assert float(rows[0]["x"]) == pytest.approx(low_x + side * x[wanted[0]], rel=1e-4)
    assert float(rows[0]["y"]) == pytest.approx(low_y + side * (1 - y[wanted[0]]), rel=1e-4)
    assert 1 <= float(rows[0]["rating"]) <= 5


def test_a_file_keeps_texts_and_no_formula(opened: Open) -> None:
    page = opened()
    text = page.evaluate("shardmill.csv(shardmill.map.points, [11, 13, 7], () => {}).then((blob) => blob.text())")
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
    assert [row["excerpt"] for row in rows] == ["'=HYPERLINK(1)", 'a "quoted", text', SHOWN]


def test_colour_by_every_column_and_by_density(opened: Open) -> None:
    page = opened()
    pictures = []
    assert page.locator("#colour option").all_inner_texts() == ["Cluster", "rating", "written", "shop", "Density"]
    for name in ("Cluster", "rating", "written", "shop", "Density"):
        page.select_option("#colour", label=name)
        wait_for(
            lambda name=name: (
                page.evaluate("shardmill.map.legend.way.column.name") == name and page.locator("#legend > *").count()
            )
        )
        rest(page)
        pictures.append(frozenset(page.evaluate(COLOURS)))
    assert len(set(pictures)) == 5
    page.select_option("#colour", label="written")
    wait_for(lambda: page.locator("#legend .ends span").all_inner_texts() == ["2010-01-01", "2020-01-01"])
    assert "31 without a value" in page.inner_text("#legend")


def test_a_histogram_and_a_legend_filter(opened: Open) -> None:
    page = opened()
    page.select_option("#colour", label="rating")
    box = page.locator(".bars").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20, steps=2)
    page.mouse.up()
    high = int((DATA.columns[0].codes >= 127).sum())
    assert page.inner_text("#count") == f"{high:,} of 3,000 points"
    page.select_option("#colour", label="shop")
    page.get_by_role("button", name="Lima").click()
    both = int(((DATA.columns[0].codes >= 127) & (DATA.columns[2].codes == 2)).sum())
    assert page.inner_text("#count") == f"{both:,} of 3,000 points"
    assert page.get_by_role("button", name="Lima", pressed=True).count() == 1
    hidden = int(np.flatnonzero(DATA.columns[0].codes < 127)[0])
    page.mouse.move(*screen(page, hidden))
    assert page.evaluate("shardmill.map.labels.hovered") != hidden
    for chip in ("rating", "shop"):
        page.locator(".chip", has_text=chip).click()
    assert page.inner_text("#count") == "3,000 points"
    page.select_option("#colour", label="rating")
    page.get_by_label("rating from").press("End")
    assert page.inner_text("#count") == f"{int((DATA.columns[0].codes >= 248).sum()):,} of 3,000 points"


def test_light_and_dark(opened: Open) -> None:
    page = opened(color_scheme="dark")

    def lightness() -> int:
        return int(sum(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")))

    def ground() -> int:
        return int(page.evaluate(COLOURS)[0]) & 0xFF

    assert lightness() < 200
    assert ground() < 60
    page.click("#theme")
    assert lightness() > 600
    assert ground() > 200


def test_a_link_leads_to_the_same_view(opened: Open) -> None:
    page = opened()
    page.evaluate("shardmill.map.view.set(0.4, 0.6, 3 * shardmill.map.view.fit())")
    page.select_option("#colour", label="Density")
    state = "#at=0.4%2C0.6%2C3&colour=density"
    wait_for(lambda: page.evaluate("location.hash") == state)
    other = opened(state)
    assert other.evaluate(VIEW) == pytest.approx(page.evaluate(VIEW))
    wait_for(lambda: other.input_value("#colour") == "density")


def test_a_phone(opened: Open) -> None:
    page = opened(viewport=PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no part is wider than the screen"
    first = page.evaluate(VIEW)
    touch = page.context.new_cdp_session(page)
    for kind, spread in (("touchStart", 30), ("touchMove", 60), ("touchMove", 90), ("touchEnd", None)):
        points = (
            [] if spread is None else [{"x": 180 - spread, "y": 250, "id": 0}, {"x": 180 + spread, "y": 250, "id": 1}]
        )
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    wait_for(lambda: page.evaluate(VIEW)["k"] == pytest.approx(3 * first["k"], rel=0.1))
    i = page.evaluate("shardmill.map.points.nearest(...shardmill.map.view.toMap(180, 250), 1)")
    move_to(page, i)
    rest(page)
    page.touchscreen.tap(*screen(page, i))
    wait_for(lambda: page.is_visible("#card") and page.inner_text("#card-id"))
    page.click("#fold")
    assert not page.is_visible("#panel")


@pytest.mark.parametrize(("script", "name"), [(UNNAMED, "WebGL"), (NO_WEBGL, "2D canvas")])
def test_both_painters_draw_and_mark(opened: Open, script: str, name: str) -> None:
    page = opened(script=script)
    assert page.evaluate("shardmill.map.painter.name") == name
    assert page.is_visible("#painter-note") == (name != "WebGL")
    page.evaluate("document.getElementById('labels').hidden = true")
    plain = picture(page)
    ground = max(plain, key=plain.__getitem__)
    assert 0.03 < 1 - plain[ground] / sum(plain.values()) < 0.4
    page.evaluate("shardmill.map.mark(Uint32Array.from([1, 2, 3]))")
    rest(page)
    pale = picture(page)
    vivid = {colour for colour in plain if min(colour >> 16, colour >> 8 & 255, colour & 255) < 110}
    assert sum(pale.get(colour, 0) for colour in vivid) < 0.1 * sum(plain[colour] for colour in vivid)


def test_a_lost_gpu_comes_back(opened: Open) -> None:
    page = opened(script=UNNAMED)
    page.evaluate("document.getElementById('labels').hidden = true")
    page.evaluate("shardmill.map.mark(Uint32Array.from([1, 2, 3]))")
    rest(page)
    before = picture(page)
    page.evaluate("globalThis.first = shardmill.map.painter")
    page.evaluate("(globalThis.taken = first.gl.getExtension('WEBGL_lose_context')).loseContext()")
    wait_for(lambda: page.evaluate("first.gl.isContextLost()"))
    page.evaluate("taken.restoreContext()")
    wait_for(lambda: page.evaluate("shardmill.map.painter !== first && Boolean(shardmill.map.painter.codes)"))
    wait_for(lambda: picture(page) == before)


def picture(page: Any) -> dict[int, int]:
    """The colours of what is seen in the middle of the map, as 0xRRGGBB, each with its number of pixels."""
    taken = page.screenshot(clip={"x": 330, "y": 80, "width": 560, "height": 560})
    with image.open(io.BytesIO(taken)) as opened_image:
        pixels = np.asarray(opened_image.convert("RGB")).reshape(-1, 3) @ np.array([1 << 16, 1 << 8, 1])
    colours, counts = np.unique(pixels, return_counts=True)
    return dict(zip(colours.tolist(), counts.tolist(), strict=True))


def test_hostile_texts_stay_texts(browser: Any, tmp_path: Path) -> None:
    column = dataclasses.replace(DATA.columns[2], name=HOSTILE, labels=(HOSTILE, *DATA.columns[2].labels[1:]))
    level = dataclasses.replace(
        DATA.levels[0], clusters=tuple(MapCluster((HOSTILE,), c.x, c.y, c.size) for c in DATA.levels[0].clusters)
    )
    texts = pack_all([HOSTILE] * DATA.count)
    data = dataclasses.replace(
        DATA,
        title=HOSTILE,
        source=HOSTILE,
        columns=(column,),
        levels=(level,),
        marks=(MapMark(HOSTILE, 30000, 30000),),
        lists=(MapList(HOSTILE, 1, (ListEntry(HOSTILE, (5,), HOSTILE),)),),
        notes=(HOSTILE,),
        excerpts=lambda: iter(texts),
        ids=lambda: iter(texts),
    )
    address = write_map(tmp_path / "map.html", data).as_uri()
    watched = Watched(browser, address)
    page = watched.open(reduced_motion="reduce")
    page.goto(address)
    rest(page)
    page.fill("#query", "onerror=alert(1)")
    page.keyboard.press("Enter")
    wait_for(lambda: page.inner_text("#found-title").startswith("3,000 points"))
    page.evaluate("shardmill.map.pick(5, true)")
    page.select_option("#colour", index=1)
    page.locator("#lists summary").first.click()
    wait_for(lambda: page.inner_text("#card-text") == SHOWN)
    assert page.inner_text("#title") == SHOWN
    assert SHOWN in page.inner_text("#legend")
    assert page.locator("img").count() == 0
    watched.close()
    assert watched.complaints == []


def test_panel_and_file_show_the_data_and_bins_only_colour(browser: Any, tmp_path: Path) -> None:
    """A column of more values than there are colours, and numbers finer than the steps between two colours."""
    names = [f"maker {i % 700}" if i % 11 else None for i in range(DATA.count)]
    numbers = [f"{i / 7}" for i in range(DATA.count)]
    columns = []
    for kind, values in (("string", names), ("double", [float(text) for text in numbers])):
        codes = ColumnCodes(kind, pa.type_for_alias(kind))
        codes.add(pa.array(values))
        columns.append(codes.finish())
    address = write_map(tmp_path / "map.html", dataclasses.replace(DATA, columns=tuple(columns))).as_uri()
    watched = Watched(browser, address)
    page = watched.open(reduced_motion="reduce")
    page.goto(address)
    rest(page)
    text = page.evaluate("shardmill.csv(shardmill.map.points, [...Array(3000).keys()], () => {}).then((b) => b.text())")
    rows = list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))
    assert [row["string"] for row in rows] == [name or "" for name in names]
    assert [float(row["double"]) for row in rows] == [float(text) for text in numbers]
    i = page.evaluate(f"shardmill.map.points.columns[0].codes.indexOf({OTHER})")
    assert i >= 0
    page.evaluate(f"shardmill.map.pick({i}, true)")
    wait_for(lambda: page.inner_text("#card-id") == f"r{i}")
    facts = page.inner_text("#card-facts")
    assert (names[i] or "") in facts
    assert "other" not in facts
    watched.close()
    assert watched.complaints == []


def test_clusters_without_words_have_their_numbers(browser: Any, tmp_path: Path) -> None:
    data = make_map(600)
    bare = [dataclasses.replace(cluster, words=()) for cluster in data.levels[0].clusters]
    level = dataclasses.replace(data.levels[0], clusters=tuple(bare))
    address = write_map(tmp_path / "map.html", dataclasses.replace(data, levels=(level,), marks=())).as_uri()
    watched = Watched(browser, address)
    page = watched.open(reduced_motion="reduce")
    page.goto(address)
    rest(page)
    assert "cluster 0" in page.inner_text("#legend")
    assert "cluster 0" in page.inner_text("#labels")
    watched.close()
    assert watched.complaints == []


@pytest.mark.parametrize("n", [1, 3])
def test_a_map_of_almost_nothing(browser: Any, tmp_path: Path, n: int) -> None:
    """All points at one place, without columns, clusters, figures, lists or texts."""
    data = make_map(n, texts=dict.fromkeys(range(n), ""))
    corner = np.zeros(n, np.uint16)
    bare = dataclasses.replace(data, x=corner, y=corner, columns=(), levels=(), lists=(), marks=(), quality=None)
    address = write_map(tmp_path / "map.html", dataclasses.replace(bare, neighbours=None)).as_uri()
    watched = Watched(browser, address)
    page = watched.open(reduced_motion="reduce")
    page.goto(address)
    rest(page)
    assert page.inner_text("#count") == ("1 point" if n == 1 else "3 points")
    assert page.inner_text("#verdict").startswith("Too few different points")
    page.evaluate("shardmill.map.pick(0, true)")
    wait_for(lambda: page.inner_text("#card-text") == "(empty text)")
    page.fill("#query", "word")
    page.keyboard.press("Enter")
    wait_for(lambda: page.inner_text("#found-title").startswith("0 points"))
    watched.close()
    assert watched.complaints == []


@pytest.mark.parametrize(("viewport", "scheme"), [(DESK, "light"), (DESK, "dark"), (PHONE, "light")])
def test_everybody_can_read_it(opened: Open, viewport: dict[str, int], scheme: str) -> None:
    axe = Path(sys.prefix) / "lib" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        unavailable("axe-core is not installed: `make test-all` installs it beside the packages of the tests.")
    page = opened("#point=3", viewport=viewport, color_scheme=scheme)
    wait_for(lambda: page.inner_text("#card-id") == "r3")
    page.click("#card-near")
    page.locator("#card-similar button").first.wait_for()
    page.evaluate(axe.read_text())
    found = page.evaluate("axe.run({ preload: false }).then((said) => said.violations)")
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []


def test_the_keyboard_alone(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map"
    assert page.is_visible(".cross")
    i = alone(page)
    move_to(page, i)
    page.keyboard.press("Enter")
    wait_for(lambda: page.inner_text("#card-id") == f"r{i}")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
