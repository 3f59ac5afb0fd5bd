"""The page of a map beside datamapplot and embedding-atlas: the same points, the size of the pages, time to open.

python -m benchmarks.map_peers --points 100000 --datamapplot ENV --embedding-atlas ENV --libraries node_modules

ENV are virtual environments with `datamapplot` and with `embedding-atlas`. datamapplot's pages load libraries from the
network or embed them; those to embed are in `node_modules` (npm install deck.gl@9.1 apache-arrow d3 jquery@3.7.1).
Each page is served on this machine and opened in Chromium without a GPU. It is open when the picture is the one that
stays: pictures are taken until none has changed for some seconds. One of which Chromium cannot take a picture did not
open.
"""

from __future__ import annotations

import argparse
import base64
import functools
import http.server
import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import Error

from benchmarks.machine import describe_machine, print_table
from shardmill.verbs.map.page_data import MapData, unpack
from tests.support.browser import DESK, chromium
from tests.support.maps import make_map, write_map

_STEADY_S, _PATIENCE_S = 5.0, 180.0
# What datamapplot asks for, and where npm puts it.
_LIBRARIES = {
    "https://unpkg.com/deck.gl@9.1/dist.min.js": "deck.gl/dist.min.js",
    "https://unpkg.com/apache-arrow@latest/Arrow.es2015.min.js": "apache-arrow/Arrow.es2015.min.js",
    "https://unpkg.com/d3@latest/dist/d3.min.js": "d3/dist/d3.min.js",
    "https://unpkg.com/jquery@3.7.1/dist/jquery.min.js": "jquery/dist/jquery.min.js",
}
_DATAMAPPLOT = """
import sys, pandas, datamapplot
rows = pandas.read_parquet(sys.argv[1])
plot = datamapplot.create_interactive_plot(
    rows[["x", "y"]].to_numpy(), rows.fine.to_numpy(), rows.coarse.to_numpy(), noise_label="", hover_text=rows.text,
    enable_search=True, inline_data=True, title="Reviews of a shop", font_family="DejaVu Sans", offline_mode=True,
    offline_mode_js_data_file=sys.argv[3], offline_mode_font_data_file=sys.argv[4],
)
plot.save(sys.argv[2])
"""


def write_rows(data: MapData, path: Path) -> None:
    def names(level: int) -> list[str]:
        clusters, of_cell = data.levels[level].clusters, data.levels[level].of_cell
        return [clusters[c].words[0] if (c := of_cell[cell]) >= 0 else "" for cell in data.cells]

    left, low, side = data.bounds
    rating = data.columns[0]
    columns = {
        "id": [each for block in data.ids() for each in unpack(block)],
        "x": left + side * data.x / 65_535,
        "y": low + side * data.y / 65_535,
        "coarse": names(0),
        "fine": names(1),
        "rating": rating.low + rating.codes / 253 * (rating.high - rating.low),
        "shop": [data.columns[2].labels[code] for code in data.columns[2].codes],
        "text": [each for block in data.excerpts() for each in unpack(block)],
    }
    pq.write_table(pa.table(columns), path)


def make_datamapplot(environment: Path, libraries: Path, rows: Path, folder: Path) -> None:
    scripts = {
        url: {
            "encoded_content": base64.b64encode((libraries / path).read_bytes()).decode(),
            "name": f"library_{number}",
        }
        for number, (url, path) in enumerate(_LIBRARIES.items())
    }
    kept = folder.parent.parent / "datamapplot"
    kept.mkdir()
    known, fonts = kept / "scripts.json", kept / "fonts.json"
    known.write_text(json.dumps(scripts))
    fonts.write_text(json.dumps({"DejaVu Sans": []}))
    # Without styles that it knows, it would ask for them.
    (kept / "datamapplot_css_encoded.json").write_text("{}")
    command = [environment / "bin/python", "-c", _DATAMAPPLOT, rows, folder / "index.html", known, fonts]
    subprocess.run(command, check=True, env={**os.environ, "XDG_DATA_HOME": str(kept.parent)})


def make_atlas(environment: Path, rows: Path, folder: Path) -> None:
    columns = ["--text", "text", "--x", "x", "--y", "y", "--disable-projection"]
    program = environment / "bin/embedding-atlas"
    subprocess.run([program, rows, *columns, "--export-application", folder], check=True)


def opening_s(address: str, picture: Path | None) -> tuple[float | None, list[str]]:
    """Seconds until the picture that stays, None if there is none, and the requests that left this machine.

    Each page has a browser of its own: one that fails may take the browser with it.
    """
    outside: list[str] = []
    with chromium("--enable-unsafe-swiftshader") as browser:
        page = browser.new_page(viewport=DESK)
        page.on("request", lambda request: _note(request.url, address, outside))
        began = changed = time.perf_counter()
        last = b""
        try:
            page.goto(address, wait_until="commit")
            while time.perf_counter() - changed < _STEADY_S and time.perf_counter() - began < _PATIENCE_S:
                seen = page.screenshot(timeout=1000 * _PATIENCE_S)
                if seen != last:
                    last, changed = seen, time.perf_counter()
        except Error as error:
            print(f"{address}: {error.message.splitlines()[0]}")
            return None, outside
        if picture is not None:
            picture.write_bytes(last)
    return changed - began, outside


def _note(url: str, address: str, outside: list[str]) -> None:
    if not url.startswith((address, "blob:", "data:")):
        outside.append(url)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--datamapplot", type=Path)
    parser.add_argument("--embedding-atlas", type=Path)
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--pictures", type=Path, help="Keep a picture of each page in this folder.")
    asked = parser.parse_args()
    describe_machine()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        points, served = Path(place) / "points.parquet", Path(place) / "pages"
        data = make_map(asked.points)
        write_rows(data, points)
        makers = {"shardmill": lambda folder: write_map(folder / "index.html", data)}
        if asked.datamapplot:
            makers["datamapplot"] = lambda folder: make_datamapplot(asked.datamapplot, asked.libraries, points, folder)
        if asked.embedding_atlas:
            makers["embedding-atlas"] = lambda folder: make_atlas(asked.embedding_atlas, points, folder)
        for name, make in makers.items():
            (served / name).mkdir(parents=True)
            began = time.perf_counter()
            make(served / name)
            made_s = time.perf_counter() - began
            server = http.server.ThreadingHTTPServer(
                ("127.0.0.1", 0), functools.partial(_Quiet, directory=served / name)
            )
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = f"http://127.0.0.1:{server.server_address[1]}/"
            took_s, outside = opening_s(address, asked.pictures / f"{name}.png" if asked.pictures else None)
            server.shutdown()
            files = [path for path in (served / name).rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files)
            count = f"{len(files)} files" if len(files) > 1 else "one file"
            opened = "did not open" if took_s is None else f"{took_s:.1f} s"
            rows.append([name, count, f"{size / 2**20:.1f} MiB", f"{made_s:.1f} s", opened, str(len(outside))])
    print_table(["page", "what it is", "size", "made in", "opens in", "requests elsewhere"], rows)


if __name__ == "__main__":
    main()
