"""The page in Chromium: a run from start to finish, a worker that is killed, a search, and readers of all kinds."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, prepare, start
from shardmill.testing import InProcessEngine
from shardmill.verbs.map.making import make_map as make_map_of
from tests.support.browser import DESK, PHONE, Watched, chromium
from tests.support.cli import command
from tests.support.corpora import fake_rows
from tests.support.libraries import needed
from tests.support.maps import make_map, write_map
from tests.support.monitored import MonitorProcess, hostile_run, monitor, simulate_run
from tests.support.services import unavailable
from tests.support.waiting import wait_for

needed("fastapi")
needed("playwright.sync_api")
pytestmark = pytest.mark.services

SCRIPT = "<img src=x onerror=alert(1)>"
ALERTS = """
[rules]
error_rate = "40"
worker_lost = true
finished = true

[targets.none]
kind = "command"
command = ["true"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that can be searched, a large one under way, and one whose texts mean harm."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    source = folder.parent / "texts.jsonl"
    texts = ["the battery died", "a train at eight", f"the {SCRIPT} tag", "a cup of tea", "rain all week"]
    source.write_text("".join(json.dumps({"id": f"k{i}", "text": text}) + "\n" for i, text in enumerate(texts)))
    work = {"source": str(source), "text": "text", "id": "id", "keep": "text", "task": "shardmill.testing:FakeTask"}
    start(make_spec(work, {"device": "cpu"}), folder / "found", engine=InProcessEngine())
    simulate_run(folder / "large", shards=100_000, workers=30, lost=2)
    hostile_run(folder / "hostile")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[MonitorProcess]:
    alerts = folder.parent / "alerts.toml"
    alerts.write_text(ALERTS)
    with monitor(folder, "--alerts", alerts) as process:
        yield process


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium("--disable-gpu") as opened:
        yield opened


Open = Callable[..., Any]


@pytest.fixture
def watching(browser: Any, served: MonitorProcess) -> Iterator[Open]:
    """Opens the page at a run. In the end nothing was complained of, and nothing left this machine."""
    watched = Watched(browser, served.base)

    def opens(run: str, viewport: dict[str, int] = DESK, **options: Any) -> Any:
        page = watched.open(viewport, **options)
        page.goto(served.entry)
        page.wait_for_url(served.base)
        page.goto(f"{served.base}#run={run}")
        page.wait_for_selector("#run:not([hidden])")
        return page

    yield opens
    watched.close()
    assert watched.complaints == []


@contextmanager
def worker(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command("work", run), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_first_screen_is_the_newest_run_that_runs(browser: Any, served: MonitorProcess) -> None:
    """Of the three, one is complete and one is large and under way."""
    watched = Watched(browser, served.base)
    page = watched.open()
    page.goto(served.entry)
    page.wait_for_selector("#run:not([hidden])")
    assert page.inner_text("#name") == "large"
    assert page.get_attribute('#runs a[aria-current="page"]', "href") == "#run=large"
    watched.close()
    assert watched.complaints == []


def test_a_link_with_the_token_keeps_the_run_that_it_names(browser: Any, served: MonitorProcess) -> None:
    watched = Watched(browser, served.base)
    page = watched.open()
    page.goto(f"{served.entry}#run=found")
    page.wait_for_selector("#run:not([hidden])")
    assert page.url == f"{served.base}#run=found"
    assert page.inner_text("#name") == "found"
    watched.close()
    assert watched.complaints == []


def test_a_run_from_start_to_finish_with_a_worker_that_is_killed(folder: Path, watching: Open) -> None:
    source = folder.parent / "live.jsonl"
    rows = fake_rows(200)
    rows[3]["text"] = f"{SCRIPT} !nan"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work = {"source": str(source), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    execution = {"device": "cpu", "shard_bytes": 800, "max_errors": "50%"}
    prepare(make_spec({**work, "params": {"delay_s": 0.3}}, execution), folder / "live")
    page = watching("found")
    # It is found in the folder, and chosen.
    page.click('#runs a[href="#run=live"]')
    page.wait_for_selector("#state[data-state=planned]")
    with worker(folder / "live") as first:
        beat = wait_for(lambda: [w for w in Ledger(folder / "live").workers.read() if w["open"] and w["commits"]])[0]
        # It stands still for as long as it takes to see it at work.
        first.send_signal(signal.SIGSTOP)
        row = page.locator(f'#workers tr[data-key="{beat["id"]}"]')
        row.get_by_text("working").wait_for()
        wait_for(lambda: page.inner_text("#legend tr:nth-child(3) td") != "0")
        assert page.inner_text("#state") == "running"
    row.get_by_text("lost").wait_for()
    assert "gone" in row.get_attribute("class")
    with worker(folder / "live"):
        page.wait_for_selector("#state[data-state=complete]")
    assert page.inner_text("#percent") == "100 %"
    assert page.inner_text("#items") == "200 items"
    assert page.get_attribute("#bar", "aria-valuenow") == "100"
    assert page.title().startswith("100 % live")
    assert page.inner_text("#said") == "live is complete"
    assert page.inner_text("#errors tbody tr td") == "1"
    assert page.locator("#charts figure:not([hidden])").count() >= 3
    wait_for(lambda: set(page.evaluate("[...globalThis.shardmill.view.strip.states]")) == {2})


def test_the_alerts_that_hold_are_shown(watching: Open) -> None:
    page = watching("large")
    page.wait_for_selector("#alerts:not([hidden])")
    assert page.inner_text("#alerts-count") == "2"
    said = page.locator("#alerts-list li").all_inner_texts()
    assert [text.split("\n")[0] for text in said] == ["error rate", "worker lost"]
    assert "41 of " in said[0]
    assert "2 workers lost: " in said[1]
    assert "2 alerts" in page.inner_text('#runs a[href="#run=large"]')
    # That a run is complete is told, and no trouble.
    page.click('#runs a[href="#run=found"]')
    page.locator("#alerts-list").get_by_text("complete: 5 rows").wait_for()
    assert page.locator("#alerts-list li").count() == 1
    assert "alert" not in page.inner_text('#runs a[href="#run=found"]')


def test_a_result_is_searched(watching: Open) -> None:
    page = watching("found")
    page.get_by_label("Find items by meaning").fill("battery")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits tbody tr")
    assert page.locator("#hits tbody tr").count() == 5
    assert SCRIPT in page.inner_text("#hits"), "a tag in a text is shown as text"
    assert page.locator("#hits img").count() == 0
    assert "5 nearest items" in page.inner_text("#search-said")


def test_the_strip_has_every_shard_and_draws_in_time(watching: Open) -> None:
    page = watching("large")
    wait_for(lambda: page.evaluate("globalThis.shardmill.view.strip.states.length") == 100_000)
    counts = [int(text.replace(",", "")) for text in page.locator("#legend td").all_inner_texts()]
    assert sum(counts) == 100_000
    assert page.evaluate("document.querySelector('#strip').width * document.querySelector('#strip').height") >= 100_000
    colours = page.evaluate(
        """() => {
            const canvas = document.querySelector('#strip');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return new Set(new Uint32Array(data.buffer)).size;
        }"""
    )
    assert colours >= 3


def test_the_keyboard_alone(watching: Open) -> None:
    page = watching("large")
    wait_for(lambda: page.evaluate("globalThis.shardmill.view.strip.states.length"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the run"
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.id || document.activeElement.getAttribute('href')")
        reached.append(focused)
        if focused == "strip":
            break
    assert "#run=found" in reached
    assert reached[-1] == "strip"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "what has the focus is seen"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#strip", "aria-valuetext") == "shard 2, done"
    page.keyboard.press("End")
    assert page.inner_text("#picked").startswith("Shard 99,999: ")
    for _ in reached:
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.getAttribute('href')") == "#run=found":
            break
    page.keyboard.press("Enter")
    wait_for(lambda: page.inner_text("#name") == "found")
    # From the list to the search box of the run, and through what it found.
    page.wait_for_selector("#search:not([hidden])")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "query":
            break
    page.keyboard.type("tea")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits tbody tr")


@pytest.mark.parametrize(
    ("run", "viewport", "scheme"), [("large", DESK, "light"), ("found", DESK, "dark"), ("large", PHONE, "dark")]
)
def test_everybody_can_read_it(watching: Open, run: str, viewport: dict[str, int], scheme: str) -> None:
    axe = Path(sys.prefix) / "lib" / "node_modules" / "axe-core" / "axe.min.js"
    if not axe.exists():
        unavailable("axe-core is not installed: `make test-all` installs it beside the packages of the tests.")
    page = watching(run, viewport, color_scheme=scheme)
    page.wait_for_selector("#link[data-state=live]")
    lightness = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(lightness) < 200) == (scheme == "dark")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no part is wider than the screen"
    page.evaluate(axe.read_text())
    found = page.evaluate("axe.run().then((said) => said.violations)")
    assert [(each["id"], [node["target"] for node in each["nodes"]]) for each in found] == []


@pytest.mark.parametrize("viewport", [DESK, PHONE])
def test_texts_that_mean_harm_are_shown_as_text(watching: Open, viewport: dict[str, int]) -> None:
    page = watching("hostile", viewport)
    page.locator("#errors tbody").get_by_text("<script>alert(1)</script>").first.wait_for()
    assert page.locator("#run script").count() == 0
    assert "\u202e" not in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no text is wider than the screen"
    page.get_by_label("Log of w<script>").click()
    page.locator("#log-text").get_by_text("<script>alert(1)</script>").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("#log").is_visible()


@pytest.mark.parametrize("run", ["hostile", "large"])
def test_a_report_is_no_wider_than_a_phone(folder: Path, tmp_path: Path, browser: Any, run: str) -> None:
    page = browser.new_page(viewport=PHONE)
    page.goto(Path(Run(folder / run).report(tmp_path / "report.html")).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def map_in(page: Any) -> Any:
    """The map in its frame, once it is drawn."""
    frame = page.locator("#map").element_handle().content_frame()
    frame.wait_for_url("**/files/map.html*")
    wait_for(lambda: frame.evaluate("Boolean(globalThis.shardmill?.map.resting)"))
    return frame


def test_a_map_is_searched_by_meaning(folder: Path, served: MonitorProcess, watching: Open) -> None:
    make_map_of({"source": str(folder / "found")}, {}, folder / "found-map", engine=InProcessEngine())
    page = watching("found-map")
    with page.expect_popup() as opened:
        page.click('#reports a:text("map.html")')
    shown = opened.value
    inside = map_in(shown)
    assert inside.evaluate("origin") == "null"
    inside.fill("#query", "the battery died")
    inside.click("#meaning")
    wait_for(lambda: inside.inner_text("#found-note") == "By meaning, the nearest first.")
    assert inside.evaluate("[...shardmill.map.list.points]") == [
        hit.row for hit in Run(folder / "found").search("the battery died", 5)
    ]
    with shown.expect_download() as saved:
        inside.click("#found-csv")
    assert Path(saved.value.path()).read_text("utf-8-sig").startswith("id,x,y,")
    assert saved.value.suggested_filename == "points.csv"
    wait_for(lambda: "like=the+battery+died" in shown.evaluate("location.hash"))
    other = watching("found-map")
    other.goto(shown.url)
    again = map_in(other)
    wait_for(lambda: again.inner_text("#found-title") == "Points like “the battery died”")


def test_a_map_without_its_run_says_where_it_is_searched(folder: Path, served: MonitorProcess, watching: Open) -> None:
    write_map(folder / "large" / "map.html", dataclasses.replace(make_map(300), by_meaning=True))
    page = watching("large")
    page.goto(f"{served.base}map?run=large")
    inside = map_in(page)
    assert "shardmill monitor" in inside.inner_text("#meaning-note")
    assert not inside.is_visible("#meaning")


def test_a_map_in_a_run_folder_is_shown_in_a_sandbox(folder: Path, served: MonitorProcess, watching: Open) -> None:
    write_map(folder / "found" / "map.html", make_map(300))
    page = watching("found")
    page.goto(f"{served.base}api/runs/found/files/map.html")
    wait_for(lambda: page.evaluate("Boolean(globalThis.shardmill?.map.resting)"))
    assert page.evaluate("origin") == "null"
    page.fill("#query", "order")
    page.keyboard.press("Enter")
    wait_for(lambda: page.inner_text("#found-title") == "300 points with “order”")
    page.locator("#found-rows button").first.click()
    wait_for(lambda: page.inner_text("#card-id") == "r0")


def test_what_cannot_be_read_is_said(folder: Path, watching: Open) -> None:
    bad = folder / "bad"
    bad.mkdir()
    (bad / "plan.json").write_text("{")
    page = watching("found")
    page.get_by_text("plan.json is damaged").first.wait_for()
    page.click('#runs a[href="#run=bad"]')
    page.get_by_text("bad cannot be read").wait_for()
    page.goto(f"{urllib.parse.urlsplit(page.url)._replace(fragment='run=none').geturl()}")
    page.get_by_text("There is no such run any more.").wait_for()
