"""Makes the pictures of the documentation: `python -m tools.screenshots`.

The runs and the map on them are simulated; the monitor, the pages and the browser are real.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.testing import InProcessEngine
from tests.support.ledgers import a_plan
from tests.support.maps import make_map, write_map
from tests.support.monitored import monitor, simulate_run
from tests.support.waiting import wait_for

IMAGES = Path(__file__).parents[1] / "docs" / "images"
# Where the simulated folder would be; its real place is of no interest.
_PLACE = "/data/runs"
_MOST_BYTES = 700_000
_ALERTS = """
[rules]
worker_lost = true

[targets.nobody]
kind = "command"
command = ["true"]
"""


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium not found: apt-get install chromium fonts-dejavu-core")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        folder = Path(place) / "runs"
        budget = {"budget_usd": 45.0, "deadline": "3h"}
        simulate_run(folder / "reviews", shards=6000, workers=16, share=0.62, lost=1, execution=budget)
        simulate_run(folder / "catalogue", shards=2000, workers=4, share=0.18, began_s=1500, source="catalogue.jsonl")
        Ledger(folder / "questions").create(a_plan())
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--enable-unsafe-swiftshader"])
        alerts = Path(place) / "alerts.toml"
        alerts.write_text(_ALERTS)
        with monitor(folder, "--port", 0, "--alerts", alerts) as served:
            take(browser, served, "monitor", {"width": 1240, "height": 800}, "light")
            take(browser, served, "monitor-dark", {"width": 1240, "height": 800}, "dark", "#workers-title")
            take(browser, served, "monitor-phone", {"width": 390, "height": 800}, "light", "#name")
        mapped = Path(place) / "maps" / "reviews"
        _complete(mapped)
        write_map(mapped / "map.html", make_map(60_000))
        wide = {"width": 1240, "height": 780}
        with monitor(mapped, "--port", 0) as served:
            take_map(browser, served, "map", wide, "light", "#point=4211", hover=(545, 628))
            take_map(browser, served, "map-dark", wide, "dark", "#at=0.47,0.42,2.6&colour=column0", brush=True)
            take_map(browser, served, "map-phone", {"width": 390, "height": 800}, "light", "#find=guitar")
        browser.close()
    size = sum(path.stat().st_size for path in IMAGES.glob("*.png"))
    assert size < _MOST_BYTES, f"the pictures have {size:,} bytes"
    print(f"{size:,} bytes in {IMAGES}")


def _complete(place: Path) -> None:
    """A small run that can be searched, so that its map offers that."""
    source = place.parent / "reviews.jsonl"
    place.parent.mkdir()
    source.write_text('{"text": "The battery is good."}\n')
    work = {"source": str(source), "text": "text", "task": "shardmill.testing:FakeTask"}
    start(make_spec(work, {"device": "cpu"}), place, engine=InProcessEngine())


def take(browser: Any, served: Any, name: str, viewport: dict[str, int], scheme: str, top: str = "") -> None:
    """One picture of the run `reviews`, from the element `top` on."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    page = context.new_page()
    page.goto(served.entry)
    page.wait_for_url(served.base)
    page.goto(f"{served.base}#run=reviews")
    page.wait_for_selector("#workers tbody tr")
    # Two events later the states are loaded and drawn.
    page.wait_for_timeout(5000)
    page.evaluate("(place) => (document.querySelector('#folder').textContent = place)", _PLACE)
    page.evaluate(
        "(place) => document.querySelectorAll('#plan dd').forEach("
        "(cell) => cell.textContent.endsWith('/runs/reviews') && (cell.textContent = place))",
        f"{_PLACE}/reviews",
    )
    if top:
        page.evaluate("(top) => document.querySelector(top).closest('section, .head').scrollIntoView()", top)
    _save(page, name)
    context.close()


def take_map(
    browser: Any,
    served: Any,
    name: str,
    viewport: dict[str, int],
    scheme: str,
    state: str,
    hover: tuple[int, int] | None = None,
    brush: bool = False,
) -> None:
    """One picture of a map: a state of its address, a point under the mouse, a part of a histogram."""
    context = browser.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.goto(served.entry)
    page.wait_for_url(served.base)
    page.goto(f"{served.base}map?run=reviews{state}")
    inside = page.locator("#map").element_handle().content_frame()
    inside.wait_for_url("**/map.html*")
    wait_for(lambda: inside.evaluate("Boolean(globalThis.shardmill?.map.resting)"))
    inside.locator("#meaning").wait_for()
    if state.startswith("#find"):
        wait_for(lambda: "not whole texts" in inside.inner_text("#found-note"))
    if state.startswith("#point"):
        inside.click("#card-near")
        inside.locator("#card-similar button").first.wait_for()
    if brush:
        box = inside.locator(".bars").bounding_box()
        page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
        page.mouse.up()
    if hover:
        page.mouse.move(*hover)
        inside.locator("#tip").wait_for()
    page.wait_for_timeout(1000)
    # Points blend into many colours, of which the frequent ones have to be exact.
    _save(page, name, Image.Quantize.MEDIANCUT)
    context.close()


def _save(page: Any, name: str, how: Image.Quantize = Image.Quantize.MAXCOVERAGE) -> None:
    path = IMAGES / f"{name}.png"
    page.screenshot(path=str(path))
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256, how, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


if __name__ == "__main__":
    main()
