"""The page of a run with a hundred thousand shards and a thousand workers, in Chromium.

python -m benchmarks.page --shards 100000 --workers 1000 --updates 1800

Each update changes a thousand shards and every worker, as an event of the monitor does. Measured are the drawing of the
strip, all of the work of an update, and the memory of the page and of the monitor before and after: 1,800 updates are
an hour of a page that is left open. Beside the time that passed, the processor time of the browser is measured: that of
a machine without other work.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from benchmarks.machine import describe_machine, print_table
from tests.support.monitored import monitor, simulate_run

_WARM = 100
_UPDATES = """
async (updates) => {
  const { view } = globalThis.shardmill;
  const run = structuredClone(view.run);
  const states = view.strip.states.slice();
  const frames = [], whole = [];
  globalThis.shardmill.stream.close();
  const heap = () => { gc(); return performance.memory.usedJSHeapSize; };
  let before = 0;
  for (let i = -100; i < updates; i += 1) {
    for (let j = 0; j < 1000; j += 1) states[((i + 100) * 7919 + j * 31) % states.length] = (i + 100 + j) % 4;
    for (const worker of run.workers) {
      Object.assign(worker, { rows_per_s: worker.rows_per_s + 1, beat_s: Math.abs(i) % 10, shards: [i, i + 1] });
    }
    run.history.rows_per_s[Math.abs(i) % run.history.at.length] += 1;
    run.rows += 1000;
    if (i === 0) before = heap();
    const began = performance.now();
    view.show(structuredClone(run));
    view.strip.states = states;
    document.body.offsetHeight;
    const drawn = performance.now();
    view.strip.draw();
    const ended = performance.now();
    if (i >= 0) { frames.push(ended - drawn); whole.push(ended - began); }
    if (i % 10 === 0) await new Promise(requestAnimationFrame);
  }
  return { frames, whole, before, after: heap() };
}
"""


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


def browser_s() -> float:
    """Processor seconds of all processes that this one started, but for the monitor's."""
    ours = psutil.Process().children(recursive=True)
    return sum(sum(process.cpu_times()[:2]) for process in ours if "chrom" in process.name())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=1800)
    asked = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium not found: apt-get install chromium")
    describe_machine()
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        simulate_run(Path(place) / "runs" / "large", shards=asked.shards, workers=asked.workers, lost=9)
        flags = ["--no-sandbox", "--js-flags=--expose-gc", "--enable-precise-memory-info"]
        with monitor(Path(place) / "runs", "--port", 0) as served:
            page = driver.chromium.launch(executable_path=chromium, args=flags).new_page()
            page.goto(served.entry)
            page.wait_for_url(served.base)
            page.wait_for_selector("#run:not([hidden])")
            page.wait_for_timeout(5000)
            assert page.evaluate("globalThis.shardmill.view.strip.states.length") == asked.shards
            first, used_s = rss_bytes(served.process.pid), browser_s()
            seen = page.evaluate(_UPDATES, asked.updates)
            each_ms = 1000 * (browser_s() - used_s) / (asked.updates + _WARM)
            last = rss_bytes(served.process.pid)
    head = [f"{asked.shards:,} shards, {asked.workers:,} workers, {asked.updates:,} updates", "median", "99 %", "most"]
    rows = [[name, *_times(seen[key])] for name, key in (("strip drawn", "frames"), ("whole update", "whole"))]
    rows.append(["processor time of an update, all of the browser", f"{each_ms:.1f} ms on average", "", ""])
    rows.append(["memory of the page, before and after", *_sizes(seen["before"], seen["after"]), ""])
    rows.append(["memory of the monitor, before and after", *_sizes(first, last), ""])
    print_table(head, rows)


def _times(values: list[float]) -> list[str]:
    ordered = sorted(values)
    found = (statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])
    return [f"{value:.1f} ms" for value in found]


def _sizes(*sizes: Any) -> list[str]:
    return [f"{size / 2**20:.1f} MiB" for size in sizes]


if __name__ == "__main__":
    main()
