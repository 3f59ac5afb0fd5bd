"""The page of a map in Chromium without a GPU: size, time to open, frames while it moves, time of a search.

python -m benchmarks.map_page --points 250010 1000000

Points lie in made-up clusters; excerpts are 200 characters of words drawn as often as words of a language are. The page
is opened three times, and once from `shardmill monitor`. Then it is moved and zoomed for some seconds, drawing a new
picture in each frame. Beside the time that passed, the processor time of the browser is measured: that of a machine
without other work.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, print_table
from benchmarks.page import browser_s
from shardmill.verbs.map.page_data import BLOCK_POINTS, MapData, pack
from shardmill.verbs.map.task import EXCERPT_CHARACTERS
from tests.support.browser import DESK, chromium
from tests.support.maps import make_map, write_map
from tests.support.monitored import monitor, simulate_run
from tests.support.waiting import wait_for

_MOVE_S = 6
_MOVE = """
async (seconds) => {
  const { map } = shardmill, { view, painter } = map;
  const times = [], shares = [];
  const began = performance.now();
  let last = began, k = 0;
  await new Promise((done) => {
    const step = (now) => {
      times.push(now - last);
      shares.push(Math.min(1, map.sketched / map.points.count));
      last = now;
      k += 1;
      view.pan(6 * Math.sin(k / 20), 5 * Math.cos(k / 17));
      view.zoomAt(1 + 0.02 * Math.sin(k / 30));
      if (now - began > 1000 * seconds) done();
      else requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
  return { times: times.slice(1), shares, painter: painter.name };
}
"""


def with_excerpts(data: MapData) -> MapData:
    """The same map with texts that can be compressed about as far as those of people."""
    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    share = 1 / np.arange(3, 29) ** 1.1
    vocabulary = ["".join(rng.choice(letters, size, p=share / share.sum())) for size in rng.integers(2, 11, 20_000)]
    often = 1 / np.arange(2, 20_002) ** 0.9
    chance = np.cumsum(often / often.sum())

    def blocks() -> Iterator[bytes]:
        draws = np.random.default_rng(2)
        for start in range(0, data.count, BLOCK_POINTS):
            words = np.searchsorted(chance, draws.random((min(BLOCK_POINTS, data.count - start), 40)))
            yield pack(
                [" ".join(vocabulary[min(w, 19_999)] for w in row)[:EXCERPT_CHARACTERS] for row in words.tolist()]
            )

    return dataclasses.replace(data, excerpts=blocks)


def opening_in_monitor_s(browser: Any, path: Path) -> float:
    """Seconds until the map is drawn in the monitor's sandbox."""
    run = path.parent / "runs" / "large"
    simulate_run(run)
    (run / "map.html").hardlink_to(path)
    with monitor(run.parent, "--port", 0) as served:
        page = browser.new_page(viewport=DESK)
        page.goto(served.entry)
        page.wait_for_url(served.base)
        began = time.perf_counter()
        page.goto(f"{served.base}map?run=large")
        frame = page.locator("#map").element_handle().content_frame()
        frame.wait_for_url("**/files/map.html*", wait_until="commit")
        wait_for(lambda: frame.evaluate("Boolean(globalThis.shardmill?.map.resting)"))
        drawn = time.perf_counter() - began
        page.close()
    shutil.rmtree(run)
    return drawn


def measure(browser: Any, path: Path, n: int) -> list[str]:
    drawn, complete = [], []
    for _ in range(3):
        page = browser.new_page(viewport=DESK)
        began = time.perf_counter()
        page.goto(path.as_uri(), wait_until="commit")
        wait_for(lambda page=page: page.evaluate("Boolean(globalThis.shardmill?.map.resting)"))
        drawn.append(time.perf_counter() - began)
        wait_for(lambda page=page: page.evaluate("document.readyState === 'complete'"))
        complete.append(time.perf_counter() - began)
        if len(drawn) < 3:
            page.close()
    base = page.evaluate("document.getElementById('points').textContent.length") / n
    page.evaluate(_MOVE, 1)
    before = browser_s()
    moved = page.evaluate(_MOVE, _MOVE_S)
    each_ms = 1000 * (browser_s() - before) / len(moved["times"])
    began = time.perf_counter()
    wait_for(lambda: page.evaluate("shardmill.map.resting"))
    rested = time.perf_counter() - began
    began = time.perf_counter()
    page.fill("#query", "the quick")
    page.keyboard.press("Enter")
    wait_for(lambda: "not whole texts" in page.inner_text("#found-note"))
    searched = time.perf_counter() - began
    frames = sorted(moved["times"])
    page.close()
    size = path.stat().st_size
    monitored = opening_in_monitor_s(browser, path)
    return [
        f"{n:,}",
        f"{size / 2**20:.1f} MiB",
        f"{base:.1f} B",
        f"{size / n:.0f} B",
        f"{statistics.median(drawn):.2f} s",
        f"{statistics.median(complete):.2f} s",
        f"{monitored:.2f} s",
        f"{1000 * len(frames) / sum(frames):.0f}",
        f"{frames[int(0.95 * (len(frames) - 1))]:.0f} ms",
        f"{each_ms:.0f} ms",
        f"{statistics.median(moved['shares']):.0%} by {moved['painter']}",
        f"{rested:.2f} s",
        f"{searched:.1f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs="+", default=[250_010, 1_000_000])
    asked = parser.parse_args()
    describe_machine()
    rows = []
    with tempfile.TemporaryDirectory() as place, chromium("--enable-unsafe-swiftshader") as browser:
        for n in asked.points:
            path = write_map(Path(place) / f"{n}.html", with_excerpts(make_map(n)))
            rows.append(measure(browser, path, n))
            path.unlink()
    head = ["file", "place, cluster, colour", "all, per point", "drawn", "all read", "drawn in the monitor"]
    head += ["frames/s", "95 % of frames", "processor time per frame", "points per frame", "all drawn at rest"]
    head += ["search of all excerpts"]
    print_table(
        ["figure", *(row[0] + " points" for row in rows)],
        [list(each) for each in zip(head, *(row[1:] for row in rows), strict=True)],
    )


if __name__ == "__main__":
    main()
