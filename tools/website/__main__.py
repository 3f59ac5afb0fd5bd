"""Build the site, or serve it while its pages are written."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from shardmill._version import __version__
from tools.website import checks, llms, pages

HERE = Path(__file__).parent
WORKER, ELSEWHERE = "worker-in-frame.js", "https://unpkg.com/iframe-worker/shim"
_LOOK_S = 1.0


def stage(folder: Path, source: str) -> None:
    """Write what has changed of the pages, pictures and settings to where zensical reads them."""
    texts, pictures = pages.find_pages(), pages.find_pictures()
    listings = pages.find_listings(texts)
    places = texts | pictures | listings
    wanted = {name: (HERE / name).read_bytes() for name in ("site.css", "site.js")}
    wanted |= {places[path]: (pages.ROOT / path).read_bytes() for path in pictures}
    wanted |= {places[path]: pages.render_listing(path).encode() for path in listings}
    for path in texts:
        head = pages.UNSEARCHED if path.startswith(pages.NOT_SEARCHED) else ""
        wanted[places[path]] = (head + pages.render(path, places, source)).encode()
    settings = (HERE / "zensical.toml").read_text().replace("{version}", __version__)
    _write(folder / "zensical.toml", settings.encode())
    for name, content in wanted.items():
        _write(folder / "pages" / name, content)
    for path in list((folder / "pages").rglob("*")):
        if path.is_file() and path.relative_to(folder / "pages").as_posix() not in wanted:
            path.unlink()


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def zensical(folder: Path, *words: str) -> int:
    return subprocess.run([sys.executable, "-m", "zensical", *words], cwd=folder).returncode


def build(folder: Path, source: str) -> None:
    site = folder / "site"
    for old in (site, folder / "pages"):
        shutil.rmtree(old, ignore_errors=True)
    stage(folder, source)
    if status := zensical(folder, "build", "--clean", "--strict"):
        sys.exit(status)
    finish(site)
    llms.write(folder / "pages", site)
    if faults := checks.find_faults(site):
        sys.exit("\n".join(faults))
    count = sum(1 for _ in site.rglob("*.html"))
    print(f"{count} pages, all links lead somewhere: open {site / 'index.html'}")


def finish(site: Path) -> None:
    """Correct zensical's pages: opened as files, they load what runs their search from a server.

    A table without headings has cells there that a screen reader takes for some, and two parts have one name.
    """
    shutil.copyfile(HERE / WORKER, site / "assets" / WORKER)
    for path in site.rglob("*.html"):
        root = "../" * (len(path.relative_to(site).parts) - 1)
        text = path.read_text().replace(ELSEWHERE, f"{root}assets/{WORKER}")
        text = text.replace('<nav class="md-path" aria-label="Navigation"', '<nav class="md-path" aria-label="Path"')
        path.write_text(re.sub(r"<th[^>]*></th>", "<td></td>", text))


def serve(folder: Path, source: str) -> None:
    stage(folder, source)
    threading.Thread(target=_keep_staging, args=(folder, source), daemon=True).start()
    sys.exit(zensical(folder, "serve"))


def _keep_staging(folder: Path, source: str) -> None:
    while True:
        time.sleep(_LOOK_S)
        stage(folder, source)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.website")
    parser.add_argument("--serve", action="store_true", help="serve the site, built anew when a page changes")
    parser.add_argument("--folder", type=Path, default=pages.ROOT / "build" / "docs", help="where it is made")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # Where files that are no pages can be read, such as https://HOST/OWNER/NAME/blob/main.
    source = os.environ.get("DOCS_SOURCE", "")
    (serve if options.serve else build)(options.folder, source)


if __name__ == "__main__":
    main()
